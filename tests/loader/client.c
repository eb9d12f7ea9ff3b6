/* SPDX-License-Identifier: Apache-2.0 */
/* nibble_client.h: what it says when it cannot, and that it leaves the client closed then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "nibble/nibble_client.h"

TestSuite(client, .init = clean_env, .timeout = 60);

static void expect_open_refused(const char *path, nbl_status status, const char *message)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    memset(&client, 0x5a, sizeof client);
    cr_assert_eq(nbl_client_open(&client, path, &err), status, "status is %d: %s", err.status, err.message);
    cr_assert_str_eq(err.message, message, "message is %s", err.message);
    cr_assert_eq(err.status, status, "err.status is %d", err.status);
    cr_assert(!client.api && !client.library && !client.runtime && !client.device, "the client is not closed");
    cr_assert_eq(nbl_client_open(&client, path, NULL), status, "without an error struct");
    cr_assert_eq(nbl_client_close(&client, &err), NBL_OK, "a closed client cannot be closed");
}

Test(client, library_missing)
{
    expect_open_refused("/nowhere/libnibble.so.1", NBL_E_NOT_FOUND,
                        "nibble: libnibble cannot be opened: /nowhere/libnibble.so.1: cannot open shared object file: "
                        "No such file or directory");
    expect_open_refused("", NBL_E_NOT_FOUND, "nibble: libnibble cannot be opened: the path is empty");
}

Test(client, library_that_is_another)
{
    expect_open_refused(PLUGINS "/good/libnibble-backend-mock.so.1", NBL_E_ABI,
                        "nibble: not a libnibble: " PLUGINS
                        "/good/libnibble-backend-mock.so.1: undefined symbol: nbl_get_api");
}

Test(client, error_struct_too_short_is_left_alone)
{
    nbl_client client;
    nbl_error err, before;
    memset(&err, 0x5a, sizeof err);
    err.struct_size = 24;
    before = err;
    cr_assert_eq(nbl_client_open(&client, "", &err), NBL_E_NOT_FOUND, "status");
    cr_assert_eq(memcmp(&err, &before, sizeof err), 0, "a short error struct was written");
}

Test(client, life)
{
    nbl_client client, second;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_caps caps = NBL_INIT(nbl_caps);
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", PLUGINS "/good", 1), 0, "setenv");
    cr_assert_eq(nbl_client_open(&client, LIBRARY_DIR "/libnibble.so.1", &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_open(&second, LIBRARY_DIR "/libnibble.so.1", &err), NBL_OK, "%s", err.message);
    cr_assert_eq(client.api, second.api, "two openings give two tables");
    cr_assert(NBL_CLIENT_HAS(client.api, cache_attend), "the last slot of 1.0 is not there");
    cr_assert_eq(nbl_client_device(&client, "nosuch", &err), NBL_E_NOT_FOUND, "%s", err.message);
    cr_assert(!client.runtime && !client.device, "a failed call left something open");
    cr_assert_eq(nbl_client_device(&client, "mock", &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_device(&client, "mock", &err), NBL_E_STATE, "a second device");
    cr_assert_str_eq(err.message, "nibble: the client has a device", "message is %s", err.message);
    cr_assert_eq(client.api->caps(client.device, &caps, &err), NBL_OK, "%s", err.message);
    cr_assert_str_eq(caps.device_name, "mock 0", "the device is %s", caps.device_name);
    cr_assert_eq(nbl_client_close(&second, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_close(&client, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_close(&client, &err), NBL_OK, "closing twice");
}

Test(client, device_that_cannot_be_opened)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", PLUGINS "/nodevice", 1), 0, "setenv");
    cr_assert_eq(nbl_client_use(&client, nbl_get_api, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_device(&client, NULL, &err), NBL_E_DEVICE, "%s", err.message);
    cr_assert_str_eq(err.message, "nibble: cuda: no device here", "message is %s", err.message);
    cr_assert(!client.runtime && !client.device, "a failed call left something open");
    cr_assert_eq(nbl_client_close(&client, &err), NBL_OK, "%s", err.message);
}

Test(client, recipe_that_does_not_exist)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_policy policy;
    nbl_cache_config config;
    memset(&config, 0x5a, sizeof config);
    const nbl_cache_config before = config;
    cr_assert_eq(nbl_client_use(&client, nbl_get_api, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_config(&client, "kv3", 1, 1, 64, 1, 64, &policy, &config, &err), NBL_E_NOT_FOUND, "%s",
                 err.message);
    cr_assert_eq(memcmp(&config, &before, sizeof config), 0, "a failed call wrote the configuration");
    cr_assert_eq(nbl_client_config(&client, "kv4", 2, 3, 64, 5, 7, &policy, &config, &err), NBL_OK, "%s", err.message);
    cr_assert(config.shape.layers == 2 && config.shape.kv_heads == 3 && config.shape.k_dim == 64 &&
                  config.shape.v_dim == 64 && config.sequences_max == 5 && config.tokens_max == 7,
              "the configuration is another");
    cr_assert(config.rules == policy.rules && config.rule_count == 0, "kv4 has rules");
}

Test(client, policy_of_those_who_name_none)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_policy policy;
    nbl_cache_config config;
    cr_assert_eq(nbl_client_use(&client, nbl_get_api, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(nbl_client_config(&client, NULL, 2, 3, 64, 5, 7, &policy, &config, &err), NBL_OK, "%s", err.message);
    cr_assert(config.k_format == NBL_INT4P && config.v_format == NBL_INT4P && config.sink_tokens == 64, "not kv4");
    cr_assert_eq(config.rule_count, 1, "%u rules", config.rule_count);
    cr_assert_eq(config.rules, policy.rules, "the rules lie elsewhere");
    cr_assert(config.rules[0].scope == NBL_SCOPE_RECENT && config.rules[0].tokens == 128, "no recent window");
}
