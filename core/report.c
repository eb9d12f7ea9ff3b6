/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdlib.h>
#include <string.h>

#include "lock.h"

/* One recorded attempt and its strings, which end the same block. */
typedef struct record {
    struct record *next;
    nbl_load_attempt attempt;
    char text[];
} record;

struct nbl_report {
    uint32_t references;
    uint32_t count;
    record *first;
    record *last;
};

nbl_report *nbl_report_create(void)
{
    nbl_report *report = calloc(1, sizeof *report);
    if (report)
        report->references = 1;
    return report;
}

nbl_report *nbl_report_share(nbl_report *report)
{
    nbl_lock(NBL_LOCK_REPORTS);
    report->references++;
    nbl_unlock(NBL_LOCK_REPORTS);
    return report;
}

void nbl_api_report_free(nbl_report *report)
{
    if (!report)
        return;
    nbl_lock(NBL_LOCK_REPORTS);
    const uint32_t left = --report->references;
    nbl_unlock(NBL_LOCK_REPORTS);
    if (left != 0)
        return;
    for (record *r = report->first; r;) {
        record *next = r->next;
        free(r);
        r = next;
    }
    free(report);
}

static size_t text_bytes(const char *text)
{
    return text ? strlen(text) + 1 : 1;
}

/* Copies text to *at, moves *at past it, returns the copy. */
static const char *put_text(char **at, const char *text)
{
    char *copy = *at;
    const size_t bytes = text_bytes(text);
    memcpy(copy, text ? text : "", bytes);
    *at += bytes;
    return copy;
}

void nbl_report_add(nbl_report *report, const nbl_attempt *attempt)
{
    const size_t bytes = text_bytes(attempt->name) + text_bytes(attempt->path) + text_bytes(attempt->message) +
                         text_bytes(attempt->description);
    record *r = calloc(1, sizeof *r + bytes);
    if (!r)
        return;
    char *at = r->text;
    r->attempt = *attempt;
    r->attempt.struct_size = (uint32_t)sizeof r->attempt;
    r->attempt.name = put_text(&at, attempt->name);
    r->attempt.path = put_text(&at, attempt->path);
    r->attempt.message = put_text(&at, attempt->message);
    r->attempt.description = put_text(&at, attempt->description);
    nbl_lock(NBL_LOCK_REPORTS);
    if (report->last)
        report->last->next = r;
    else
        report->first = r;
    report->last = r;
    report->count++;
    nbl_unlock(NBL_LOCK_REPORTS);
}

uint32_t nbl_api_report_count(const nbl_report *report)
{
    if (!report)
        return 0;
    nbl_lock(NBL_LOCK_REPORTS);
    const uint32_t count = report->count;
    nbl_unlock(NBL_LOCK_REPORTS);
    return count;
}

nbl_status nbl_api_report_get(const nbl_report *report, uint32_t index, nbl_load_attempt *out_attempt, nbl_error *err)
{
    if (!report)
        return nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0, "report is NULL");
    const nbl_status status = NBL_STRUCT_OUT_CHECK(nbl_load_attempt, out_attempt, err);
    if (status != NBL_OK)
        return status;
    const uint32_t count = nbl_api_report_count(report);
    if (index >= count)
        return nbl_fail(err, NBL_E_RANGE, NBL_ORIGIN_HOST, 0, "report index is %u, the report has %u attempts", index,
                        count);
    const record *r = report->first;
    while (index-- > 0)
        r = r->next;
    nbl_struct_out(out_attempt, &r->attempt, (uint32_t)sizeof r->attempt);
    return NBL_OK;
}
