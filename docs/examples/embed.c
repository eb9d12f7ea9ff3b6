/* SPDX-License-Identifier: Apache-2.0 */
/* One decode step over a 4-bit KV cache. Links nothing of nibble: cc -Iabi/include docs/examples/embed.c -ldl */
#include <dlfcn.h>
#include <nibble/nibble.h>
#include <stdio.h>

#define VIEW(x, heads) {.data = (x), .dtype = NBL_F32, .rank = 3, .shape = {sizeof(x) / sizeof *(x), (heads), 128}}
#define SIZED(type) .struct_size = sizeof(type)

/* Tensors [tokens][heads][dim] in the backend's memory; the simulator's is ordinary memory. */
static float k[1000][2][128], v[1000][2][128], q[1][8][128], o[1][8][128];

int main(int argc, char **argv)
{
    for (int i = 0; i < 1000 * 2 * 128; i++) { /* only token 700 holds the key that q asks for */
        k[i / 256][i / 128 % 2][i % 128] = i / 256 == 700 ? 1.0f : 0.0f;
        v[i / 256][i / 128 % 2][i % 128] = (float)(i / 256) / 1000.0f;
    }
    for (int i = 0; i < 8 * 128; i++)
        q[0][i / 128][i % 128] = 2.0f;

    nbl_get_api_fn get_api = NULL;
    void *library = dlopen(argc > 1 ? argv[1] : "libnibble.so.1", RTLD_NOW);
    if (!library || !(*(void **)&get_api = dlsym(library, "nbl_get_api")))
        return puts(dlerror()), 1;

    const nbl_api_v1 *nbl;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_cache *cache;
    uint64_t seq;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_recipe r = NBL_INIT(nbl_recipe);
    nbl_load_options load = {SIZED(nbl_load_options), .backend = "sim"};
    if (get_api(NULL, &nbl, &err) || nbl->load(&load, &runtime, NULL, &err) ||
        nbl->open(runtime, NULL, &device, &err) || nbl->recipe_parse("kv4", 128, 128, &r, &err))
        return puts(err.message), 1;

    nbl_cache_config config = {SIZED(nbl_cache_config), .k_format = r.k_format, .v_format = r.v_format,
                               .sink_tokens = r.sink_tokens, .sequences_max = 1, .tokens_max = 1000};
    config.shape = (nbl_kv_shape){SIZED(nbl_kv_shape), .layers = 1, .kv_heads = 2, .k_dim = 128, .v_dim = 128,
                                  .page_tokens = 64, .k_hadamard = r.k_hadamard, .v_hadamard = r.v_hadamard,
                                  .centering = r.centering};
    nbl_cache_append_args append = {SIZED(nbl_cache_append_args), .sequences = &seq, .batch = 1, .k = VIEW(k, 2),
                                    .v = VIEW(v, 2), .seq_indptr = (int32_t[]){0, 1000}};
    nbl_cache_attend_args attend = {SIZED(nbl_cache_attend_args), .sequences = &seq, .batch = 1, .q = VIEW(q, 8),
                                    .o = VIEW(o, 8), .q_indptr = (int32_t[]){0, 1}, .q_heads = 8};
    if (nbl->cache_create(device, &config, &cache, &err) || nbl->seq_create(cache, &seq, &err) ||
        nbl->cache_append(cache, &append, &err) || nbl->cache_attend(cache, &attend, &err))
        return puts(err.message), 1;
    printf("o = %.4f (%a)\n", (double)o[0][0][0], (double)o[0][0][0]);
    return nbl->cache_destroy(cache, &err) || nbl->close(device, &err) || nbl->runtime_destroy(runtime, &err);
}
