/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill_wgmma.cu
 * @brief Second step of a prefill on sm_90a: attention over tile images (tile/prefill.cuh, NUM 5.4 to 5.7).
 *
 * A block per multiprocessor takes items from a counter. One warpgroup loads: a thread of it takes items and asks for
 * images, one bulk copy each, into a ring; the other warps fetch query rows, one item ahead. Two warpgroups compute, 64
 * rows each. Per tile a thread of theirs holds the 64 scores, the 64 sums of P V, 64 elements of O and 16 words of P:
 *
 *     softmax(j)    P V(j) begins    Q K(j + 1) begins    P V(j) ends    O += ...    Q K(j + 1) ends
 *
 * The stream of tiles does not stop between items. Chunks before the one at hand are merged in shared memory. LSE of an
 * item is left to the warps that fetch.
 */
#include "../ptx/wgmma.cuh"
#include "../tile/launch.cuh"
#include "../tile/prefill.cuh"
#include "prefill.h"

#define LOADERS 128u
#define CONSUMERS 256u
#define THREADS (LOADERS + CONSUMERS)
#define QUERY_LOADERS (LOADERS - 32u)
#define STAGES 3u
#define LOADER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#define LOADER_BARRIER 1u
#define SUMS_IN_TURN 7   /* groups of 16 tokens whose weights are summed up within the turn, the others under P V */
#define WEIGH_BARRIER 2u /* and the one after it: a warpgroup's turn to weigh */
#define IDLE 100u        /* nanoseconds that a loading thread sleeps; a tile takes over a thousand */

/* Registers are taken from what the block was launched with: more than there are would be waited for forever. */
static_assert(LOADERS * LOADER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= THREADS * (65536u / THREADS / 8u * 8u),
              "registers of a block");

namespace
{

/* Shared memory of a block. */
template <int KD, int VD> struct alignas(1024) memory {
    struct alignas(1024) stage {
        uint8_t image[prefill_image<KD, VD>::bytes];
        uint64_t full, empty;
    } stages[STAGES];
    alignas(1024) uint8_t queries[2][PREFILL_ROWS * KD]; /* images of rows of KD bytes */
    float4 total[VD / 8][CONSUMERS];
    prefill_row rows[2][PREFILL_ROWS];
    float2 ends[2][PREFILL_ROWS]; /* M and L of rows that are done, for their LSE */
    prefill_item items[2];
    prefill_item next; /* of a loading thread, as is the unit of the item before */
    uint32_t unit;
    uint32_t table[PREFILL_STEPS];
    uint64_t item_full[2], item_empty[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ------------------------------------------------------------------------------------------------ loading */

/* Place in the ring, in bytes, and the parity of its use. */
template <int KD, int VD> struct ring_place {
    uint32_t at;
    uint32_t parity;

    __device__ __forceinline__ void next()
    {
        constexpr uint32_t step = sizeof(typename memory<KD, VD>::stage);
        const bool wraps = at == (STAGES - 1u) * step;
        at = wraps ? 0u : at + step;
        parity ^= wraps ? 1u : 0u;
    }
    __device__ __forceinline__ typename memory<KD, VD>::stage &of(memory<KD, VD> &m) const
    {
        return *(typename memory<KD, VD>::stage *)(void *)((uint8_t *)m.stages + at);
    }
};

/* LSE of the rows of an item that is done, from its slot. */
template <int KD, int VD>
CUDA_DEVICE void write_ended(const attend_params &p, const memory<KD, VD> &m, uint32_t slot, uint32_t rows)
{
    const uint32_t wanted = p.lse.data != NULL && !p.split ? rows : 0u;
#pragma unroll 1
    for (uint32_t i = ptx_thread() - (LOADERS - QUERY_LOADERS); i < wanted; i += QUERY_LOADERS) {
        const prefill_row &row = m.rows[slot][i];
        const nbl_state_head head = {m.ends[slot][i].x, m.ends[slot][i].y, row.offset, 0.0f};
        prefill_write_lse(p, row.token, row.head, head);
    }
}

/* Query rows and what the computing warps must know of them, into a slot. */
template <int KD, int VD>
CUDA_DEVICE void load_queries(const attend_params &p, memory<KD, VD> &m, const prefill_item &it, uint32_t slot)
{
    constexpr uint32_t pieces = KD / 16u, step = QUERY_LOADERS / pieces;
    const cuda_sequence s = p.sequences[it.sequence];
    const uint32_t first = ptx_thread() - (LOADERS - QUERY_LOADERS), piece = first % pieces;
    prefill_query_walk w = prefill_query_walk_from(p, it, s, first / pieces, step, piece);
    for (uint32_t i = first / pieces; i < PREFILL_ROWS; i += step) { /* all of them are on the way together */
        ptx_cp_async_16_zfill(ptx_shared_address(m.queries[slot] + prefill_piece<KD>(i, piece)),
                              i < w.rows ? w.from : p.codes, i < w.rows ? 16u : 0u);
        prefill_query_step(w, p.group_rows);
    }
    for (uint32_t i = first; i < PREFILL_ROWS; i += QUERY_LOADERS) {
        m.rows[slot][i] = prefill_row_of(p, it, s, i);
    }
    ptx_cp_async_commit();
    ptx_cp_async_wait<0>();
    ptx_fence_proxy_async();
}

/* Items, two slots ahead of their use, by three warps. The next one is taken before its slot is free: only its rows are
 * waited for then. Before that the threads write LSE of the item that had the slot. */
template <int KD, int VD> CUDA_DEVICE void load_items(const attend_params &p, memory<KD, VD> &m)
{
    const bool takes = threadIdx.x == LOADERS - QUERY_LOADERS;
    uint32_t n = 0;
    for (;; ++n) {
        const uint32_t slot = n % 2u;
        if (takes) {
            m.next = prefill_item_of(p, atomicAdd(p.prefill_items, 1u), &m.unit);
        }
        ptx_mbarrier_wait_idle(ptx_shared_address(&m.item_empty[slot]), n / 2u % 2u ^ 1u, 5u * IDLE);
        write_ended(p, m, slot, m.items[slot].rows);
        __syncwarp();
        wgmma_bar_sync(LOADER_BARRIER, QUERY_LOADERS);
        if (takes) {
            m.items[slot] = m.next;
        }
        __syncwarp();
        wgmma_bar_sync(LOADER_BARRIER, QUERY_LOADERS);
        const prefill_item it = m.items[slot];
        if (it.tile_end > 0) {
            load_queries(p, m, it, slot);
        }
        ptx_mbarrier_arrive(ptx_shared_address(&m.item_full[slot]));
        if (it.tile_end == 0) {
            break;
        }
    }
    ++n;
    ptx_mbarrier_wait_idle(ptx_shared_address(&m.item_empty[n % 2u]), n / 2u % 2u ^ 1u, IDLE);
    write_ended(p, m, n % 2u, m.items[n % 2u].rows);
}

/* The images of all items, by one thread. */
template <int KD, int VD> CUDA_DEVICE void load_images(const attend_params &p, memory<KD, VD> &m)
{
    constexpr uint32_t bytes = prefill_image<KD, VD>::bytes;
    const uint64_t policy = ptx_policy_evict_last();
    ring_place<KD, VD> at = {0, 0};
    for (uint32_t n = 0;; ++n) {
        ptx_mbarrier_wait_idle(ptx_shared_address(&m.item_full[n % 2u]), n / 2u % 2u, IDLE);
        const prefill_item &it = m.items[n % 2u];
        uint32_t tiles = it.tile_end - it.tile_first;
        if (it.tile_end == 0) { /* a stage without contents, for the products that nobody needs */
            ptx_mbarrier_wait_idle(ptx_shared_address(&at.of(m).empty), at.parity ^ 1u, IDLE);
            ptx_mbarrier_arrive(ptx_shared_address(&at.of(m).full));
            return;
        }
        const uint8_t *from = p.images + ((uint64_t)it.unit * p.image_tiles + it.tile_first) * bytes;
        ptx_mbarrier_arrive(ptx_shared_address(&m.item_empty[n % 2u]));
        for (; tiles > 0; --tiles) {
            const uint32_t full = ptx_shared_address(&at.of(m).full);
            ptx_mbarrier_wait_idle(ptx_shared_address(&at.of(m).empty), at.parity ^ 1u, IDLE);
            ptx_mbarrier_arrive_expect(full, bytes);
            ptx_bulk_copy(ptx_shared_address(at.of(m).image), from, bytes, full, policy);
            from += bytes;
            at.next();
        }
    }
}

/* ------------------------------------------------------------------------------------------------ products */

/* s = Q K, 64 rows by 128 tokens, a group of products of its own. */
template <int KD> CUDA_DEVICE void begin_scores(int32_t (&s)[64], uint64_t q, uint64_t k)
{
    wgmma_fence();
    wgmma_ss<0>(s, q, k);
#pragma unroll
    for (uint32_t step = 1; step < KD / 32u; ++step) {
        q = wgmma_tile_next(q);
        k = wgmma_tile_next(k);
        wgmma_ss<1>(s, q, k);
    }
    wgmma_commit();
}

/* a = P V, 64 rows by VD elements. */
template <int VD> CUDA_DEVICE void begin_sums(int32_t (&a)[VD / 2], const uint32_t (&packed)[16], uint64_t v)
{
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        wgmma_us(a, packed + 4 * step, v, step != 0);
        v = wgmma_tile_next(v);
    }
}

/* ------------------------------------------------------------------------------------------------ computing */

/* What a warp of the computing warpgroups walks over. */
template <int KD, int VD> struct walk {
    uint32_t tile;
    uint32_t stop; /* tile before which something is to be done: a chunk, the item or the open tiles begin or end */
    uint32_t open; /* 1: the rows see the whole of all tiles before that */
    uint32_t end, open_first, open_end; /* of the item at hand */
    uint32_t items;                     /* begun so far; the item at hand has slot (items - 1) % 2 */
    uint32_t queries;                   /* of the item at hand: lower half of a descriptor */
    ring_place<KD, VD> at;
};

/* The same number in all threads, known to be: a uniform register can hold it. */
CUDA_DEVICE uint32_t uniform(uint32_t x)
{
    return __reduce_max_sync(FULL_WARP, x);
}

/* The next item. */
template <int KD, int VD> CUDA_DEVICE void set_item(walk<KD, VD> &w, const prefill_item &it)
{
    w.tile = uniform(it.tile_first);
    w.end = uniform(it.tile_end);
    w.open_first = uniform(it.open_first);
    w.open_end = uniform(it.open_end);
    w.items++;
}

/* How far tiles are alike. */
template <int KD, int VD> CUDA_DEVICE void set_stop(walk<KD, VD> &w)
{
    const uint32_t edge = w.tile < w.open_first ? w.open_first : w.open_end;
    const uint32_t end = min(w.end, (w.tile | (CUDA_CHUNK_TILES - 1u)) + 1u);
    w.open = w.tile >= w.open_first && w.tile < w.open_end ? 1u : 0u;
    w.stop = edge > w.tile ? min(end, edge) : end;
}

/* Waits for item n of the block. */
template <int KD, int VD> CUDA_DEVICE void wait_item(memory<KD, VD> &m, uint32_t n)
{
    ptx_mbarrier_wait(ptx_shared_address(&m.item_full[n % 2u]), n / 2u % 2u);
}

/* Rows of the warp in a slot; worked out anew, so that no register holds it. */
template <int KD, int VD> CUDA_DEVICE prefill_row *rows_of_warp(memory<KD, VD> &m, uint32_t slot)
{
    return &m.rows[slot][(ptx_thread() - LOADERS) / 32u * 16u];
}

/* Their image. */
template <int KD, int VD> CUDA_DEVICE const uint8_t *queries_of_warp(const memory<KD, VD> &m, uint32_t slot)
{
    return m.queries[slot] + (ptx_thread() - LOADERS) / 32u * 16u * KD;
}

/* O of the chunks before, the thread's own. */
template <int KD, int VD> CUDA_DEVICE prefill_total total_of_thread(memory<KD, VD> &m)
{
    return {&m.total[0][threadIdx.x - LOADERS], CONSUMERS};
}

/* The end of a chunk that others follow: to the total. Its item is none of a split call. */
template <int KD, int VD>
CUDA_DEVICE void end_chunk(memory<KD, VD> &m, const walk<KD, VD> &w, prefill_rows &r, float (&o)[VD / 2])
{
    prefill_row *rows = rows_of_warp(m, (w.items - 1u) % 2u);
    const prefill_total total = total_of_thread(m);
    const prefill_heads_merged merged = prefill_merge_chunk<true>(r, rows, total, o);
    prefill_keep_total(merged, rows, total, o);
    prefill_rows_clear(r, o);
}

/* Leaves LSE of the warp's rows to those that load. */
template <int KD, int VD>
CUDA_DEVICE void keep_ends(memory<KD, VD> &m, uint32_t slot, uint32_t first_row, const nbl_state_head (&heads)[2])
{
    const uint32_t lane = ptx_thread() % 32u;
    if (lane % PREFILL_LANES == 0) {
#pragma unroll
        for (uint32_t row = 0; row < 2u; ++row) {
            m.ends[slot][first_row + lane / PREFILL_LANES + 8u * row] = make_float2(heads[row].base, heads[row].sum);
        }
    }
}

/* The end of an item: to the workspace or to the output. */
template <int KD, int VD>
CUDA_DEVICE void end_item(const attend_params &p, memory<KD, VD> &m, const walk<KD, VD> &w, const prefill_rows &r,
                          float (&o)[VD / 2])
{
    const uint32_t slot = (w.items - 1u) % 2u;
    const uint32_t first_row = (ptx_thread() - LOADERS) / 32u * 16u;
    const prefill_item &it = m.items[slot];
    const prefill_row *rows = rows_of_warp(m, slot);
    if (p.split) {
        prefill_store_states(p, it, r, rows, first_row, o);
        return;
    }
    const prefill_heads_merged merged = prefill_merge_chunk<true>(r, rows, total_of_thread(m), o);
    nbl_state_head heads[2];
    prefill_end_heads(p, rows, merged, heads, o);
    keep_ends(m, slot, first_row, heads);
    prefill_finish(p, rows, it.rows > first_row ? it.rows - first_row : 0u, merged, heads, o);
}

/* The thread has read its part of a stage: a copy may write there. */
CUDA_DEVICE void free_stage(uint64_t &empty)
{
    ptx_fence_proxy_async();
    ptx_mbarrier_arrive(ptx_shared_address(&empty));
}

/* Barrier of the turn of the thread's warpgroup, or of the other one; not worked out anew in every tile. */
CUDA_DEVICE uint32_t turn_of(bool other)
{
    return ptx_keep(WEIGH_BARRIER + (other ? 2u - threadIdx.x / 128u : threadIdx.x / 128u - 1u));
}

/* The first turn is that of group 0. */
CUDA_DEVICE void begin_turns(uint32_t group)
{
    if (group == 1u) {
        wgmma_bar_arrive(WEIGH_BARRIER, CONSUMERS);
    }
}

/* MAY_SHARE: tiles may have one exponent for all tokens. */
template <bool MAY_SHARE, int KD, int VD> CUDA_DEVICE void compute(const attend_params &p, memory<KD, VD> &m)
{
    const uint32_t group = uniform(threadIdx.x / 128u - 1u);
    const uint32_t t = ptx_keep(threadIdx.x % PREFILL_LANES), own_turn = turn_of(false), other_turn = turn_of(true);
    const uint32_t k_low = wgmma_tile_low(ptx_shared_address(m.stages[0].image));
    const uint32_t v_low = k_low + prefill_image<KD, VD>::v_at / 16u;
    const uint32_t q_low = wgmma_tile_low(ptx_shared_address(m.queries[0])) + group * (64u * KD / 16u);
    int32_t s[64], a[VD / 2];
    float o[VD / 2], common;
    prefill_rows r;
    prefill_late late = {};
    wait_item(m, 0);
    if (m.items[0].tile_end == 0) {
        return;
    }
    walk<KD, VD> w = {};
    w.queries = q_low;
    set_item(w, m.items[0]);
    set_stop(w);
    prefill_rows_begin(r, rows_of_warp(m, 0));
    prefill_rows_clear(r, o);
    begin_turns(group);
    ptx_mbarrier_wait(ptx_shared_address(&m.stages[0].full), 0);
    common = prefill_common<KD, VD>(m.stages[0].image);
    const uint32_t k_high = uniform(wgmma_tile_high<KD>()), v_high = uniform(wgmma_tile_high<128>());
    begin_scores<KD>(s, wgmma_tile(q_low, k_high), wgmma_tile(k_low, k_high));
    for (;;) {
        wgmma_wait<0>();
        const uint32_t slot = (w.items - 1u) % 2u;
        typename memory<KD, VD>::stage &stage = w.at.of(m);
        const uint8_t *image = stage.image;
        const int32_t start = (int32_t)(w.tile * CUDA_TILE_TOKENS);
        const uint32_t v = v_low + w.at.at / 16u;
        uint32_t packed[16];
        float b[2], l[2];
        prefill_top top =
            prefill_logits<KD, VD, MAY_SHARE>(s, image, common, rows_of_warp(m, slot), w.open != 0, start, r, t);
        prefill_late_sum(r, late);
        if (top.unusual) {
            prefill_unusual<KD, VD>(s, queries_of_warp(m, slot), image, rows_of_warp(m, slot), start, r, o, top);
        }
        wgmma_bar_sync(own_turn, CONSUMERS);
        prefill_weights(s, top, m.table, packed, b);
        prefill_partial part = {};
        prefill_sum<KD, VD, 0, SUMS_IN_TURN>(s, image, t, part);
        wgmma_bar_arrive(other_turn, CONSUMERS);
        wgmma_fence();
        begin_sums<VD>(a, packed, wgmma_tile(v, v_high));
        wgmma_commit();
        prefill_sum<KD, VD, SUMS_IN_TURN, 8>(s, image, t, part);
        prefill_sum_up(part, l);
        const bool stops = w.tile + 1u == w.stop;
        if (stops && w.stop == w.end) {
            wait_item(m, w.items);
            w.queries = 2u * q_low + PREFILL_ROWS * KD / 16u - w.queries;
        }
        w.at.next(); /* after the last item a stage without contents */
        ptx_mbarrier_wait(ptx_shared_address(&w.at.of(m).full), w.at.parity);
        common = prefill_common<KD, VD>(w.at.of(m).image);
        begin_scores<KD>(s, wgmma_tile(w.queries, k_high), wgmma_tile(k_low + w.at.at / 16u, k_high));
        const float x[2] = {__shfl_xor_sync(FULL_WARP, l[0], 1), __shfl_xor_sync(FULL_WARP, l[1], 1)};
        wgmma_wait<1>();
        free_stage(stage.empty);
        prefill_add_tile(a, b, o);
        late = prefill_late_of(b, l, x);
        w.tile++;
        if (!stops) {
            continue;
        }
        prefill_late_sum(r, late);
        late = {};
        if (w.tile != w.end) {
            if (w.tile % CUDA_CHUNK_TILES == 0) {
                end_chunk(m, w, r, o);
            }
            set_stop(w);
            continue;
        }
        end_item(p, m, w, r, o);
        ptx_mbarrier_arrive(ptx_shared_address(&m.item_empty[slot]));
        if (m.items[slot ^ 1u].tile_end == 0) {
            break;
        }
        set_item(w, m.items[slot ^ 1u]);
        set_stop(w);
        prefill_rows_begin(r, rows_of_warp(m, slot ^ 1u));
        prefill_rows_clear(r, o);
    }
    wgmma_wait<0>();
}
#endif

/* ------------------------------------------------------------------------------------------------ kernel */

template <int KD, int VD, bool MAY_SHARE>
__global__ void __launch_bounds__(THREADS, 1) prefill_wgmma_kernel(const __grid_constant__ attend_params p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) uint8_t dynamic[];
    memory<KD, VD> &m = *reinterpret_cast<memory<KD, VD> *>(dynamic);
    if (threadIdx.x == 0) {
        m.unit = 0;
        for (uint32_t i = 0; i < STAGES; ++i) {
            ptx_mbarrier_init(ptx_shared_address(&m.stages[i].full), 1);
            ptx_mbarrier_init(ptx_shared_address(&m.stages[i].empty), CONSUMERS);
        }
        for (uint32_t i = 0; i < 2u; ++i) {
            m.items[i].rows = 0;
            ptx_mbarrier_init(ptx_shared_address(&m.item_full[i]), QUERY_LOADERS);
            ptx_mbarrier_init(ptx_shared_address(&m.item_empty[i]), CONSUMERS + 1u);
        }
        ptx_fence_mbarrier_init();
    }
    for (uint32_t i = threadIdx.x; i < PREFILL_STEPS; i += THREADS) {
        m.table[i] = nbl_exp2_table_device[i];
    }
    __syncthreads();
    ptx_grid_release();
    ptx_grid_wait();
    if (threadIdx.x < LOADERS) {
        wgmma_registers_fewer<LOADER_REGISTERS>();
        if (threadIdx.x >= LOADERS - QUERY_LOADERS) {
            load_items(p, m);
        } else if (threadIdx.x == 0) {
            load_images(p, m);
        }
    } else {
        wgmma_registers_more<CONSUMER_REGISTERS>();
        compute<MAY_SHARE>(p, m);
    }
#endif
}

template <int KD, int VD> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    constexpr uint32_t bytes = sizeof(memory<KD, VD>);
    void (*const kernel)(attend_params) = cuda_any_mxfp4(&p->pages, NBL_KIND_K) != 0
                                              ? prefill_wgmma_kernel<KD, VD, true>
                                              : prefill_wgmma_kernel<KD, VD, false>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    return launch_after(kernel, dim3(p->processors), THREADS, bytes, stream, p);
}

} // namespace

extern "C" cudaError_t nbl_cuda_prefill_wgmma(const attend_params *p, cudaStream_t stream)
{
    return cuda_prefill_dim(p->k_dim, p->v_dim) == 64u ? launch<64, 64>(p, stream) : launch<128, 128>(p, stream);
}
