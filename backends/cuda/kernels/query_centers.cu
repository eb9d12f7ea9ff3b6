/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file query_centers.cu
 * @brief Centres of queries (NUM 7.5), before prepare: each is quantized in two parts, which are rows like those of
 * queries.
 *
 * A team of Dp/16 threads takes the centre of a query head of a sequence.
 */
#include "../attend.h"
#include "../tile/fp4_query.cuh"
#include "../tile/query16.cuh"

#define THREADS 256u
#define VECTORS_MAX (THREADS / 2u)

/* One part of a centre: x is what is left of it, and afterwards what this part leaves. All threads of the block call
 * it. */
static __device__ void put_part(const attend_params &p, float (&x)[BLOCK16], uint64_t row, uint32_t team, uint32_t b,
                                uint32_t *slot, bool active, uint32_t sequence, uint32_t kv_head,
                                const block16_centering &centering)
{
    uint8_t *to = p.center_codes + row * p.k_dim_padded;
    float rest[BLOCK16];
    fp4_block block;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        rest[i] = x[i];
    }
    fp4_quantize(p, x, team, b, slot, &block);
    if (active) {
        fp4_store_block(to, p.k_dim_padded, p.fp4_format, b, block);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        const float value = active ? fp4_row_value(to, p.k_dim_padded, p.fp4_format, b * BLOCK16 + i) : 0.0f;
        x[i] = rest[i] - value * nbl_pow2(block.row_exponent);
    }
    if (active && b == 0) {
        p.center_queries[row] = fp4_row_query(p, to, block.row_exponent, sequence, kv_head, centering);
    }
}

static __global__ void __launch_bounds__(THREADS, 1) centers_kernel(const __grid_constant__ attend_params p)
{
    __shared__ uint32_t slots[VECTORS_MAX];
    const uint32_t team = p.k_dim_padded / BLOCK16, vectors = THREADS / team;
    const uint32_t place = threadIdx.x / team, b = threadIdx.x % team;
    const uint64_t index = (uint64_t)blockIdx.x * vectors + place;
    const bool active = place < vectors && index < (uint64_t)p.batch * p.q_heads;
    const uint32_t sequence = active ? (uint32_t)(index / p.q_heads) : 0u;
    const uint32_t head = active ? (uint32_t)(index % p.q_heads) : 0u, kv_head = head / p.group_rows;
    block16_centering centering = {NULL, NULL, NULL};
    if (p.centering) {
        centering = block16_centering_of(&p.centers, sequence, p.kv_heads, kv_head, p.k_dim, p.status);
    }
    float x[BLOCK16];
    query16_read(p, p.q_centers, sequence, head, active, b, x);
    query16_transform(p, b, centering, x);
    for (uint32_t part = 0; part < 2u; ++part) {
        put_part(p, x, 2u * index + part, team, b, &slots[min(place, vectors - 1u)], active, sequence, kv_head,
                 centering);
    }
}

extern "C" cudaError_t nbl_cuda_attend_centers(const attend_params *p, cudaStream_t stream)
{
    const uint64_t vectors = THREADS * BLOCK16 / p->k_dim_padded;
    const uint64_t centers = (uint64_t)p->batch * p->q_heads;
    centers_kernel<<<(uint32_t)((centers + vectors - 1u) / vectors), THREADS, 0, stream>>>(*p);
    return cudaGetLastError();
}
