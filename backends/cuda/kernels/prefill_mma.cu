/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill_mma.cu
 * @brief Second step of a prefill with mma.sync: attention over tile images (tile/prefill.cuh, NUM 5.4 to 5.7).
 *
 * A block of eight warps per multiprocessor takes items from a counter; a warp has 16 rows and both fragments in
 * registers, as in prefill_wgmma.cu. Images come through two stages filled by cp.async. Chunks before the one at hand
 * are merged in the workspace, so that 99 KB of shared memory are enough.
 */
#include "../tile/launch.cuh"
#include "../tile/prefill.cuh"
#include "prefill.h"

#define THREADS 256u
#define STAGES 2u

namespace
{

/* Shared memory of a block. */
template <int KD, int VD> struct alignas(128) memory {
    alignas(128) uint8_t images[STAGES][prefill_image<KD, VD>::bytes];
    alignas(128) uint8_t queries[PREFILL_ROWS * KD];
    prefill_row rows[PREFILL_ROWS];
    prefill_item item;
    uint32_t unit; /* of the item: thread 0 searches on from there */
    uint32_t table[PREFILL_STEPS];
};

/* Asks for a tile's image, if there is such a tile, and closes the group. */
template <int KD, int VD>
CUDA_DEVICE void ask_image(const attend_params &p, memory<KD, VD> &m, const prefill_item &it, uint32_t tile)
{
    constexpr uint32_t bytes = prefill_image<KD, VD>::bytes;
    if (tile < it.tile_end) {
        const uint8_t *from = p.images + ((uint64_t)it.unit * p.image_tiles + tile) * bytes;
        const uint32_t to = ptx_shared_address(m.images[tile % STAGES]);
        for (uint32_t i = threadIdx.x * 16u; i < bytes; i += THREADS * 16u) {
            ptx_cp_async_16(to + i, from + i);
        }
    }
    ptx_cp_async_commit();
}

template <int KD, int VD>
CUDA_DEVICE void load_queries(const attend_params &p, memory<KD, VD> &m, const prefill_item &it)
{
    constexpr uint32_t pieces = KD / 16u, step = THREADS / pieces;
    const cuda_sequence s = p.sequences[it.sequence];
    const uint32_t row = ptx_thread() / pieces, piece = ptx_thread() % pieces;
    prefill_query_walk w = prefill_query_walk_from(p, it, s, row, step, piece);
    if (threadIdx.x < PREFILL_ROWS) {
        m.rows[threadIdx.x] = prefill_row_of(p, it, s, threadIdx.x);
    }
    for (uint32_t i = row; i < PREFILL_ROWS; i += step) {
        *(uint4 *)(void *)(m.queries + prefill_piece<KD>(i, piece)) =
            i < w.rows ? *(const uint4 *)(const void *)w.from : make_uint4(0, 0, 0, 0);
        prefill_query_step(w, p.group_rows);
    }
}

/* s = A * B for the warp's 16 rows of A and the N rows of B, by mma.sync; rows of W bytes, both in images. */
template <int W, int N> CUDA_DEVICE void scores_of(int32_t (&s)[N / 2], uint32_t a, uint32_t first_row, uint32_t b)
{
    const uint32_t lane = ptx_thread() % 32u; /* anew, so that no register holds what follows from it */
    const uint32_t a_row = first_row + lane % 16u;
#pragma unroll
    for (int half = 0; half < W / 64; ++half) {
        uint32_t low[4], high[4];
        ptx_ldmatrix_x4(low, a + prefill_piece<W>(a_row, 4 * half + lane / 16u));
        ptx_ldmatrix_x4(high, a + prefill_piece<W>(a_row, 4 * half + 2u + lane / 16u));
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            uint32_t right[4];
            int32_t(&sums)[4] = reinterpret_cast<int32_t(&)[4]>(s[4 * j]);
            ptx_ldmatrix_x4(right, b + prefill_piece<W>(8 * j + lane % 8u, 4 * half + lane / 8u));
            if (half == 0) {
                sums[0] = sums[1] = sums[2] = sums[3] = 0;
            }
            uint32_t right_low[2] = {right[0], right[1]}, right_high[2] = {right[2], right[3]};
            ptx_mma_m16n8k32_ss(sums, low, right_low);
            ptx_mma_m16n8k32_ss(sums, high, right_high);
        }
    }
}

/* a = P V for the warp's 16 rows. */
template <int VD> CUDA_DEVICE void sums_of(int32_t (&a)[VD / 2], const uint32_t (&packed)[16], uint32_t v)
{
    const uint32_t lane = threadIdx.x % 32u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t low[4] = {packed[8 * half], packed[8 * half + 1], packed[8 * half + 2], packed[8 * half + 3]};
        const uint32_t high[4] = {packed[8 * half + 4], packed[8 * half + 5], packed[8 * half + 6],
                                  packed[8 * half + 7]};
#pragma unroll
        for (int i = 0; i < VD / 8; ++i) {
            uint32_t right[4];
            int32_t(&sums)[4] = reinterpret_cast<int32_t(&)[4]>(a[4 * i]);
            ptx_ldmatrix_x4(right, v + prefill_piece<128>(8 * i + lane % 8u, 4 * half + lane / 8u));
            if (half == 0) {
                sums[0] = sums[1] = sums[2] = sums[3] = 0;
            }
            const uint32_t right_low[2] = {right[0], right[1]}, right_high[2] = {right[2], right[3]};
            ptx_mma_m16n8k32_us(sums, low, right_low);
            ptx_mma_m16n8k32_us(sums, high, right_high);
        }
    }
}

/* Rows of the warp and their image; worked out anew, so that no register holds them. */
template <typename Memory> CUDA_DEVICE prefill_row *rows_of_warp(Memory &m)
{
    return &m.rows[ptx_thread() / 32u * 16u];
}

template <int KD, typename Memory> CUDA_DEVICE const uint8_t *queries_of_warp(const Memory &m)
{
    return &m.queries[ptx_thread() / 32u * 16u * KD];
}

/* The end of a chunk: to the workspace, to the total, or to the output. */
template <int N>
CUDA_DEVICE void end_chunk(const attend_params &p, const prefill_item &it, bool item_ends, prefill_rows &r,
                           prefill_row *rows, uint32_t first_row, float (&o)[N])
{
    float4 *totals = (float4 *)(void *)p.prefill_totals + (uint64_t)blockIdx.x * (N / 4) * THREADS;
    const prefill_total total = {totals + threadIdx.x, THREADS};
    if (p.split) {
        prefill_store_states(p, it, r, rows, first_row, o);
        return;
    }
    const prefill_heads_merged merged = prefill_merge_chunk<false>(r, rows, total, o);
    if (item_ends) {
        const uint32_t count = it.rows > first_row ? it.rows - first_row : 0u, lane = ptx_thread() % 32u;
        const uint32_t row = lane / PREFILL_LANES + (lane % 2u) * 8u; /* LSE: by lanes for one row, and the other */
        nbl_state_head heads[2];
        prefill_end_heads(p, rows, merged, heads, o);
        if (p.lse.data != NULL && lane % PREFILL_LANES < 2u && row < count) {
            prefill_write_lse(p, rows[row].token, rows[row].head, lane % 2u != 0 ? heads[1] : heads[0]);
        }
        prefill_finish(p, rows, count, merged, heads, o);
    } else {
        prefill_keep_total(merged, rows, total, o);
        prefill_rows_clear(r, o);
    }
}

/* 0, known only when l is: the products of P V begin after the softmax, not in the midst of it, where registers are
 * short. No l is negative. */
CUDA_DEVICE uint32_t after(const float (&l)[2])
{
    return (__float_as_uint(l[0]) | __float_as_uint(l[1])) >> 31;
}

template <int KD, int VD> CUDA_DEVICE void do_item(const attend_params &p, memory<KD, VD> &m, const prefill_item &it)
{
    prefill_rows r;
    int32_t s[64];
    float o[VD / 2];
    prefill_rows_begin(r, rows_of_warp(m));
    prefill_rows_clear(r, o);
    for (uint32_t tile = it.tile_first; tile < it.tile_end; ++tile) {
        const uint8_t *image = m.images[tile % STAGES];
        uint32_t packed[16];
        float b[2], l[2];
        ask_image(p, m, it, tile + 1u);
        ptx_cp_async_wait<1>();
        __syncthreads();
        scores_of<KD, 128>(s, ptx_shared_address(m.queries), ptx_thread() / 32u * 16u, ptx_shared_address(image));
        const int32_t start = (int32_t)(tile * CUDA_TILE_TOKENS);
        prefill_top top =
            prefill_logits<KD, VD, true>(s, image, prefill_common<KD, VD>(image), rows_of_warp(m),
                                         prefill_is_open(it, tile), start, r, threadIdx.x % PREFILL_LANES);
        if (top.unusual) {
            prefill_unusual<KD, VD>(s, queries_of_warp<KD>(m), image, rows_of_warp(m), start, r, o, top);
        }
        prefill_weights(s, top, m.table, packed, b);
        prefill_partial part = {};
        prefill_sum<KD, VD, 0, 8>(s, image, threadIdx.x % PREFILL_LANES, part);
        prefill_sum_up(part, l);
        prefill_add_sum(r, b, l);
        int32_t(&a)[VD / 2] = reinterpret_cast<int32_t(&)[VD / 2]>(s); /* the scores are done with */
        sums_of<VD>(a, packed, ptx_shared_address(image) + prefill_image<KD, VD>::v_at + after(l));
        prefill_add_tile(a, b, o);
        if (tile + 1u == it.tile_end || tile % CUDA_CHUNK_TILES == CUDA_CHUNK_TILES - 1u) {
            end_chunk(p, it, tile + 1u == it.tile_end, r, rows_of_warp(m), ptx_thread() / 32u * 16u, o);
        }
        __syncthreads();
    }
}

template <int KD, int VD>
__global__ void __launch_bounds__(THREADS, 1) prefill_mma_kernel(const __grid_constant__ attend_params p)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    memory<KD, VD> &m = *reinterpret_cast<memory<KD, VD> *>(dynamic);
    if (threadIdx.x == 0) {
        m.unit = 0;
    }
    m.table[threadIdx.x] = nbl_exp2_table_device[threadIdx.x];
    ptx_grid_release();
    ptx_grid_wait();
    for (;;) {
        if (threadIdx.x == 0) {
            m.item = prefill_item_of(p, atomicAdd(p.prefill_items, 1u), &m.unit);
        }
        __syncthreads();
        const prefill_item &it = m.item;
        if (it.tile_end == 0) {
            return;
        }
        ask_image(p, m, it, it.tile_first);
        load_queries(p, m, it);
        __syncthreads();
        do_item(p, m, it);
        __syncthreads(); /* all have read where the item ends */
    }
}

template <int KD, int VD> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    constexpr uint32_t bytes = sizeof(memory<KD, VD>);
    static_assert(THREADS == PREFILL_STEPS, "a thread per entry of the table");
    cudaError_t error =
        cudaFuncSetAttribute(prefill_mma_kernel<KD, VD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    return launch_after(prefill_mma_kernel<KD, VD>, dim3(p->processors), THREADS, bytes, stream, p);
}

} // namespace

extern "C" cudaError_t nbl_cuda_prefill_mma(const attend_params *p, cudaStream_t stream)
{
    return cuda_prefill_dim(p->k_dim, p->v_dim) == 64u ? launch<64, 64>(p, stream) : launch<128, 128>(p, stream);
}
