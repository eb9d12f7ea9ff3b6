/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <string.h>

static const nbl_api_v1 *api_get(void)
{
    const nbl_api_v1 *api = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(nbl_get_api(NULL, &api, &err), NBL_OK);
    return api;
}

Test(cache_recipe, names_are_those_of_F8)
{
    static const struct {
        const char *name;
        uint32_t q, k, v, sinks;
    } rows[] = {{"qk4v8", NBL_Q4, NBL_MXFP4, NBL_INT8, 64},
                {"mxkv4", NBL_Q8, NBL_MXFP4, NBL_MXFP4, 64},
                {"kv4", NBL_Q8, NBL_INT4P, NBL_INT4P, 64},
                {"k4v8", NBL_Q8, NBL_INT4P, NBL_INT8, 64},
                {"kv8", NBL_Q8, NBL_INT8, NBL_INT8, 0}};
    const nbl_api_v1 *api = api_get();
    nbl_error err = NBL_INIT(nbl_error);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        nbl_recipe r = NBL_INIT(nbl_recipe);
        EXPECT(api->recipe_parse(rows[i].name, 128, 128, &r, &err), NBL_OK);
        cr_assert_str_eq(r.name, rows[i].name, "name %s", r.name);
        cr_assert(r.q_format == rows[i].q && r.k_format == rows[i].k && r.v_format == rows[i].v, "%s: formats", r.name);
        cr_assert_eq(r.sink_tokens, rows[i].sinks, "%s: %u sinks", r.name, r.sink_tokens);
        cr_assert_eq(r.centering, NBL_CENTERING_ALL, "%s: centering %u", r.name, r.centering);
    }
}

Test(cache_recipe, hadamard_blocks_fit_the_dimensions)
{
    static const struct {
        const char *name;
        uint32_t k_dim, v_dim, k, v;
    } rows[] = {{"kv4", 128, 128, 128, 128}, {"kv4", 576, 512, 64, 256},  {"kv4", 80, 72, 16, 8},
                {"kv4", 256, 96, 256, 32},   {"k4v8", 192, 128, 64, 128}, {"mxkv4", 128, 128, 32, 32},
                {"mxkv4", 80, 80, 16, 16},   {"kv8", 128, 128, 128, 128}};
    const nbl_api_v1 *api = api_get();
    nbl_error err = NBL_INIT(nbl_error);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        nbl_recipe r = NBL_INIT(nbl_recipe);
        EXPECT(api->recipe_parse(rows[i].name, rows[i].k_dim, rows[i].v_dim, &r, &err), NBL_OK);
        cr_assert(r.k_hadamard == rows[i].k && r.v_hadamard == rows[i].v, "%s %u %u: %u and %u", rows[i].name,
                  rows[i].k_dim, rows[i].v_dim, r.k_hadamard, r.v_hadamard);
    }
}

Test(cache_recipe, modifiers)
{
    const nbl_api_v1 *api = api_get();
    nbl_error err = NBL_INIT(nbl_error);
    nbl_recipe r = NBL_INIT(nbl_recipe);
    EXPECT(api->recipe_parse("kv4,hadamard=16,vhadamard=0,center=0,sinks=128", 128, 64, &r, &err), NBL_OK);
    cr_assert(r.k_hadamard == 16 && r.v_hadamard == 0 && r.centering == 0 && r.sink_tokens == 128, "values");
    cr_assert_str_eq(r.name, "kv4", "name %s", r.name);
    EXPECT(api->recipe_parse("kv8,sinks=0,center=1", 64, 64, &r, &err), NBL_OK);
    cr_assert(r.centering == 1 && r.sink_tokens == 0, "values");
    EXPECT(api->recipe_parse("mpfa", 64, 64, &r, &err), NBL_OK);
    cr_assert(r.centering == NBL_CENTERING_MEAN && r.q_centering == 1, "mpfa centres Q and K");
    EXPECT(api->recipe_parse("mpfa,qcenter=0", 64, 64, &r, &err), NBL_OK);
    cr_assert(r.centering == NBL_CENTERING_MEAN && r.q_centering == 0, "mpfa centres K");
}

Test(cache_recipe, refusals)
{
    static const struct {
        const char *name;
        nbl_status status;
        const char *text;
    } rows[] = {{"", NBL_E_NOT_FOUND, "recipe \"\" is unknown (known: qk4v8"},
                {"kv", NBL_E_NOT_FOUND, "recipe \"kv\""},
                {"kv44", NBL_E_NOT_FOUND, "recipe \"kv44\""},
                {"KV4", NBL_E_NOT_FOUND, "recipe \"KV4\""},
                {"kv4,", NBL_E_INVALID, "recipe modifier \"\" is unknown"},
                {"kv4,,center=1", NBL_E_INVALID, "recipe modifier \"\" is unknown"},
                {"kv4,color=1", NBL_E_INVALID, "recipe modifier \"color=1\" is unknown"},
                {"kv4,center", NBL_E_INVALID, "recipe modifier \"center\" is unknown"},
                {"kv4,center=", NBL_E_INVALID, "recipe modifier \"center=\" has no number"},
                {"kv4,center=4", NBL_E_INVALID, "recipe modifier center is 4 (allowed: 0 to 3)"},
                {"kv4,center=-1", NBL_E_INVALID, "has no number"},
                {"mpfa,qcenter=2", NBL_E_INVALID, "recipe modifier qcenter is 2 (allowed: 0 to 1)"},
                {"kv4,qcenter=1", NBL_E_INVALID, "recipe modifier qcenter is 1 (allowed: 0 to 0)"},
                {"kv4,center=1,center=1", NBL_E_INVALID, "comes twice"},
                {"kv4,hadamard=24", NBL_E_INVALID, "recipe modifier hadamard is 24"},
                {"kv4,hadamard=256", NBL_E_INVALID, "dividing 128"},
                {"kv4,vhadamard=4", NBL_E_INVALID, "recipe modifier vhadamard is 4"},
                {"kv4,sinks=99999999", NBL_E_INVALID, "recipe modifier sinks is 99999999"},
                {"kv4,sinks=4294967296", NBL_E_INVALID, "has no number"},
                {"kv4,sinks= 4", NBL_E_INVALID, "has no number"}};
    const nbl_api_v1 *api = api_get();
    nbl_error err = NBL_INIT(nbl_error);
    nbl_recipe r = NBL_INIT(nbl_recipe);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        EXPECT(api->recipe_parse(rows[i].name, 128, 128, &r, &err), rows[i].status);
        cr_assert(strstr(err.message, rows[i].text) != NULL, "\"%s\" is not in \"%s\"", rows[i].text, err.message);
    }
    EXPECT(api->recipe_parse(NULL, 128, 128, &r, &err), NBL_E_INVALID);
    EXPECT(api->recipe_parse("kv4", 0, 128, &r, &err), NBL_E_INVALID);
    EXPECT(api->recipe_parse("kv4", 128, 100, &r, &err), NBL_E_INVALID);
    EXPECT(api->recipe_parse("kv4", 584, 128, &r, &err), NBL_E_INVALID);
    EXPECT(api->recipe_parse("kv4", 128, 128, NULL, &err), NBL_E_INVALID);
    cr_assert_eq(r.k_format, 0, "output written");
}
