/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a recipe: it is refused in words, or stands for a cache that can be planned. The first two bytes choose
 * the head dimensions. */
#include "fuzz.h"

#include <nibble/nibble.h>
#include <string.h>

static void check_plan(const nbl_api_v1 *api, const nbl_recipe *recipe, uint32_t k_dim, uint32_t v_dim)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    nbl_cache_config config = NBL_INIT(nbl_cache_config);
    config.shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    config.shape.layers = 1;
    config.shape.kv_heads = 1;
    config.shape.k_dim = k_dim;
    config.shape.v_dim = v_dim;
    config.shape.page_tokens = 16;
    config.shape.k_hadamard = recipe->k_hadamard;
    config.shape.v_hadamard = recipe->v_hadamard;
    config.shape.centering = recipe->centering;
    config.k_format = recipe->k_format;
    config.v_format = recipe->v_format;
    config.sink_tokens = recipe->sink_tokens;
    config.sequences_max = 1;
    config.tokens_max = 1000;
    nbl_status status = api->cache_plan(&config, &stats, &err);
    if (status != NBL_OK)
        fprintf(stderr, "%s\n", err.message);
    FUZZ_REQUIRE(status == NBL_OK);
    FUZZ_REQUIRE(stats.total_bytes > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nbl_api_v1 *api = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_recipe recipe = NBL_INIT(nbl_recipe);
    FUZZ_REQUIRE(nbl_get_api(NULL, &api, &err) == NBL_OK);
    if (size < 2)
        return 0;
    uint32_t k_dim = 16u + 8u * (data[0] % 71u), v_dim = 16u + 8u * (data[1] % 63u);
    char *name = malloc(size - 1);
    FUZZ_REQUIRE(name != NULL);
    memcpy(name, data + 2, size - 2);
    name[size - 2] = '\0';
    if (api->recipe_parse(name, k_dim, v_dim, &recipe, &err) == NBL_OK) {
        check_plan(api, &recipe, k_dim, v_dim);
    } else {
        FUZZ_REQUIRE(err.message[0] != '\0' && strpbrk(err.message, "\n\r") == NULL);
        FUZZ_REQUIRE(recipe.k_format == 0 && recipe.v_format == 0); /* untouched */
    }
    free(name);
    return 0;
}
