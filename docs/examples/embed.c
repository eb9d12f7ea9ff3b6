/* SPDX-License-Identifier: Apache-2.0 */
/* One decode step over a 4-bit KV cache. Links nothing of nibble: cc embed.c $(pkg-config --cflags nibble) -ldl */
#include <nibble/nibble_client.h>

#define VIEW(x, heads) nbl_client_tensor(x, NBL_F32, sizeof(x) / sizeof *(x), heads, 128)

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

    nbl_client nbl;
    nbl_cache *cache;
    uint64_t seq;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_append_args append = {.struct_size = sizeof append, .sequences = &seq, .batch = 1, .k = VIEW(k, 2),
                                    .v = VIEW(v, 2), .seq_indptr = (int32_t[]){0, 1000}};
    nbl_cache_attend_args attend = {.struct_size = sizeof attend, .sequences = &seq, .batch = 1, .q = VIEW(q, 8),
                                    .o = VIEW(o, 8), .q_indptr = (int32_t[]){0, 1}, .q_heads = 8};
    if (nbl_client_open(&nbl, argc > 1 ? argv[1] : NULL, &err) || nbl_client_device(&nbl, "sim", &err) ||
        nbl_client_cache(&nbl, "default", 1, 2, 128, 1, 1000, &cache, &err) || nbl.api->seq_create(cache, &seq, &err) ||
        nbl.api->cache_append(cache, &append, &err) || nbl.api->cache_attend(cache, &attend, &err))
        return puts(err.message), 1;
    printf("o = %.4f (%a)\n", (double)o[0][0][0], (double)o[0][0][0]);
    return nbl.api->cache_destroy(cache, &err) || nbl_client_close(&nbl, &err);
}
