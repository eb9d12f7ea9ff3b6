/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill_expand.cu
 * @brief First step of a prefill: pages of any formats to tile images, and the list of work (tile/prefill.cuh).
 *
 * A block takes every gridDim.x-th tile of a unit and builds it in shared memory. Half of the threads look at K's
 * exponents, a token each, while the others find V; then the one half expands K, a token each, and the other begins
 * with V, a thread per pair of columns and 16 tokens. Where K is mxfp4 and its block exponents are as close in the
 * whole tile as they have to be in a vector, all tokens get one exponent: the image holds other codes of the same
 * numbers. One block more counts the items of the slab.
 */
#include "../tile/launch.cuh"
#include "../tile/prefill.cuh"
#include "prefill.h"

#define THREADS (2u * CUDA_TILE_TOKENS)
#define BLOCKS_PER_UNIT_MAX 64u
#define BLOCKS_PER_PROCESSOR 5              /* that registers must allow */
#define TURN_BYTES_MAX (UINT64_C(48) << 20) /* of images; the second-level cache of an H200 has 50 MB */
#define TOKENS16 16u

namespace
{

/* Least and largest exponent of the blocks of K in some tokens, mxfp4 being their only format; else far apart. */
struct k_range {
    int32_t least;
    int32_t most;
};

template <int KD, int VD> struct memory {
    alignas(16) uint8_t image[prefill_image<KD, VD>::bytes];
    k_range ranges[CUDA_TILE_TOKENS / 32u];
    alignas(16) uint8_t multipliers[VD / BLOCK16][CUDA_TILE_TOKENS];
    stored_v v;
    uint32_t v_least[CUDA_TILE_TOKENS / 32u]; /* of the formats of V in some tokens */
    uint32_t v_most[CUDA_TILE_TOKENS / 32u];
};

/* A unit as a block sees it. */
struct unit {
    uint32_t kv_head;
    uint32_t kv_len;
    const int32_t *table;
};

CUDA_DEVICE block16_part part_of(const attend_params &p, const unit &u, uint32_t position, uint32_t kind)
{
    int32_t page = u.table[position / p.pages.page_tokens];
    const cuda_region *region = cuda_region_find(&p.pages, page);
    return block16_part_at(&p.pages, region, (uint32_t)page, kind, u.kv_head, kind == NBL_KIND_K ? p.k_dim : p.v_dim);
}

/* The 16 canonical codes of a block of a 4-bit format. */
CUDA_DEVICE uint4 block_of(uint32_t format, uint32_t low, uint32_t high, uint32_t multiplier)
{
    if (format == NBL_INT4P) {
        return make_uint4(decode4_int4p(low, multiplier), decode4_int4p(low >> 4, multiplier),
                          decode4_int4p(high, multiplier), decode4_int4p(high >> 4, multiplier));
    }
    const uint32_t shift = 31u - (uint32_t)__clz((int)multiplier);
    return make_uint4(decode4_e2m1(low, shift), decode4_e2m1(low >> 4, shift), decode4_e2m1(high, shift),
                      decode4_e2m1(high >> 4, shift));
}

/* K of a token as a thread sees it. */
struct k_token {
    block16_part part;
    const uint8_t *codes;
    const uint8_t *scales;
    uint32_t stride; /* bytes from word to word */
    uint32_t blocks; /* 0 past the length */
    int32_t exponent;
};

CUDA_DEVICE k_token k_token_at(const attend_params &p, const unit &u, uint32_t position)
{
    k_token k = {};
    if (position < u.kv_len) {
        const uint32_t in_page = position % p.pages.page_tokens;
        k.part = part_of(p, u, position, NBL_KIND_K);
        k.codes = k.part.codes + block16_code_byte(&k.part, in_page, 0);
        k.scales = k.part.scales + in_page;
        k.stride = 4u * nbl_layout_group_width(k.part.page_tokens, in_page, NBL_LAYOUT_K_GROUP_TOKENS);
        k.blocks = p.k_dim_padded / BLOCK16;
        k.exponent = stored_exponent(k.part, k.scales);
    }
    return k;
}

CUDA_DEVICE k_range k_range_of(const k_token &k)
{
    if (k.blocks == 0) {
        return k_range{INT32_MAX, INT32_MIN};
    }
    if (!nbl_layout_is_mxfp4(k.part.format)) {
        return k_range{INT32_MIN / 2, INT32_MAX / 2};
    }
    k_range range = {k.exponent + 1, k.exponent + 1};
    for (uint32_t b = 0; b < nbl_layout_scale_planes(k.part.format, k.part.dim); ++b) {
        range.most = max(range.most, nbl_e8m0_decode_slot(k.scales[b * k.part.page_tokens]));
    }
    return range;
}

/* Puts the warp's share of the tile's range in place. */
template <int KD, int VD> CUDA_DEVICE void put_range(memory<KD, VD> &m, const k_range &range)
{
    const k_range all = {__reduce_min_sync(FULL_WARP, range.least), __reduce_max_sync(FULL_WARP, range.most)};
    if (threadIdx.x % 32u == 0) {
        m.ranges[threadIdx.x / 32u] = all;
    }
}

/* Exponent that all tokens of the tile can have, in e; false if there is none: a code times 2^(e_b - e) must stay a
 * code (NUM 2.4). */
template <int KD, int VD> CUDA_DEVICE bool common_exponent(const memory<KD, VD> &m, int32_t *e)
{
    k_range all = m.ranges[0];
#pragma unroll
    for (uint32_t i = 1; i < CUDA_TILE_TOKENS / 32u; ++i) {
        all.least = min(all.least, m.ranges[i].least);
        all.most = max(all.most, m.ranges[i].most);
    }
    *e = all.least - 1;
    return all.least <= all.most && (int64_t)all.most - all.least <= NBL_BLOCK_E_SPREAD;
}

CUDA_DEVICE uint32_t word_at(const k_token &k, uint32_t i)
{
    return *(const uint32_t *)(const void *)(k.codes + i * k.stride);
}

/* Codes of int8. */
template <int KD> CUDA_DEVICE void expand_k8(uint8_t *image, uint32_t token, const k_token &k)
{
#pragma unroll 4
    for (uint32_t b = 0; b < k.blocks; ++b) {
        *(uint4 *)(void *)(image + prefill_piece<KD>(token, b)) =
            make_uint4(word_at(k, 4u * b), word_at(k, 4u * b + 1u), word_at(k, 4u * b + 2u), word_at(k, 4u * b + 3u));
    }
}

/* Codes of 4 bits and their scales, as they are in the page. */
template <int KD> struct k_words {
    uint32_t codes[KD / 8];
    uint32_t scales[KD / BLOCK16 / 4]; /* a byte each */
};

/* Asks for all of a token together; not if its codes are int8. */
template <int KD> CUDA_DEVICE k_words<KD> k_words_of(const k_token &k)
{
    k_words<KD> words = {};
#pragma unroll
    for (uint32_t b = 0; b < KD / BLOCK16; ++b) {
        if (b < k.blocks && k.part.format != NBL_INT8) {
            words.codes[2u * b] = word_at(k, 2u * b);
            words.codes[2u * b + 1u] = word_at(k, 2u * b + 1u);
            words.scales[b / 4u] |= (uint32_t)stored_scale(k.part, k.scales, b) << (8u * (b % 4u));
        }
    }
    return words;
}

/* Codes of 4 bits. */
template <int KD>
CUDA_DEVICE void expand_k4(uint8_t *image, uint32_t token, const k_token &k, int32_t exponent, const k_words<KD> &words)
{
#pragma unroll
    for (uint32_t b = 0; b < KD / BLOCK16; ++b) {
        if (b < k.blocks) {
            const uint8_t scale = (uint8_t)(words.scales[b / 4u] >> (8u * (b % 4u)));
            const uint32_t multiplier = stored_multiplier_of(k.part.format, scale, b, exponent);
            *(uint4 *)(void *)(image + prefill_piece<KD>(token, b)) =
                block_of(k.part.format, words.codes[2u * b], words.codes[2u * b + 1u], multiplier);
        }
    }
}

/* K of the thread's token; the ranges are in place. */
template <int KD, int VD> CUDA_DEVICE void expand_k(memory<KD, VD> &m, const k_token &k, const k_words<KD> &words)
{
    using place = prefill_image<KD, VD>;
    const uint32_t token = threadIdx.x % CUDA_TILE_TOKENS;
    int32_t exponent = k.exponent, common;
    const bool is_common = common_exponent(m, &common);
    if (is_common) {
        exponent = common;
    }
    if (k.part.format == NBL_INT8) {
        expand_k8<KD>(m.image, token, k);
    } else {
        expand_k4<KD>(m.image, token, k, exponent, words);
    }
    for (uint32_t b = k.blocks; b < KD / BLOCK16; ++b) {
        *(uint4 *)(void *)(m.image + prefill_piece<KD>(token, b)) = make_uint4(0, 0, 0, 0);
    }
    ((float *)(void *)(m.image + place::units_at))[prefill_token_place(token)] = nbl_pow2(exponent);
    if (token == 0) {
        *(float4 *)(void *)(m.image + place::common_at) =
            make_float4(is_common ? nbl_pow2(common) : 0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* Exponent, multipliers and place of V of the thread's token. */
template <int KD, int VD>
CUDA_DEVICE void describe_v(const attend_params &p, memory<KD, VD> &m, const unit &u, uint32_t position)
{
    uint32_t token = threadIdx.x % CUDA_TILE_TOKENS;
    uint32_t blocks = p.v_dim_padded / BLOCK16;
    uint32_t format = NBL_FORMAT_NONE;
    int32_t exponent = 0;
    if (position < u.kv_len) {
        block16_part part = part_of(p, u, position, NBL_KIND_V);
        uint32_t in_page = position % p.pages.page_tokens;
        const uint8_t *scales = part.scales + in_page;
        exponent = stored_exponent(part, scales);
        m.v.codes[token] = part.codes + block16_code_byte(&part, in_page, 0);
        m.v.stride[token] = nbl_layout_group_width(part.page_tokens, in_page, NBL_LAYOUT_V_GROUP_TOKENS);
        m.v.format[token] = format = part.format;
        for (uint32_t b = 0; b < blocks; ++b) {
            m.multipliers[b][token] = (uint8_t)stored_multiplier(part, scales, b, exponent);
        }
    } else {
        m.v.codes[token] = NULL;
        m.v.format[token] = NBL_INT8;
        for (uint32_t b = 0; b < blocks; ++b) {
            m.multipliers[b][token] = 0;
        }
    }
    const uint32_t least = __reduce_min_sync(FULL_WARP, format == NBL_FORMAT_NONE ? UINT32_MAX : format);
    const uint32_t most = __reduce_max_sync(FULL_WARP, format);
    if (token % 32u == 0) {
        m.v_least[token / 32u] = least;
        m.v_most[token / 32u] = most;
    }
    uint32_t place = prefill_token_place(token);
    ((float *)(void *)(m.image + prefill_image<KD, VD>::exponents_at))[place] = NBL_GRID + (float)exponent;
    ((float *)(void *)(m.image + prefill_image<KD, VD>::weights_at))[place] = nbl_pow2(-exponent);
}

/* Words of four tokens each, tokens in order, to 16 places of a row of V. */
CUDA_DEVICE uint4 place_tokens(const uint32_t (&w)[4])
{
    return make_uint4(__byte_perm(w[0], w[2], 0x5410), __byte_perm(w[0], w[2], 0x7632), __byte_perm(w[1], w[3], 0x5410),
                      __byte_perm(w[1], w[3], 0x7632));
}

/* The one format of V in the tile, if pages hold whole quads; NBL_FORMAT_NONE otherwise. */
template <int KD, int VD> CUDA_DEVICE uint32_t common_v_format(const attend_params &p, const memory<KD, VD> &m)
{
    uint32_t least = m.v_least[0], most = m.v_most[0];
#pragma unroll
    for (uint32_t i = 1; i < CUDA_TILE_TOKENS / 32u; ++i) {
        least = min(least, m.v_least[i]);
        most = max(most, m.v_most[i]);
    }
    return p.pages.page_tokens % STORED_QUAD == 0 && least == most ? most : (uint32_t)NBL_FORMAT_NONE;
}

/* Elements d and d + 16 of 16 tokens, without block multipliers. FORMAT: that of all of them, or NBL_FORMAT_NONE; what
 * is known of it lets all words be on their way together. */
template <uint32_t FORMAT>
CUDA_DEVICE void v_words(const attend_params &p, const stored_v &v, uint32_t t, uint32_t d, uint32_t column,
                         stored_words (&words)[TOKENS16 / STORED_QUAD])
{
#pragma unroll
    for (uint32_t k = 0; k < TOKENS16 / STORED_QUAD; ++k) {
        const uint32_t *at = (const uint32_t *)(const void *)v.codes[t + STORED_QUAD * k];
        if (FORMAT == NBL_FORMAT_NONE) {
            words[k] = stored_v_quad(v, t + STORED_QUAD * k, d, column, p.pages.page_tokens % STORED_QUAD == 0);
        } else if (FORMAT == NBL_INT8) {
            words[k] = {at != NULL ? at[d] : 0u, at != NULL ? at[d + BLOCK16] : 0u};
        } else {
            words[k].low = at != NULL ? at[column] : 0u;
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < TOKENS16 / STORED_QUAD; ++k) {
        const uint32_t word = words[k].low;
        if (FORMAT == NBL_INT4P) {
            words[k] = {decode4_int4p(word, 1), decode4_int4p(word >> 4, 1)};
        } else if (FORMAT == NBL_MXFP4) {
            words[k] = {decode4_e2m1(word, 0), decode4_e2m1(word >> 4, 0)};
        }
    }
}

/* V of the tile; descriptions are in place. A part of the block does a share of it: the half that has K to expand a
 * quarter. */
template <int KD, int VD, uint32_t FORMAT> CUDA_DEVICE void expand_v_of(const attend_params &p, memory<KD, VD> &m)
{
    uint8_t *image = m.image + prefill_image<KD, VD>::v_at;
    const uint32_t columns = p.v_dim_padded / 2u;
    const bool has_k = threadIdx.x < CUDA_TILE_TOKENS;
    const uint32_t pieces = CUDA_TILE_TOKENS / TOKENS16 * columns, share = pieces / 4u * 3u;
    const uint32_t end = has_k ? pieces : share;
#pragma unroll 2
    for (uint32_t i = (has_k ? share : 0u) + threadIdx.x % CUDA_TILE_TOKENS; i < end; i += CUDA_TILE_TOKENS) {
        uint32_t t = i / columns * TOKENS16;
        uint32_t column = i % columns;
        uint32_t d = column / BLOCK16 * 2u * BLOCK16 + column % BLOCK16;
        uint32_t low[4], high[4];
        stored_words words[TOKENS16 / STORED_QUAD];
        v_words<FORMAT>(p, m.v, t, d, column, words);
#pragma unroll
        for (uint32_t k = 0; k < 4u; ++k) {
            const uint8_t *multipliers = &m.multipliers[d / BLOCK16][t + STORED_QUAD * k];
            low[k] = FORMAT == NBL_INT8 ? words[k].low
                                        : decode4_multiply(words[k].low, *(const uint32_t *)(const void *)multipliers);
            high[k] = FORMAT == NBL_INT8
                          ? words[k].high
                          : decode4_multiply(words[k].high,
                                             *(const uint32_t *)(const void *)(multipliers + CUDA_TILE_TOKENS));
        }
        *(uint4 *)(void *)(image + prefill_piece<128>(prefill_v_row<VD>(d), t / TOKENS16)) = place_tokens(low);
        *(uint4 *)(void *)(image + prefill_piece<128>(prefill_v_row<VD>(d + BLOCK16), t / TOKENS16)) =
            place_tokens(high);
    }
}

template <int KD, int VD> CUDA_DEVICE void expand_v(const attend_params &p, memory<KD, VD> &m)
{
    uint8_t *image = m.image + prefill_image<KD, VD>::v_at;
    const uint32_t format = common_v_format(p, m);
    if (format == NBL_INT8) {
        expand_v_of<KD, VD, NBL_INT8>(p, m);
    } else if (format == NBL_INT4P) {
        expand_v_of<KD, VD, NBL_INT4P>(p, m);
    } else if (format == NBL_MXFP4 || format == NBL_MXFP4_16) {
        expand_v_of<KD, VD, NBL_MXFP4>(p, m);
    } else {
        expand_v_of<KD, VD, NBL_FORMAT_NONE>(p, m);
    }
    const uint32_t unused = VD - p.v_dim_padded;
    for (uint32_t i = threadIdx.x; i < unused * (CUDA_TILE_TOKENS / TOKENS16); i += THREADS) {
        uint32_t row = prefill_v_row<VD>(p.v_dim_padded + i / (CUDA_TILE_TOKENS / TOKENS16));
        *(uint4 *)(void *)(image + prefill_piece<128>(row, i % (CUDA_TILE_TOKENS / TOKENS16))) = make_uint4(0, 0, 0, 0);
    }
}

/* The image to its place; all threads of the block call it, and what they have written is read before it ends. */
template <int KD, int VD> CUDA_DEVICE void store_image(memory<KD, VD> &m, uint8_t *to)
{
    constexpr uint32_t bytes = prefill_image<KD, VD>::bytes;
#if __CUDA_ARCH__ >= 900
    ptx_fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx_bulk_store(to, ptx_shared_address(m.image), bytes);
        ptx_bulk_store_wait();
    }
#else
    __syncthreads();
#pragma unroll 3
    for (uint32_t i = threadIdx.x; i < bytes / 16u; i += THREADS) {
        ((uint4 *)(void *)to)[i] = ((const uint4 *)(const void *)m.image)[i];
    }
#endif
    __syncthreads();
}

/* Items of a unit of the slab. */
CUDA_DEVICE uint32_t items_of_unit(const attend_params &p, uint32_t unit)
{
    const cuda_sequence s = p.sequences[(p.first_unit + unit) / p.kv_heads];
    uint32_t blocks = s.q_len == 0 ? 0u : prefill_blocks(p, s);
    return blocks * (p.split ? cuda_live_chunks(&p, s.kv_len) : 1u);
}

/* Where the items of each unit begin, by one block; the work counter becomes 0. */
CUDA_DEVICE void count_items(const attend_params &p)
{
    __shared__ uint32_t sums[THREADS];
    const uint32_t share = (p.units + THREADS - 1u) / THREADS;
    const uint32_t from = min(threadIdx.x * share, p.units), to = min(from + share, p.units);
    uint32_t own = 0, next = 0;
    for (uint32_t u = from; u < to; ++u) {
        own += items_of_unit(p, u);
    }
    sums[threadIdx.x] = own;
    __syncthreads();
    for (uint32_t i = 0; i < threadIdx.x; ++i) {
        next += sums[i];
    }
    for (uint32_t u = from; u < to; ++u) {
        p.prefill_items[1u + u] = next;
        next += items_of_unit(p, u);
    }
    if (threadIdx.x == THREADS - 1u) {
        p.prefill_items[0] = 0;
        p.prefill_items[1u + p.units] = next;
    }
}

/* The block's tiles of a unit of the slab. */
template <int KD, int VD> CUDA_DEVICE void expand_unit(const attend_params &p, memory<KD, VD> &m, uint32_t in_slab)
{
    const uint32_t sequence = (p.first_unit + in_slab) / p.kv_heads;
    const cuda_sequence s = p.sequences[sequence];
    if (s.q_len == 0) {
        return;
    }
    const unit u = {(p.first_unit + in_slab) % p.kv_heads, (uint32_t)s.kv_len,
                    p.page_table + (uint64_t)sequence * p.page_table_stride};
    uint32_t first, end;
    prefill_unit_tiles(p, s, &first, &end);
    for (uint32_t tile = first + blockIdx.x; tile < end; tile += gridDim.x) {
        const uint32_t position = tile * CUDA_TILE_TOKENS + threadIdx.x % CUDA_TILE_TOKENS;
        const bool has_k = threadIdx.x < CUDA_TILE_TOKENS;
        k_token k = {};
        k_words<KD> words = {};
        if (has_k) {
            k = k_token_at(p, u, position);
            words = k_words_of<KD>(k);
            put_range(m, k_range_of(k));
        } else {
            describe_v(p, m, u, position);
        }
        __syncthreads();
        if (has_k) {
            expand_k(m, k, words);
        }
        expand_v(p, m);
        store_image(m, p.images + ((uint64_t)in_slab * p.image_tiles + tile) * prefill_image<KD, VD>::bytes);
    }
}

/* Runs beside the last query rows, whose step lets no block of this one in before prepare and the slab before have
 * ended: what earlier kernels wrote may be read at once, and what they read may be overwritten. */
template <int KD, int VD>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_PROCESSOR)
    prefill_expand_kernel(const __grid_constant__ attend_params p)
{
    extern __shared__ __align__(16) uint8_t dynamic[];
    memory<KD, VD> &m = *reinterpret_cast<memory<KD, VD> *>(dynamic);
    ptx_grid_release();
    if (blockIdx.y != 0) {
        expand_unit(p, m, blockIdx.y - 1u);
    } else if (blockIdx.x == 0) { /* first, so that nobody waits for it */
        count_items(p);
    }
    ptx_grid_wait(); /* the step after this one relies on it */
}

template <int KD, int VD> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    constexpr uint32_t bytes = sizeof(memory<KD, VD>);
    cudaError_t error =
        cudaFuncSetAttribute(prefill_expand_kernel<KD, VD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    dim3 grid(p->image_tiles < BLOCKS_PER_UNIT_MAX ? p->image_tiles : BLOCKS_PER_UNIT_MAX, p->units + 1u);
    return launch_after(prefill_expand_kernel<KD, VD>, grid, THREADS, bytes, stream, p);
}

} // namespace

extern "C" cudaError_t nbl_cuda_prefill_expand(const attend_params *p, cudaStream_t stream)
{
    return cuda_prefill_dim(p->k_dim, p->v_dim) == 64u ? launch<64, 64>(p, stream) : launch<128, 128>(p, stream);
}

extern "C" int nbl_cuda_prefill_supports(const attend_params *p)
{
    uint64_t rows = (uint64_t)p->q_len_max * p->group_rows;
    return p->slab_units > 0 && rows >= CUDA_PREFILL_ROWS_MIN && p->cap == 0.0f && p->alibi_slopes == NULL &&
           p->tree_mask == NULL && (p->state_head.data == NULL || p->split);
}

/* wgmma where there is any; a build with NIBBLE_CUDA_PREFILL_MMA tests the other kernel there. */
static cudaError_t attend_images(const attend_params *p, cudaStream_t stream)
{
#ifdef NIBBLE_CUDA_PREFILL_MMA
    return nbl_cuda_prefill_mma(p, stream);
#else
    return p->capability / 10u == 9u ? nbl_cuda_prefill_wgmma(p, stream) : nbl_cuda_prefill_mma(p, stream);
#endif
}

/* The output's rows are one block of v_hadamard and can be written 16 bytes at a time. */
static bool has_whole_rows(const attend_params *p)
{
    const cuda_tensor *o = &p->o;
    return p->v_hadamard == cuda_prefill_dim(p->k_dim, p->v_dim) && p->v_dim == p->v_hadamard && o->data != NULL &&
           o->packed && o->dtype != NBL_F32 &&
           (((uint64_t)o->data | (uint64_t)o->stride[0] | (uint64_t)o->stride[1]) & 15u) == 0;
}

/* With heads in turn the last items are short ones; but then the images of all of them are in use together, and those
 * that the second-level cache does not hold are read again and again (65536 tokens of 8 heads: 4 % slower). */
static bool takes_turns(const attend_params *p)
{
    const uint64_t image_bytes = cuda_prefill_image_bytes(cuda_prefill_dim(p->k_dim, p->v_dim));
    return image_bytes * p->image_tiles * p->kv_heads <= TURN_BYTES_MAX;
}

extern "C" cudaError_t nbl_cuda_attend_prefill(const attend_params *p, cudaStream_t stream)
{
    const uint32_t units = p->batch * p->kv_heads;
    attend_params slab = *p;
    cudaError_t error = cudaSuccess;
    slab.whole_rows = has_whole_rows(p);
    slab.heads_in_turn = takes_turns(p);
    for (uint32_t first = 0; first < units && error == cudaSuccess; first += p->slab_units) {
        slab.first_unit = first;
        slab.units = units - first < p->slab_units ? units - first : p->slab_units;
        error = nbl_cuda_prefill_queries(&slab, stream);
        error = error == cudaSuccess ? nbl_cuda_prefill_expand(&slab, stream) : error;
        error = error == cudaSuccess ? attend_images(&slab, stream) : error;
    }
    return error;
}
