/* SPDX-License-Identifier: Apache-2.0 */
/* nbl_get_api: versions and struct sizes of the request; what is written into an error of any size. */
#include <criterion/criterion.h>
#include <string.h>

#include "nibble/nibble.h"

static void expect_refused(const nbl_api_request *request, nbl_status status, const char *message)
{
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_api_v1 *const poison = (const nbl_api_v1 *)(const void *)&err;
    const nbl_api_v1 *api = poison;
    cr_assert_eq(nbl_get_api(request, &api, &err), status, "status is %d: %s", err.status, err.message);
    cr_assert_str_eq(err.message, message, "message is %s", err.message);
    cr_assert_eq(err.origin, (uint32_t)NBL_ORIGIN_HOST, "origin is %u", err.origin);
    cr_assert_eq(api, poison, "out_api was written although the call failed");
}

static nbl_api_request request_of(uint32_t major, uint32_t minor)
{
    nbl_api_request request = NBL_INIT(nbl_api_request);
    request.abi_major = major;
    request.abi_minor_min = minor;
    return request;
}

Test(negotiation, table)
{
    const nbl_api_request request = request_of(NBL_ABI_MAJOR, NBL_ABI_MINOR);
    const nbl_api_v1 *api = NULL, *again = NULL;
    cr_assert_eq(nbl_get_api(&request, &api, NULL), NBL_OK, "the header's own version is refused");
    cr_assert_eq(nbl_get_api(NULL, &again, NULL), NBL_OK, "a NULL request is refused");
    cr_assert_eq(api, again, "two tables");
    cr_assert_eq(api->struct_size, (uint32_t)sizeof *api, "struct_size is %u", api->struct_size);
    cr_assert_eq(api->abi_minor, NBL_ABI_MINOR, "abi_minor is %u", api->abi_minor);
    for (size_t at = offsetof(nbl_api_v1, load); at < sizeof *api; at += sizeof(void (*)(void))) {
        void (*slot)(void);
        memcpy(&slot, (const char *)api + at, sizeof slot);
        cr_assert(slot != NULL, "the slot at %zu is NULL", at);
    }
}

Test(negotiation, other_versions)
{
    nbl_api_request request = request_of(2, 0);
    expect_refused(&request, NBL_E_ABI,
                   "nibble: application ABI 2.0 is wanted, this libnibble speaks 1.0 to 1.1; use a matching one");
    request = request_of(0, 0);
    expect_refused(&request, NBL_E_ABI,
                   "nibble: application ABI 0.0 is wanted, this libnibble speaks 1.0 to 1.1; use a matching one");
    request = request_of(1, 2);
    expect_refused(&request, NBL_E_ABI,
                   "nibble: application ABI 1.2 is wanted, this libnibble speaks 1.0 to 1.1; use a matching one");
}

Test(negotiation, size_of_the_request)
{
    nbl_api_request request = request_of(1, 0);
    request.struct_size = 15;
    expect_refused(&request, NBL_E_ABI, "nibble: nbl_api_request.struct_size is 15, allowed are 16 to 65536");
    request.struct_size = 0;
    expect_refused(&request, NBL_E_ABI, "nibble: nbl_api_request.struct_size is 0, allowed are 16 to 65536");
    request.struct_size = 0xffffffffu;
    expect_refused(&request, NBL_E_ABI, "nibble: nbl_api_request.struct_size is 4294967295, allowed are 16 to 65536");
}

Test(negotiation, longer_request)
{
    struct {
        nbl_api_request known;
        uint32_t later[2];
    } request = {request_of(1, 0), {0, 0}};
    request.known.struct_size = (uint32_t)sizeof request;
    const nbl_api_v1 *api = NULL;
    cr_assert_eq(nbl_get_api(&request.known, &api, NULL), NBL_OK, "a longer request with a zero tail is refused");
    request.later[1] = 0x00010000u;
    expect_refused(&request.known, NBL_E_UNKNOWN_FIELD,
                   "nibble: nbl_api_request has 24 bytes, of which 16 are known; byte 22 is not zero");
}

Test(negotiation, no_place_for_the_table)
{
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(nbl_get_api(NULL, NULL, &err), NBL_E_INVALID, "status is %d", err.status);
    cr_assert_str_eq(err.message, "nibble: out_api is NULL", "message is %s", err.message);
    cr_assert_eq(nbl_get_api(NULL, NULL, NULL), NBL_E_INVALID, "without an error struct");
}

/* Not a byte past the size that the caller gave is written; too small a size means none at all. */
Test(negotiation, error_struct_of_any_size)
{
    static const char message[] = "nibble: out_api is NULL";
    const uint32_t head = (uint32_t)offsetof(nbl_error, message);
    for (uint32_t size = 0; size <= sizeof(nbl_error); size++) {
        nbl_error err, untouched;
        memset(&err, 0x5a, sizeof err);
        err.struct_size = size;
        untouched = err;
        cr_assert_eq(nbl_get_api(NULL, NULL, &err), NBL_E_INVALID, "status with size %u", size);
        const uint32_t written = size > head ? size : 0;
        cr_assert_eq(memcmp((char *)&err + written, (char *)&untouched + written, sizeof err - written), 0,
                     "bytes past size %u were written", size);
        if (written == 0)
            continue;
        const size_t fits = size - head;
        const size_t length = strlen(message) < fits ? strlen(message) : fits - 1;
        cr_assert_eq(strlen(err.message), length, "with size %u the message is %s", size, err.message);
        cr_assert_eq(memcmp(err.message, message, length), 0, "with size %u the message is %s", size, err.message);
        cr_assert_eq(err.truncated, (uint32_t)(length < strlen(message)), "truncated with size %u", size);
        cr_assert_eq(err.status, NBL_E_INVALID, "err.status with size %u", size);
    }
}
