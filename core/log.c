/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

#include "internal.h"
#include "lock.h"

enum { LINE_BYTES = 640, SEEN_LINES = 64 };

/* Changed under NBL_LOCK_LOG, which is held while a callback runs, so that nbl_log_remove can wait for it. */
static nbl_log_sink *newest;
static uint64_t seen[SEEN_LINES]; /* hashes of the last lines on stderr */
static uint32_t seen_count;

/* FNV-1a. */
static uint64_t hash(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

static int first_time(const char *line)
{
    const uint64_t h = hash(line);
    for (uint32_t i = 0; i < SEEN_LINES && i < seen_count; i++)
        if (seen[i] == h)
            return 0;
    seen[seen_count++ % SEEN_LINES] = h;
    return 1;
}

/* Under NBL_LOCK_LOG. sink may be NULL: errors to stderr. */
static void emit(const nbl_log_sink *sink, uint32_t level, const char *line)
{
    if (sink && sink->write)
        sink->write(sink->user, level, line);
    else if (level <= (sink ? sink->level : NBL_LOG_ERROR) && first_time(line))
        (void)fprintf(stderr, "%s\n", line);
}

void nbl_log_add(nbl_log_sink *sink)
{
    nbl_lock(NBL_LOCK_LOG);
    sink->older = newest;
    newest = sink;
    nbl_unlock(NBL_LOCK_LOG);
}

void nbl_log_remove(nbl_log_sink *sink)
{
    nbl_lock(NBL_LOCK_LOG);
    nbl_log_sink **link = &newest;
    while (*link && *link != sink)
        link = &(*link)->older;
    if (*link)
        *link = sink->older;
    nbl_unlock(NBL_LOCK_LOG);
}

void nbl_log(const nbl_log_sink *sink, uint32_t level, const char *format, ...)
{
    char text[LINE_BYTES];
    char line[LINE_BYTES + sizeof NBL_MESSAGE_PREFIX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)snprintf(line, sizeof line, NBL_MESSAGE_PREFIX "%s", text);
    nbl_lock(NBL_LOCK_LOG);
    emit(sink, level, line);
    nbl_unlock(NBL_LOCK_LOG);
}

void nbl_log_plugin(uint32_t level, const char *message)
{
    char line[LINE_BYTES];
    (void)snprintf(line, sizeof line, NBL_MESSAGE_PREFIX "%s", message ? message : "(no text)");
    nbl_lock(NBL_LOCK_LOG);
    emit(newest, level, line);
    nbl_unlock(NBL_LOCK_LOG);
}
