/* SPDX-License-Identifier: Apache-2.0 */
/* The rules for argument and out structs, on slots that need nothing else: load, open, caps. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "nibble/nibble.h"
#include "nibble/nibble_asserts.h"

static const nbl_api_v1 *api;
static nbl_runtime *runtime;

static nbl_load_options good_options(void)
{
    nbl_load_options options = NBL_INIT(nbl_load_options);
    options.flags = NBL_LOAD_IGNORE_ENV;
    options.backend = "mock";
    options.backend_dir = PLUGINS "/good";
    return options;
}

static void prepare(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_load_options options = good_options();
    cr_assert_eq(nbl_get_api(NULL, &api, NULL), NBL_OK, "nbl_get_api");
    cr_assert_eq(api->load(&options, &runtime, NULL, &err), NBL_OK, "load fails: %s", err.message);
}

static void clean(void)
{
    cr_assert_eq(api->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

TestSuite(structs, .init = prepare, .fini = clean, .timeout = 60);

/* Opens with these options; expects a status and, unless it is NBL_OK, a message and an untouched output. */
static void expect_open(const nbl_device_options *options, nbl_status status, const char *message)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device *device = NULL;
    const nbl_status got = api->open(runtime, options, &device, &err);
    cr_assert_eq(got, status, "open gives %s: %s", api->status_name(got), err.message);
    if (status == NBL_OK) {
        cr_assert_eq(api->close(device, &err), NBL_OK, "close fails: %s", err.message);
        return;
    }
    cr_assert_str_eq(err.message, message, "message is %s", err.message);
    cr_assert_null(device, "open wrote out_device although it failed");
}

Test(structs, null_means_all_zero_where_the_slot_says_so)
{
    expect_open(NULL, NBL_OK, NULL);
}

Test(structs, short_struct)
{
    nbl_device_options options = NBL_INIT(nbl_device_options);
    options.struct_size = 31;
    expect_open(&options, NBL_E_ABI, "nibble: nbl_device_options.struct_size is 31, allowed are 32 to 65536");
    options.struct_size = 0;
    expect_open(&options, NBL_E_ABI, "nibble: nbl_device_options.struct_size is 0, allowed are 32 to 65536");
    options.struct_size = 65537;
    expect_open(&options, NBL_E_ABI, "nibble: nbl_device_options.struct_size is 65537, allowed are 32 to 65536");
}

Test(structs, longer_struct)
{
    struct {
        nbl_device_options known;
        unsigned char later[100];
    } options = {NBL_INIT(nbl_device_options), {0}};
    options.known.struct_size = (uint32_t)sizeof options;
    expect_open(&options.known, NBL_OK, NULL);
    for (size_t i = 0; i < sizeof options.later; i += 33) {
        char message[128];
        options.later[i] = 1;
        (void)snprintf(message, sizeof message,
                       "nibble: nbl_device_options has %zu bytes, of which 40 are known; byte %zu is not zero",
                       sizeof options, 40 + i);
        expect_open(&options.known, NBL_E_UNKNOWN_FIELD, message);
        options.later[i] = 0;
    }
}

Test(structs, unknown_flags)
{
    nbl_device_options options = NBL_INIT(nbl_device_options);
    options.flags = 4;
    expect_open(&options, NBL_E_UNKNOWN_FIELD,
                "nibble: nbl_device_options.flags has unknown bits 0x4, allowed are 0x0");

    nbl_load_options load = good_options();
    load.flags = NBL_LOAD_IGNORE_ENV | 8u;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *other = NULL;
    cr_assert_eq(api->load(&load, &other, NULL, &err), NBL_E_UNKNOWN_FIELD, "load: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: nbl_load_options.flags has unknown bits 0x8, allowed are 0x1",
                     "message is %s", err.message);
}

/* ------------------------------------------------------------------------------------------------ extensions */

static nbl_ext node_of(uint32_t type, uint32_t flags, const nbl_ext *next)
{
    nbl_ext node = NBL_INIT(nbl_ext);
    node.type = type;
    node.flags = flags;
    node.next = next;
    return node;
}

Test(structs, unknown_extension)
{
    nbl_device_options options = NBL_INIT(nbl_device_options);
    const nbl_ext required = node_of(77, NBL_EXT_REQUIRED, NULL);
    const nbl_ext optional = node_of(76, 0, NULL);
    const nbl_ext both = node_of(75, 0, &required);
    options.next = &optional;
    expect_open(&options, NBL_OK, NULL);
    options.next = &required;
    expect_open(&options, NBL_E_UNKNOWN_FIELD,
                "nibble: nbl_device_options: extension type 77 is marked required but not known");
    options.next = &both;
    expect_open(&options, NBL_E_UNKNOWN_FIELD,
                "nibble: nbl_device_options: extension type 77 is marked required but not known");
}

Test(structs, short_extension)
{
    nbl_device_options options = NBL_INIT(nbl_device_options);
    nbl_ext node = node_of(77, 0, NULL);
    node.struct_size = 16;
    options.next = &node;
    expect_open(&options, NBL_E_ABI, "nibble: nbl_device_options: extension 0 has struct_size 16, needs at least 24");
}

Test(structs, extension_chain_limit)
{
    nbl_device_options options = NBL_INIT(nbl_device_options);
    nbl_ext nodes[NBL_EXT_CHAIN_MAX + 1];
    for (uint32_t i = 0; i <= NBL_EXT_CHAIN_MAX; i++)
        nodes[i] = node_of(i, 0, i < NBL_EXT_CHAIN_MAX ? &nodes[i + 1] : NULL);
    options.next = &nodes[1];
    expect_open(&options, NBL_OK, NULL);
    options.next = &nodes[0];
    expect_open(&options, NBL_E_INVALID,
                "nibble: nbl_device_options: more than 32 extensions, or a chain that never ends");
}

Test(structs, extension_cycle)
{
    nbl_device_options options = NBL_INIT(nbl_device_options);
    nbl_ext first = node_of(1, 0, NULL), second = node_of(2, 0, &first);
    first.next = &second;
    options.next = &first;
    expect_open(&options, NBL_E_INVALID,
                "nibble: nbl_device_options: more than 32 extensions, or a chain that never ends");
    first.next = &first;
    expect_open(&options, NBL_E_INVALID,
                "nibble: nbl_device_options: more than 32 extensions, or a chain that never ends");
}

/* ------------------------------------------------------------------------------------------------ out structs */

static nbl_device *open_device(void)
{
    nbl_device *device = NULL;
    cr_assert_eq(api->open(runtime, NULL, &device, NULL), NBL_OK, "open");
    return device;
}

/* The callee writes what both sides know, says its own size, and leaves flags, next and the rest alone. */
Test(structs, out_struct_of_a_newer_caller)
{
    nbl_device *device = open_device();
    struct {
        nbl_caps known;
        unsigned char later[64];
    } caps;
    memset(&caps, 0x5a, sizeof caps);
    caps.known.struct_size = (uint32_t)sizeof caps;
    caps.known.next = NULL;
    cr_assert_eq(api->caps(device, &caps.known, NULL), NBL_OK, "caps");
    cr_assert_eq(caps.known.struct_size, (uint32_t)sizeof(nbl_caps), "struct_size is %u", caps.known.struct_size);
    cr_assert_eq(caps.known.flags, 0x5a5a5a5au, "flags were written");
    cr_assert_eq(caps.known.deterministic, 1, "deterministic is %u", caps.known.deterministic);
    for (size_t i = 0; i < sizeof caps.later; i++)
        cr_assert_eq(caps.later[i], 0x5a, "byte %zu past the known size was written", i);
    cr_assert_eq(api->close(device, NULL), NBL_OK, "close");
}

Test(structs, out_struct_refused)
{
    nbl_device *device = open_device();
    nbl_error err = NBL_INIT(nbl_error);
    nbl_caps caps, untouched;
    memset(&caps, 0x5a, sizeof caps);
    caps.struct_size = NBL_V1_BYTES(nbl_caps) - 1;
    untouched = caps;
    cr_assert_eq(api->caps(device, &caps, &err), NBL_E_ABI, "caps: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: nbl_caps.struct_size is 159, allowed are 160 to 65536", "message is %s",
                     err.message);
    cr_assert_eq(memcmp(&caps, &untouched, sizeof caps), 0, "the struct was written although the call failed");
    cr_assert_eq(api->caps(device, NULL, &err), NBL_E_INVALID, "caps: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: nbl_caps is NULL", "message is %s", err.message);

    const nbl_ext required = node_of(77, NBL_EXT_REQUIRED, NULL);
    caps = (nbl_caps)NBL_INIT(nbl_caps);
    caps.next = &required;
    cr_assert_eq(api->caps(device, &caps, &err), NBL_E_UNKNOWN_FIELD, "caps: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: nbl_caps: extension type 77 is marked required but not known",
                     "message is %s", err.message);
    cr_assert_eq(api->close(device, NULL), NBL_OK, "close");
}
