/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blackwell_attend.cu
 * @brief attend of the Blackwell core for every valid call (NUM 7): E2M1 and block scales of Q and K, E4M3 P and V.
 *
 * A work item is a sequence, a kv head, up to 16 * M query rows, and one chunk (split) or all of them; a block of 128
 * threads does one. K and V never pass through shared memory: their pages hold the very words that a lane of the MMA
 * wants, 8 elements of a token in K (F3), 4 tokens of an element in V (F4), each read once by one lane. A warp
 * multiplies all rows with 32 tokens of a tile; P goes through shared memory; then a warp has a quarter of the columns
 * of O, whose accumulators stay in the tensor core's hands for a whole chunk.
 *
 *     x = mma_fp4(Q, K)  4 words of Q from shared memory, 2 of K from its page; a scale word for a lane's own token
 *     P = E4M3(2^(t - GRID + 8))          [16 * M][128] bytes
 *     O = mma_fp8(P, V)                   4 words of P from shared memory, 2 of V from its page
 *
 * The order of elements inside a group of 16 is that of the pages, for Q as well: it changes no sum (NUM 7.2). Two
 * barriers a tile: around P, and before that where a row's base may move. On architectures without these MMAs the same
 * kernel runs on their emulation (tile/blackwell_mma.cuh).
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/blackwell_mma.cuh"
#include "../tile/blackwell_tile.cuh"
#include "../tile/finish.cuh"
#include "../tile/launch.cuh"
#include "rowsum.h"

#define THREADS CUDA_TILE_TOKENS
#define WARPS (THREADS / 32u)
#define M_ROWS 16u                                    /* of an MMA */
#define UNIT 8u                                       /* columns of an MMA */
#define TOKEN_TILES (CUDA_TILE_TOKENS / WARPS / UNIT) /* n-tiles of a warp in Q K^T */
#define V_STEP 32u                                    /* tokens of an MMA of P V */
#define P_STRIDE (CUDA_TILE_TOKENS + 16u)             /* bytes; the words of 8 rows fall into different banks */
#define Q_PAD 4u                                      /* words, for the same */
#define SHARED_MAX (99u * 1024u)                      /* of a block, on the smallest GPUs that there are code for */

namespace
{

/* Shared memory of a block that does not depend on the dimensions. */
template <uint32_t M> struct alignas(16) fixed_memory {
    row_state row[M_ROWS * M];
    nbl_state_head chunk[M_ROWS * M]; /* at a chunk's end */
    nbl_merge_scale merge[M_ROWS * M];
    float sums[M_ROWS * M][NBL_PARTIAL_SUMS];
    float z_most[WARPS][M_ROWS * M];
    float t_most[WARPS][M_ROWS * M];
    uint8_t p[M_ROWS * M][P_STRIDE];
};

template <uint32_t M> struct memory {
    fixed_memory<M> *fixed;
    token_place (*place)[CUDA_TILE_TOKENS]; /* [2]: of this tile and of the next */
    uint32_t *q;                            /* [16 * M][q_stride] words of codes, then of scales */
    uint32_t q_stride;
    uint32_t steps;    /* of 64 elements in a row */
    float *stage;      /* rows of O, where places and queries were */
    float *y;          /* [slots][128] products of centres with the tile's K (NUM 7.5), or NULL */
    float *unit;       /* [16 * M] 2^-exponent of each row */
    float *factor;     /* [slots][2] 2^exponent of a centre's parts */
    uint32_t *centers; /* codes and scales as in q, 16 rows for 8 slots: their first parts, then their second ones */
};

/* Accumulators of a thread: N fragments of 8 columns for each of M tiles of rows. */
template <uint32_t M, uint32_t N> struct accumulators {
    float o[M][N][4];
    float sums[2u * M];
};

/* ------------------------------------------------------------------------------------------------ items */

/* Words of a row of queries: codes of whole steps and what sets the rows apart, then scales. */
__host__ __device__ constexpr uint32_t code_stride_of(uint32_t k_dim_padded)
{
    return steps_of(k_dim_padded) * (FP4_STEP / 8u) + Q_PAD;
}

/* M tiles of rows that prepare has written, row i at source(i), or zeros if that is NULL. */
template <uint32_t M, typename F>
__device__ void load_rows(const attend_params &p, uint32_t q_stride, uint32_t steps, uint32_t *to, F source)
{
    const uint32_t code_words = p.k_dim_padded / 8u, words = q_stride + steps;
    for (uint32_t i = threadIdx.x; i < M_ROWS * M * words; i += THREADS) {
        const uint32_t row = i / words, w = i % words;
        const uint8_t *from = source(row);
        uint32_t word = 0;
        if (from != NULL && (w < code_words || w >= q_stride)) {
            from += w < code_words ? 4u * w : fp4_row_scales_at(p.k_dim_padded) + 4u * (w - q_stride);
            word = *(const uint32_t *)(const void *)from;
        }
        if (w < q_stride) {
            to[row * q_stride + w] = word;
        } else {
            to[M_ROWS * M * q_stride + (w - q_stride) * M_ROWS * M + row] = word;
        }
    }
}

template <uint32_t M> __device__ void load_queries(const attend_params &p, const memory<M> &m, const item &it)
{
    load_rows<M>(p, m.q_stride, m.steps, m.q, [&](uint32_t row) {
        const uint64_t at = (uint64_t)m.fixed->row[row < it.rows ? row : 0u].index * p.k_dim_padded;
        return row < it.rows ? (const uint8_t *)p.codes + at : (const uint8_t *)NULL;
    });
}

/* Heads that the item's rows have. Row i has that of slot i % group_rows. */
__device__ uint32_t slots_of(const attend_params &p, const item &it)
{
    return min(it.rows, p.group_rows);
}

/* Words of 16 rows of codes and scales. */
__host__ __device__ constexpr uint32_t row_tile_words(uint32_t k_dim_padded)
{
    return M_ROWS * (code_stride_of(k_dim_padded) + steps_of(k_dim_padded));
}

/* Centres of the item's heads, and what rows and centres are scaled by (NUM 7.5). */
template <uint32_t M> __device__ void load_centers(const attend_params &p, const memory<M> &m, const item &it)
{
    const uint32_t slots = slots_of(p, it);
    const auto index_of = [&](uint32_t slot, uint32_t part) {
        return 2u * ((uint64_t)it.sequence * p.q_heads + m.fixed->row[slot].head) + part;
    };
    if (threadIdx.x < it.rows) {
        m.unit[threadIdx.x] = nbl_pow2(-p.queries[m.fixed->row[threadIdx.x].index].bias);
    }
    if (threadIdx.x < 2u * slots) {
        m.factor[threadIdx.x] = nbl_pow2(p.center_queries[index_of(threadIdx.x / 2u, threadIdx.x % 2u)].bias);
    }
    for (uint32_t first = 0; first < slots; first += UNIT) {
        uint32_t *to = m.centers + first / UNIT * row_tile_words(p.k_dim_padded);
        load_rows<1>(p, m.q_stride, m.steps, to, [&](uint32_t row) {
            const uint32_t slot = first + row % UNIT;
            return slot < slots ? p.center_codes + index_of(slot, row / UNIT) * p.k_dim_padded : (const uint8_t *)NULL;
        });
    }
}

template <uint32_t M> __device__ bool init_item(const attend_params &p, const memory<M> &m, uint32_t block, item *it)
{
    if (!rows_of_item(p, block, M_ROWS * M, it)) {
        return false;
    }
    if (threadIdx.x < it->rows) {
        init_row(p, *it, (uint32_t)p.sequences[it->sequence].q_first, block * (M_ROWS * M) + threadIdx.x,
                 &m.fixed->row[threadIdx.x]);
    }
    __syncthreads();
    it->first = INT32_MAX;
    it->end = 0;
    for (uint32_t i = 0; i < it->rows; ++i) {
        it->first = min(it->first, m.fixed->row[i].first);
        it->end = max(it->end, m.fixed->row[i].end);
    }
    load_queries(p, m, *it);
    if (m.y != NULL) {
        load_centers(p, m, *it);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ Q K^T */

/* Scores of rows of codes and the warp's 32 tokens: n-tile n has tokens 8n + 2t, 8n + 2t + 1 of rows g and g + 8. */
template <uint32_t M, uint32_t R>
__device__ void multiply_k(const attend_params &p, const memory<R> &m, const uint32_t *rows, uint32_t buffer,
                           float (&x)[M][TOKEN_TILES][4])
{
    const uint32_t lane = threadIdx.x % 32u, g = lane / 4u, t = lane % 4u, words = p.k_dim_padded / 8u;
    const token_place *place = m.place[buffer] + threadIdx.x / 32u * 32u;
    const uint32_t *q = rows + g * m.q_stride + t;
    const uint32_t *q_scales = rows + M_ROWS * M * m.q_stride + M_ROWS * (t / 2u) % (M_ROWS * M) + UNIT * (t % 2u) + g;
    const uint8_t *codes[TOKEN_TILES];
    uint32_t stride[TOKEN_TILES];
#pragma unroll
    for (uint32_t n = 0; n < TOKEN_TILES; ++n) {
        codes[n] = place[UNIT * n + g].k_codes;
        stride[n] = place[UNIT * n + g].k_stride;
#pragma unroll
        for (uint32_t i = 0; i < 4u * M; ++i) {
            x[i / 4u][n][i % 4u] = 0.0f;
        }
    }
#pragma unroll 2
    for (uint32_t step = 0; step < m.steps; ++step) {
        fp4_operands operands[TOKEN_TILES];
        const uint32_t scale_b = scale_word(p, place[UNIT * t + g], step), scale_a = q_scales[step * M_ROWS * M];
#pragma unroll
        for (uint32_t n = 0; n < TOKEN_TILES; ++n) {
#pragma unroll
            for (uint32_t r = 0; r < 2u; ++r) {
                const uint32_t w = step * UNIT + t + 4u * r;
                operands[n].b[r] = codes[n] != NULL && w < words ? *(const uint32_t *)(codes[n] + w * stride[n]) : 0u;
            }
        }
#pragma unroll
        for (uint32_t tile = 0; tile < M; ++tile) {
            const uint32_t *a = q + tile * M_ROWS * m.q_stride + step * UNIT;
#pragma unroll
            for (uint32_t n = 0; n < TOKEN_TILES; ++n) {
                operands[n].a[0] = a[0];
                operands[n].a[1] = a[UNIT * m.q_stride];
                operands[n].a[2] = a[4];
                operands[n].a[3] = a[UNIT * m.q_stride + 4u];
                operands[n].scale_a = scale_a;
                operands[n].scale_b = scale_b;
                mma_fp4(x[tile][n], operands[n], tile, n, p.fp4_format == NBL_MXFP4);
            }
        }
    }
}

/* The thread's n-th token of the tile, of 8 a row. */
__device__ uint32_t token_of(uint32_t n)
{
    return threadIdx.x / 32u * 32u + n / 2u * UNIT + threadIdx.x % 4u * 2u + n % 2u;
}

/* y of the item's heads and the warp's tokens (NUM 7.5): a lane has both parts of a slot's centre. */
template <uint32_t M>
__device__ void multiply_centers(const attend_params &p, const memory<M> &m, const item &it, uint32_t buffer)
{
    const uint32_t slots = slots_of(p, it);
    for (uint32_t first = 0; first < slots; first += UNIT) {
        const uint32_t slot = first + threadIdx.x % 32u / 4u;
        float x[1][TOKEN_TILES][4];
        multiply_k(p, m, m.centers + first / UNIT * row_tile_words(p.k_dim_padded), buffer, x);
#pragma unroll
        for (uint32_t n = 0; n < 2u * TOKEN_TILES; ++n) {
            if (slot < slots) {
                const float unit = p.fp4_format == NBL_MXFP4_16 ? m.place[buffer][token_of(n)].k_unit : 1.0f;
                const float value = x[0][n / 2u][n % 2u] * unit * m.factor[2u * slot];
                const float rest = x[0][n / 2u][2u + n % 2u] * unit;
                m.y[slot * CUDA_TILE_TOKENS + token_of(n)] = nbl_fma(rest, m.factor[2u * slot + 1u], value);
            }
        }
    }
    __syncwarp();
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* The thread's two rows of a tile of rows. */
__device__ uint32_t row_of(uint32_t tile, uint32_t half)
{
    return tile * M_ROWS + threadIdx.x % 32u / 4u + UNIT * half;
}

/* Masks, the token's factor and soft cap (NUM 6.3): bit 8 * half + n of visible[tile] for the n-th token. True if a row
 * needs a base or a token is beyond it. */
template <uint32_t M>
__device__ bool view_scores(const attend_params &p, const memory<M> &m, const item &it, int32_t start, uint32_t buffer,
                            float (&x)[M][TOKEN_TILES][4], uint32_t (&visible)[M])
{
    bool is_late = false;
#pragma unroll
    for (uint32_t tile = 0; tile < M; ++tile) {
        visible[tile] = 0;
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            const uint32_t row = row_of(tile, half);
            const row_state &r = m.fixed->row[row < it.rows ? row : 0u];
            const row_view v = view_of(p, r);
#pragma unroll
            for (uint32_t n = 0; n < 8u; ++n) {
                const int32_t position = start + (int32_t)token_of(n);
                float &score = x[tile][n / 2u][2u * half + n % 2u];
                if (row < it.rows && is_visible(p, it, r, position)) {
                    score *= p.fp4_format == NBL_MXFP4_16 ? m.place[buffer][token_of(n)].k_unit : 1.0f;
                    if (m.y != NULL) {
                        const float y = m.y[row % p.group_rows * CUDA_TILE_TOKENS + token_of(n)];
                        score = nbl_fma(y, m.unit[row], score);
                    }
                    score = p.cap != 0.0f ? nbl_tanhp(score * r.scale) : score;
                    visible[tile] |= 1u << (8u * half + n);
                    is_late = is_late || !v.has_base || grid_logit(v, score, alibi_of(p, v, position)) > NBL_FLOAT_GRID;
                }
            }
        }
    }
    return is_late;
}

/* Largest z and t of each row over the warp's tokens, into place. */
template <uint32_t M>
__device__ void put_maxima(const attend_params &p, const memory<M> &m, const item &it, int32_t start,
                           const float (&x)[M][TOKEN_TILES][4], const uint32_t (&visible)[M])
{
#pragma unroll
    for (uint32_t i = 0; i < 2u * M; ++i) {
        const uint32_t tile = i / 2u, half = i % 2u;
        const row_view v = view_of(p, m.fixed->row[row_of(tile, half) < it.rows ? row_of(tile, half) : 0u]);
        float z = -INFINITY, t = -INFINITY;
#pragma unroll
        for (uint32_t n = 0; n < 8u; ++n) {
            if (visible[tile] >> (8u * half + n) & 1u) {
                const float a = alibi_of(p, v, start + (int32_t)token_of(n));
                const float score = x[tile][n / 2u][2u * half + n % 2u];
                z = fmaxf(z, nbl_fma(score, v.scale, a));
                t = fmaxf(t, grid_logit(v, score, a));
            }
        }
        z = quad_max(z);
        t = quad_max(t);
        if (threadIdx.x % 4u == 0) {
            m.fixed->z_most[threadIdx.x / 32u][row_of(tile, half)] = z;
            m.fixed->t_most[threadIdx.x / 32u][row_of(tile, half)] = t;
        }
    }
}

/* P of the thread's tokens into place (NUM 7.3). */
template <uint32_t M>
__device__ void weigh(const attend_params &p, const memory<M> &m, const item &it, int32_t start,
                      const float (&x)[M][TOKEN_TILES][4], const uint32_t (&visible)[M])
{
#pragma unroll
    for (uint32_t i = 0; i < 2u * M; ++i) {
        const uint32_t tile = i / 2u, half = i % 2u;
        const row_view v = view_of(p, m.fixed->row[row_of(tile, half) < it.rows ? row_of(tile, half) : 0u]);
#pragma unroll
        for (uint32_t n = 0; n < 8u; n += 2u) {
            float e[2];
#pragma unroll
            for (uint32_t k = 0; k < 2u; ++k) {
                const float a = alibi_of(p, v, start + (int32_t)token_of(n + k));
                const bool counts = (visible[tile] >> (8u * half + n + k) & 1u) != 0;
                e[k] = counts ? weight_of(v, x[tile][n / 2u][2u * half + k], a) : 0.0f;
            }
            *(uint16_t *)(void *)&m.fixed->p[row_of(tile, half)][token_of(n)] = (uint16_t)weight_codes(e[0], e[1]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Row and first class of the partial sums that a thread keeps, 2 * M of them. */
template <uint32_t M> __device__ uint32_t sum_row(void)
{
    return threadIdx.x * M / 8u;
}

template <uint32_t M> __device__ uint32_t sum_class(void)
{
    return threadIdx.x % (8u / M) * (2u * M);
}

/* s_r of NUM 6.4. */
template <uint32_t M> __device__ void add_sums(const memory<M> &m, float (&sums)[2u * M])
{
    const uint8_t *codes = &m.fixed->p[sum_row<M>()][sum_class<M>()];
#pragma unroll
    for (uint32_t k = 0; k < CUDA_TILE_TOKENS; k += NBL_PARTIAL_SUMS) {
#pragma unroll
        for (uint32_t i = 0; i < 2u * M; ++i) {
            sums[i] += nbl_e4m3_decode(codes[k + i]);
        }
    }
}

/* Fragments of 8 columns of O that each warp has, the last one perhaps fewer. */
__device__ uint32_t units_of_warp(const attend_params &p)
{
    return (p.v_dim_padded / UNIT + WARPS - 1u) / WARPS;
}

template <uint32_t M, uint32_t N>
__device__ void multiply_v(const attend_params &p, const memory<M> &m, uint32_t buffer, accumulators<M, N> *acc)
{
    const uint32_t lane = threadIdx.x % 32u, g = lane / 4u, t = lane % 4u;
    const uint32_t units = units_of_warp(p), first = threadIdx.x / 32u * units, all = p.v_dim_padded / UNIT;
    const bool whole_groups = p.pages.page_tokens % 4u == 0;
    for (uint32_t step = 0; step < CUDA_TILE_TOKENS / V_STEP; ++step) {
        uint32_t a[M][4];
#pragma unroll
        for (uint32_t i = 0; i < 4u * M; ++i) {
            const uint8_t *at = m.fixed->p[row_of(i / 4u, i % 2u)] + step * V_STEP + 4u * t + i % 4u / 2u * 16u;
            a[i / 4u][i % 4u] = *(const uint32_t *)(const void *)at;
        }
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            if (n < units && first + n < all) {
                const uint32_t d = (first + n) * UNIT + g, quad = step * (V_STEP / 4u) + t;
                const uint32_t b[2] = {value_word(m.place[buffer], quad, d, whole_groups),
                                       value_word(m.place[buffer], quad + 4u, d, whole_groups)};
#pragma unroll
                for (uint32_t tile = 0; tile < M; ++tile) {
                    mma_fp8(acc->o[tile][n], a[tile], b);
                }
            }
        }
    }
}

template <uint32_t M, uint32_t N> __device__ void rescale(const memory<M> &m, accumulators<M, N> *acc)
{
    const float of_sums = m.fixed->row[sum_row<M>()].rescale;
#pragma unroll
    for (uint32_t i = 0; i < 2u * M; ++i) {
        const float factor = m.fixed->row[row_of(i / 2u, i % 2u)].rescale;
        acc->sums[i] *= of_sums;
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            acc->o[i / 2u][n][2u * (i % 2u)] *= factor;
            acc->o[i / 2u][n][2u * (i % 2u) + 1u] *= factor;
        }
    }
}

/* The tile at start, whose places are in the buffer; those of the tile after it go to the other one. */
template <uint32_t M, uint32_t N>
__device__ void do_tile(const attend_params &p, const memory<M> &m, const item &it, int32_t start, uint32_t buffer,
                        accumulators<M, N> *acc)
{
    float x[M][TOKEN_TILES][4];
    uint32_t visible[M];
    if (m.y != NULL) {
        multiply_centers(p, m, it, buffer);
    }
    multiply_k(p, m, m.q, buffer, x);
    const bool is_late = view_scores(p, m, it, start, buffer, x, visible);
    if (__syncthreads_or(is_late) != 0) {
        put_maxima(p, m, it, start, x, visible);
        move_bases(it, m.fixed->row, m.fixed->z_most, m.fixed->t_most, NBL_FLOAT_GRID);
        rescale(m, acc);
    }
    weigh(p, m, it, start, x, visible);
    m.place[buffer ^ 1u][threadIdx.x] = place_of(p, it, start + (int32_t)CUDA_TILE_TOKENS);
    __syncthreads();
    add_sums(m, acc->sums);
    multiply_v(p, m, buffer, acc);
}

/* ------------------------------------------------------------------------------------------------ chunks */

/* All tiles of the n-th chunk of the range; then m.fixed->chunk has the head of every row's state, and acc its O, in
 * the states' unit (NUM 7.4). */
template <uint32_t M, uint32_t N>
__device__ void do_chunk(const attend_params &p, const memory<M> &m, const item &it, uint32_t n,
                         accumulators<M, N> *acc)
{
    const int32_t begin = (int32_t)((p.first_chunk + n) * NBL_CHUNK_TOKENS);
    const int32_t past = max(it.first - begin, 0) / (int32_t)CUDA_TILE_TOKENS * (int32_t)CUDA_TILE_TOKENS;
    const int32_t end = min(it.end, begin + (int32_t)NBL_CHUNK_TOKENS);
    *acc = {};
    if (threadIdx.x < M_ROWS * M) {
        m.fixed->row[threadIdx.x].has_base = false;
        m.fixed->row[threadIdx.x].base = 0.0f;
        m.fixed->row[threadIdx.x].rescale = 1.0f;
    }
    uint32_t buffer = 0;
    m.place[0][threadIdx.x] = place_of(p, it, begin + past);
    __syncthreads();
    for (int32_t start = begin + past; start < end; start += (int32_t)CUDA_TILE_TOKENS) {
        do_tile(p, m, it, start, buffer, acc);
        buffer ^= 1u;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2u * M; ++i) {
        m.fixed->sums[sum_row<M>()][sum_class<M>() + i] = acc->sums[i];
    }
    __syncthreads();
    if (threadIdx.x < it.rows) {
        const row_state &r = m.fixed->row[threadIdx.x];
        const nbl_state_head head = {r.base, nbl_sum_tree(m.fixed->sums[threadIdx.x]) * 0x1p-8f, r.offset, 0.0f};
        m.fixed->chunk[threadIdx.x] = !r.has_base || head.sum == 0.0f ? nbl_state_empty(r.offset) : head;
    }
    __syncthreads();
    const float unit = NBL_P_SCALE * float16_scale(&p.pages, NBL_KIND_V, it.kv_head) * 0x1p-8f;
#pragma unroll
    for (uint32_t i = 0; i < 4u * M * N; ++i) {
        float &o = acc->o[i / (4u * N)][i / 4u % N][i % 4u];
        const uint32_t row = row_of(i / (4u * N), i % 4u / 2u);
        const bool is_empty = row >= it.rows || nbl_state_is_empty(&m.fixed->chunk[row]);
        o = is_empty ? 0.0f : o * unit + 0.0f;
    }
}

/* Calls put(row, d, o, the next element) for the thread's share of O. */
template <uint32_t M, uint32_t N, typename F>
__device__ void for_elements(const attend_params &p, const item &it, const float (&o)[M][N][4], F put)
{
    const uint32_t units = units_of_warp(p), first = threadIdx.x / 32u * units, all = p.v_dim_padded / UNIT;
#pragma unroll
    for (uint32_t i = 0; i < 2u * M * N; ++i) {
        const uint32_t n = i / 2u % N, tile = i / (2u * N), half = i % 2u;
        if (n < units && first + n < all && row_of(tile, half) < it.rows) {
            put(row_of(tile, half), (first + n) * UNIT + threadIdx.x % 4u * 2u, o[tile][n][2u * half],
                o[tile][n][2u * half + 1u]);
        }
    }
}

/* The chunk's states to the workspace. */
template <uint32_t M, uint32_t N>
__device__ void store_states(const attend_params &p, const memory<M> &m, const item &it, uint32_t n,
                             const accumulators<M, N> &acc)
{
    if (threadIdx.x < it.rows) {
        const nbl_state_head head = m.fixed->chunk[threadIdx.x];
        float *state = p.states + ((uint64_t)m.fixed->row[threadIdx.x].index * p.chunks + n) * p.state_floats;
        *(float4 *)(void *)state = make_float4(head.base, head.sum, head.offset, 0.0f);
    }
    for_elements(p, it, acc.o, [&](uint32_t row, uint32_t d, float low, float high) {
        float *state = p.states + ((uint64_t)m.fixed->row[row].index * p.chunks + n) * p.state_floats;
        *(float2 *)(void *)(state + CUDA_STATE_HEAD_FLOATS + d) = make_float2(low, high);
    });
}

/* The chunk's states to the state tensors (NUM 5.6). */
template <uint32_t M, uint32_t N>
__device__ void put_states(const attend_params &p, const memory<M> &m, const item &it, uint32_t n,
                           const accumulators<M, N> &acc)
{
    for (uint32_t row = 0; row < it.rows; ++row) {
        finish_state_head(&p, n, m.fixed->row[row].token, m.fixed->row[row].head, m.fixed->chunk[row]);
    }
    for_elements(p, it, acc.o, [&](uint32_t row, uint32_t d, float low, float high) {
        uint8_t *at = finish_state_o(&p, n, m.fixed->row[row].token, m.fixed->row[row].head);
        const int64_t stride = p.state_o.stride[3];
        if (d < p.v_dim) {
            *(float *)(void *)(at + (int64_t)d * stride) = low;
        }
        if (d + 1u < p.v_dim) {
            *(float *)(void *)(at + ((int64_t)d + 1) * stride) = high;
        }
    });
}

/* total := merge(total, the chunk) for every row (NUM 5.6). */
template <uint32_t M, uint32_t N>
__device__ void merge_chunk(const memory<M> &m, const item &it, const accumulators<M, N> &acc, float (&total)[M][N][4])
{
    if (threadIdx.x < it.rows) {
        nbl_state_head *sum = &m.fixed->row[threadIdx.x].total;
        const nbl_state_head chunk = m.fixed->chunk[threadIdx.x];
        const nbl_merge_scale take = {chunk.base, 0.0f, 1.0f};
        m.fixed->merge[threadIdx.x] = nbl_state_is_empty(sum)
                                          ? take
                                          : nbl_merge_scale_of(sum->base, chunk.base); /* of no use to an empty chunk */
        float none;
        nbl_state_merge(sum, &none, &chunk, &none, 0);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 4u * M * N; ++i) {
        const uint32_t row = row_of(i / (4u * N), i % 4u / 2u);
        if (row < it.rows && !nbl_state_is_empty(&m.fixed->chunk[row])) {
            float &o = total[i / (4u * N)][i / 4u % N][i % 4u];
            o = nbl_merge_element(o, acc.o[i / (4u * N)][i / 4u % N][i % 4u], m.fixed->merge[row]);
        }
    }
    __syncthreads();
}

/* Finished rows of the item. */
template <uint32_t M, uint32_t N, uint32_t V>
__device__ void finish_item(const attend_params &p, const memory<M> &m, const item &it, const float (&total)[M][N][4])
{
    __syncthreads(); /* the stage is where queries were */
    for_elements(p, it, total, [&](uint32_t row, uint32_t d, float low, float high) {
        *(float2 *)(void *)(m.stage + row * p.v_dim_padded + d) = make_float2(low, high);
    });
    __syncthreads();
    for (uint32_t row = 0; row < it.rows; ++row) {
        const row_state &r = m.fixed->row[row];
        float o[V];
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            const uint32_t d = threadIdx.x + i * THREADS;
            o[i] = d < p.v_dim_padded ? m.stage[row * p.v_dim_padded + d] : 0.0f;
        }
        finish_row(finish_target_of(&p, r.token, r.head), r.total, o, m.stage + row * p.v_dim_padded);
    }
}

/* The chunks of an item: the n-th alone, whose states go to the workspace, or all of them and then finished rows. */
template <uint32_t M, uint32_t N, uint32_t V>
__device__ void do_item(const attend_params &p, const memory<M> &m, const item &it, uint32_t n)
{
    const uint32_t end = p.split ? n + 1u : cuda_live_chunks(&p, it.kv_len);
    float total[M][N][4] = {};
    for (; n < end; ++n) {
        accumulators<M, N> acc;
        do_chunk(p, m, it, n, &acc);
        if (p.split) {
            store_states(p, m, it, n, acc);
            return;
        }
        if (p.state_head.data != NULL) {
            put_states(p, m, it, n, acc);
        }
        merge_chunk(m, it, acc, total);
    }
    finish_item<M, N, V>(p, m, it, total);
}

/* ------------------------------------------------------------------------------------------------ kernel */

/* Row tiles of a block that has all it needs in registers. */
__host__ __device__ uint32_t row_tiles(uint32_t v_dim_padded)
{
    return v_dim_padded > THREADS ? 1u : 2u;
}

template <uint32_t M> __host__ __device__ constexpr size_t shared_bytes(uint32_t k_dim_padded, uint32_t v_dim_padded)
{
    const size_t q = (size_t)M * row_tile_words(k_dim_padded) * 4u;
    const size_t tile = 2u * CUDA_TILE_TOKENS * sizeof(token_place) + q;
    const size_t stage = (size_t)M_ROWS * M * v_dim_padded * sizeof(float);
    return sizeof(fixed_memory<M>) + (tile > stage ? tile : stage);
}

/* Most heads that the rows of an item have. */
template <uint32_t M> __host__ __device__ constexpr uint32_t slots_most(uint32_t group_rows)
{
    return group_rows < M_ROWS * M ? group_rows : M_ROWS * M;
}

/* Bytes after those for centres of queries. */
template <uint32_t M> __host__ __device__ constexpr size_t center_bytes(uint32_t k_dim_padded, uint32_t group_rows)
{
    const uint32_t slots = slots_most<M>(group_rows), tiles = (slots + UNIT - 1u) / UNIT;
    return 4u * ((size_t)slots * (CUDA_TILE_TOKENS + 2u) + M_ROWS * M + (size_t)tiles * row_tile_words(k_dim_padded));
}

template <uint32_t M> __host__ __device__ constexpr size_t shared_bytes_most(uint32_t k_dim, uint32_t v_dim)
{
    return shared_bytes<M>(k_dim, v_dim) + center_bytes<M>(k_dim, M_ROWS * M);
}

static_assert(shared_bytes_most<1>(NBL_DIM_PADDED_MAX, NBL_V_DIM_MAX) <= SHARED_MAX, "no dimensions are refused");
static_assert(shared_bytes_most<2>(NBL_DIM_PADDED_MAX, THREADS) <= SHARED_MAX, "no dimensions are refused");

/* Blocks that share a multiprocessor, by what they need of its registers; emulated products need what they can get. */
__host__ __device__ constexpr uint32_t blocks_of_processor(uint32_t row_tiles, uint32_t v_units)
{
    return !PTX_BLOCK_SCALE ? 1u : v_units == 4u ? 2u : row_tiles * v_units == 1u ? 4u : 3u;
}

/* Where centres of queries are, if there are any. */
template <uint32_t M> __device__ void place_centers(const attend_params &p, uint8_t *dynamic, memory<M> *m)
{
    m->y = NULL;
    if (p.q_centers.data != NULL) {
        const uint32_t slots = slots_most<M>(p.group_rows);
        m->y = (float *)(void *)(dynamic + shared_bytes<M>(p.k_dim_padded, p.v_dim_padded));
        m->factor = m->y + slots * CUDA_TILE_TOKENS;
        m->unit = m->factor + 2u * slots;
        m->centers = (uint32_t *)(void *)(m->unit + M_ROWS * M);
    }
}

template <uint32_t M, uint32_t V>
__global__ void __launch_bounds__(THREADS, blocks_of_processor(M, V))
    blackwell_kernel(const __grid_constant__ attend_params p, uint32_t blocks)
{
    extern __shared__ uint4 dynamic[];
    memory<M> m;
    m.fixed = (fixed_memory<M> *)(void *)dynamic;
    m.stage = (float *)(void *)(m.fixed + 1);
    m.place = (token_place(*)[CUDA_TILE_TOKENS])(void *)m.stage;
    m.q = (uint32_t *)(void *)(m.place + 2);
    m.q_stride = code_stride_of(p.k_dim_padded);
    m.steps = steps_of(p.k_dim_padded);
    place_centers(p, (uint8_t *)(void *)dynamic, &m);
    item it;
    uint32_t block, n;
    if (!item_of_block(p, blocks, &it, &block, &n) || !init_item(p, m, block, &it)) {
        return;
    }
    do_item<M, 4u * V, V>(p, m, it, n);
}

template <uint32_t M, uint32_t V> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    size_t bytes = shared_bytes<M>(p->k_dim_padded, p->v_dim_padded);
    bytes += p->q_centers.data != NULL ? center_bytes<M>(p->k_dim_padded, p->group_rows) : 0u;
    return launch_items(blackwell_kernel<M, V>, M_ROWS * M, THREADS, bytes, stream, p);
}

} // namespace

extern "C" uint64_t nbl_cuda_blackwell_shared_bytes(uint32_t k_dim, uint32_t v_dim)
{
    const uint32_t k_dim_padded = nbl_layout_dim_padded(k_dim), v_dim_padded = nbl_layout_dim_padded(v_dim);
    return row_tiles(v_dim_padded) == 1u ? shared_bytes_most<1>(k_dim_padded, v_dim_padded)
                                         : shared_bytes_most<2>(k_dim_padded, v_dim_padded);
}

extern "C" cudaError_t nbl_cuda_attend_blackwell(const attend_params *p, cudaStream_t stream)
{
    if (p->v_dim_padded > 2u * THREADS) {
        return launch<1, 4>(p, stream);
    }
    if (p->v_dim_padded > THREADS) {
        return launch<1, 2>(p, stream);
    }
    return (uint64_t)p->q_len_max * p->group_rows > M_ROWS ? launch<2, 1>(p, stream) : launch<1, 1>(p, stream);
}
