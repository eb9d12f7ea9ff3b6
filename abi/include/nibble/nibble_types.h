/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble_types.h
 * @brief Types shared by the application ABI and the backend ABI.
 *
 * Only fixed-width fields, no bool, no bit-field, no long. Every argument struct starts with the same header
 * (struct_size, flags, next) and is zeroed by its owner before use; a zero field always means the default.
 *
 * Axis letters, everywhere: B sequences in a batch, Hq query heads, Hk key/value heads, T tokens, D head dimension
 * (Dk of keys and queries, Dv of values), P pages, L layers. Strides are in bytes. "NUM x.y" cites docs/numerics.md.
 */
#ifndef NIBBLE_TYPES_H
#define NIBBLE_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bit-exactness contract: the version of docs/numerics.md. Runtime and backend must agree. */
#define NBL_NUMERICS_VERSION 1u
/** Page layout contract (docs/formats.md). Runtime and backend must agree. */
#define NBL_LAYOUT_VERSION 1u

/* ------------------------------------------------------------------------------------------------ status */

/** One list of all status codes: X(name, value, meaning). */
#define NBL_STATUS_LIST(X)                                                                \
    X(OK, 0, "success")                                                                   \
    X(E_INVALID, -1, "an argument is outside what the function accepts")                  \
    X(E_ABI, -2, "a struct or table is too short, or versions do not match")              \
    X(E_UNKNOWN_FIELD, -3, "a struct carries non-zero fields this version does not know") \
    X(E_UNSUPPORTED, -4, "valid, but this backend cannot do it")                          \
    X(E_NOT_FOUND, -5, "no such backend, file, sequence or page")                         \
    X(E_NO_MEMORY, -6, "out of memory or out of pages")                                   \
    X(E_RANGE, -7, "an index or length in the data points outside its array")             \
    X(E_STATE, -8, "the handle is destroyed, of another kind, or in the wrong state")     \
    X(E_FORKED, -9, "the handle was created in another process")                          \
    X(E_BACKEND, -10, "the backend file is damaged, foreign or misbehaves")               \
    X(E_DEVICE, -11, "no usable device, or the device failed")                            \
    X(E_OVERLAP, -12, "an output overlaps an input or another output")                    \
    X(E_ALIGN, -13, "a pointer or stride is not aligned as its type needs")               \
    X(E_IO, -14, "a file could not be read or written")                                   \
    X(E_ENV, -15, "an environment variable has a value that is not allowed")

/** Result of every call: 0 or a negative code of #NBL_STATUS_LIST. */
typedef int32_t nbl_status;

#define NBL_STATUS_ENUM(name, value, text) NBL_##name = (value),
enum { NBL_STATUS_LIST(NBL_STATUS_ENUM) NBL_STATUS_MAX_ENUM = 0x7fffffff };
#undef NBL_STATUS_ENUM

/** Who found the error. */
enum nbl_origin {
    NBL_ORIGIN_NONE = 0,
    NBL_ORIGIN_HOST = 1,    /**< the caller's arguments */
    NBL_ORIGIN_LOADER = 2,  /**< finding and opening a backend */
    NBL_ORIGIN_BACKEND = 3, /**< inside a backend */
    NBL_ORIGIN_OS = 4,      /**< native_code is an errno */
    NBL_ORIGIN_CUDA = 5,    /**< native_code is a cudaError_t */
    NBL_ORIGIN_MAX_ENUM = 0x7fffffff
};

/** Log levels, as in NIBBLE_LOG. */
enum nbl_log_level {
    NBL_LOG_ERROR = 0,
    NBL_LOG_WARN = 1,
    NBL_LOG_INFO = 2,
    NBL_LOG_DEBUG = 3,
    NBL_LOG_MAX_ENUM = 0x7fffffff
};

/** Caller-owned error text. Zero it, set struct_size, pass it or NULL. One line, always NUL-terminated. */
typedef struct nbl_error {
    uint32_t struct_size;
    nbl_status status;
    uint32_t origin;     /**< enum nbl_origin */
    int32_t native_code; /**< errno or cudaError_t where origin says so, else 0 */
    uint32_t truncated;  /**< 1 if message was cut */
    uint32_t reserved;
    char message[480];
} nbl_error;

/* ------------------------------------------------------------------------------------------------ structs */

/** Node of an extension chain. Unknown optional nodes are skipped, unknown required ones refused (32 at most). */
typedef struct nbl_ext {
    uint32_t struct_size;
    uint32_t type;
    uint32_t flags; /**< NBL_EXT_REQUIRED */
    uint32_t reserved;
    const struct nbl_ext *next;
} nbl_ext;

#define NBL_EXT_REQUIRED 1u
#define NBL_EXT_CHAIN_MAX 32u

/** First fields of every argument struct. */
#define NBL_HEADER        \
    uint32_t struct_size; \
    uint32_t flags;       \
    const nbl_ext *next

/** Zero-initialiser that sets struct_size: nbl_attend_args a = NBL_INIT(nbl_attend_args); */
#ifdef __cplusplus
#define NBL_INIT(type) nbl_init_struct<type>()
extern "C++" {
template <typename T> static inline T nbl_init_struct()
{
    T value = T();
    value.struct_size = static_cast<uint32_t>(sizeof(T));
    return value;
}
}
#else
#define NBL_INIT(type)                        \
    {                                         \
        .struct_size = (uint32_t)sizeof(type) \
    }
#endif

/** 1 if a struct is long enough to have a field: to be asked for fields since 1.1 before they are read from memory that
 * an older program may have filled. */
#define NBL_HAS_FIELD(type, pointer, field) ((pointer)->struct_size >= offsetof(type, field) + sizeof((pointer)->field))

/* ------------------------------------------------------------------------------------------------ tensors */

enum nbl_dtype {
    NBL_DTYPE_NONE = 0,
    NBL_F32 = 1,
    NBL_F16 = 2,
    NBL_BF16 = 3,
    NBL_U8 = 4, /**< bytes of codes and scales; append_coded alone takes them. Since ABI 1.1 */
    NBL_DTYPE_MAX_ENUM = 0x7fffffff
};

#define NBL_RANK_MAX 5u

/** Strided view; borrowed. stride_bytes may be anything that keeps elements aligned to their size; inputs are const.
 *  Element (i0, i1, ...) is at data + i0*stride_bytes[0] + i1*stride_bytes[1] + ... An all-zero stride_bytes means
 *  row-major and packed. data == NULL means "absent". */
typedef struct nbl_tensor {
    void *data;
    uint32_t dtype; /**< enum nbl_dtype */
    uint32_t rank;
    uint64_t shape[NBL_RANK_MAX];
    int64_t stride_bytes[NBL_RANK_MAX];
} nbl_tensor;

/* ------------------------------------------------------------------------------------------------ formats */

/** Storage format of one K or V vector (NUM 2, docs/formats.md). */
enum nbl_format {
    NBL_FORMAT_NONE = 0,
    NBL_INT8 = 1,        /**< 8-bit codes, one exponent per vector */
    NBL_MXFP4 = 2,       /**< OCP E2M1 codes, one E8M0 exponent per 32 elements, spread at most 3 */
    NBL_MXFP4_16 = 3,    /**< the same with blocks of 16 */
    NBL_INT4P = 4,       /**< 4-bit codes, a 4-bit multiplier per 16 elements, one exponent per vector */
    NBL_FORMAT_BF16 = 5, /**< bfloat16; this and the following belong to the float core (NUM 6) */
    NBL_FORMAT_FP16 = 6, /**< IEEE binary16; in a pool, K is fp16 in all regions or in none, and so is V */
    NBL_FP8_E4M3 = 7,    /**< E4M3 codes */
    NBL_NVFP4 = 8,       /**< E2M1 codes, one E4M3 scale per 16 elements */
    NBL_FORMAT_MAX_ENUM = 0x7fffffff
};

/** Form of the query row inside attend (NUM 5.1). */
enum nbl_qformat {
    NBL_Q_DEFAULT = 0, /**< NBL_Q8 */
    NBL_Q8 = 1,        /**< int8 */
    NBL_Q4 = 2,        /**< mxfp4 */
    NBL_Q_FP4 = 3,     /**< K's own format, nvfp4, mxfp4 or mxfp4_16: the Blackwell core, V in fp8_e4m3 (NUM 7) */
    NBL_QFORMAT_MAX_ENUM = 0x7fffffff
};

/** Rule that picks a block's scale: 1 to 4 for mxfp4 (NUM 3.4), 5 for nvfp4 (NUM 6.1). A format for which the rule is
 * not meant uses its default. */
enum nbl_scale_rule {
    NBL_RULE_DEFAULT = 0,       /**< NBL_RULE_OPTIMAL */
    NBL_RULE_OPTIMAL = 1,       /**< smallest e with amax <= 7.25 * 2^e */
    NBL_RULE_FLOOR = 2,         /**< OCP: floor(log2 amax) - 2 */
    NBL_RULE_CEIL = 3,          /**< smallest e with amax <= 6 * 2^e; never clips */
    NBL_RULE_MSE = 4,           /**< least squared error among OPTIMAL - 1, OPTIMAL, OPTIMAL + 1 */
    NBL_RULE_FOUR_OVER_SIX = 5, /**< nvfp4: amax / 6 or amax / 4, whichever errs less; the default is amax / 6 */
    NBL_RULE_MAX_ENUM = 0x7fffffff
};

#define NBL_K_DIM_MAX 576u
#define NBL_V_DIM_MAX 512u
#define NBL_DIM_MIN 16u
#define NBL_DIM_STEP 8u
#define NBL_PAGE_TOKENS_MAX 1024u
#define NBL_HADAMARD_MAX 256u
#define NBL_KV_TOKENS_MAX (1u << 24) /**< longest sequence (NUM 5.9) */
#define NBL_CHUNK_TOKENS 1024u       /**< attend ranges are multiples of this (NUM 5.2) */
#define NBL_REGIONS_MAX 8u
#define NBL_MEMORY_ALIGNMENT 256u /**< bytes: of what memory_alloc gives, and of workspaces */

#define NBL_CENTERING_MEAN 1u  /**< the mean of a sequence's first tokens is taken off (NUM 4.2) */
#define NBL_CENTERING_SHIFT 2u /**< channels of K are scaled by powers of two, those of Q the other way (NUM 4.5) */
#define NBL_CENTERING_ALL 3u

/** Geometry and transforms of a KV cache; says everything but the formats and where the bytes are. */
typedef struct nbl_kv_shape {
    NBL_HEADER;
    uint32_t layers;       /**< L >= 1 */
    uint32_t kv_heads;     /**< Hk >= 1 */
    uint32_t k_dim;        /**< Dk: 16..576, multiple of 8 */
    uint32_t v_dim;        /**< Dv: 16..512, multiple of 8 */
    uint32_t page_tokens;  /**< 1..1024 */
    uint32_t k_hadamard;   /**< 0 or a power of two 8..256 dividing Dk: Walsh-Hadamard on Q and K (NUM 4.1) */
    uint32_t v_hadamard;   /**< 0 or a power of two 8..256 dividing Dv: on V, undone on O */
    uint32_t k_scale_rule; /**< enum nbl_scale_rule */
    uint32_t v_scale_rule; /**< enum nbl_scale_rule */
    uint32_t centering;    /**< NBL_CENTERING_ bits: what K is stored relative to, per (sequence, layer, head) */
} nbl_kv_shape;

/** A run of page ids that share one pair of formats. Page p of layer l has its codes at
 *  codes + l*code_layer_stride + (p - first_page)*code_page_stride, its scales likewise. Strides may exceed the sizes
 *  of nbl_page_layout (padding, layers interleaved in a page) and need 16-byte multiples. */
typedef struct nbl_region {
    uint32_t k_format; /**< enum nbl_format */
    uint32_t v_format; /**< enum nbl_format */
    uint32_t first_page;
    uint32_t page_count;
    void *codes;  /**< 16-byte aligned */
    void *scales; /**< 16-byte aligned */
    uint64_t code_page_stride;
    uint64_t code_layer_stride;
    uint64_t scale_page_stride;
    uint64_t scale_layer_stride;
} nbl_region;

/** All pages of a cache. Regions are in increasing, non-overlapping page order. Borrowed by each call. */
typedef struct nbl_pool {
    NBL_HEADER;
    const nbl_kv_shape *shape;
    const nbl_region *regions;
    uint32_t region_count; /**< 1..8 */
    uint32_t reserved;
    /** float32 [L, Hk] in device memory, or NULL: 1. What K is stored as a multiple of, in pools of the float core
     *  alone; 2^-30 to 2^30 (NUM 6.7). */
    const float *k_scale;
    const float *v_scale; /**< the same of V */
} nbl_pool;

/** Sizes of one page of one layer in one pair of formats (docs/formats.md); out of kv_layout. */
typedef struct nbl_page_layout {
    NBL_HEADER;
    uint64_t code_page_bytes;   /**< codes of all heads, K then V */
    uint64_t scale_page_bytes;  /**< exponents and multipliers of all heads, K then V */
    uint64_t k_code_head_bytes; /**< distance between two heads' K codes */
    uint64_t v_code_head_bytes;
    uint64_t v_code_offset; /**< of head 0's V codes in the page */
    uint64_t k_scale_head_bytes;
    uint64_t v_scale_head_bytes;
    uint64_t v_scale_offset;
    uint32_t alignment; /**< of pool pointers and strides: 16 */
    uint32_t reserved;
} nbl_page_layout;

/* ------------------------------------------------------------------------------------------------ streams */

enum nbl_stream_kind {
    NBL_STREAM_HOST = 0, /**< the call has finished when it returns */
    NBL_STREAM_CUDA = 1, /**< handle is a CUstream */
    NBL_STREAM_KIND_MAX_ENUM = 0x7fffffff
};

/** Handles of CUDA's own two default streams. A NULL handle is refused: which of the two it means depends on how a
 * program was compiled. */
#define NBL_STREAM_CUDA_LEGACY ((void *)1)
#define NBL_STREAM_CUDA_PER_THREAD ((void *)2)

/** Where a call is ordered; never stored, created or synchronised by nibble. */
typedef struct nbl_stream {
    uint32_t kind; /**< enum nbl_stream_kind */
    int32_t device;
    void *handle;
} nbl_stream;

/** Opaque device of a backend. */
typedef struct nbl_device nbl_device;

/* ------------------------------------------------------------------------------------------------ operations */

enum nbl_op {
    NBL_OP_NONE = 0,
    NBL_OP_APPEND = 1,
    NBL_OP_ATTEND = 2,
    NBL_OP_GATHER = 3,
    NBL_OP_COPY_PAGES = 4,
    NBL_OP_TRANSCODE = 5,
    NBL_OP_MERGE = 6,
    NBL_OP_APPEND_CODED = 7, /**< since ABI 1.1 */
    NBL_OP_MAX_ENUM = 0x7fffffff
};

/** Counters that append and transcode add to; readable by the device, zeroed by the owner. */
typedef struct nbl_quant_stats {
    uint64_t vectors;    /**< K and V vectors written */
    uint64_t nan_inputs; /**< NaN elements, stored as 0 */
    uint64_t inf_inputs; /**< infinite elements, clamped to +-127*2^40 */
    uint64_t saturated;  /**< elements whose code was clamped, and finite ones beyond +-127*2^40 (NUM 3.1, 3.3) */
    uint64_t flushed;    /**< non-zero vectors stored as all zeros */
} nbl_quant_stats;

/** What append does about the centres when shape.centering is not 0 (NUM 4.2, 4.5). */
enum nbl_center_mode {
    NBL_CENTER_USE = 0,     /**< use the centres given */
    NBL_CENTER_COMPUTE = 1, /**< first set each sequence's centre from its tokens in this call, then use it */
    NBL_CENTER_MAX_ENUM = 0x7fffffff
};

/** Per-sequence K centres of one layer: row r = index of the sequence. Arrays are packed. Ignored without centering. */
typedef struct nbl_centers {
    int8_t *codes; /**< int8 [rows, Hk, Dk], in the transformed domain (NUM 4.2); NULL without NBL_CENTERING_MEAN */
    uint8_t *exponents;  /**< uint8 [rows, Hk], biased by 127; NULL without NBL_CENTERING_MEAN */
    uint8_t *shifts;     /**< uint8 [rows, Hk, Dk], 0 to 7 (NUM 4.5); NULL without NBL_CENTERING_SHIFT */
    const int32_t *rows; /**< [B] row of each sequence, or NULL: row b for sequence b; where centres are computed, those
                              of sequences with tokens differ */
    uint32_t row_count;
    uint32_t reserved;
} nbl_centers;

/** Quantizes T new tokens of one layer into pages. */
typedef struct nbl_append_args {
    NBL_HEADER;
    const nbl_pool *pool;
    uint32_t layer;
    uint32_t batch;            /**< B; only read with centering, else may be 0 */
    nbl_tensor k;              /**< [T, Hk, Dk] f32, f16 or bf16 */
    nbl_tensor v;              /**< [T, Hk, Dv] */
    const int64_t *slots;      /**< [T] page*page_tokens + offset, or -1: skip this token */
    const int32_t *seq_indptr; /**< [B+1] tokens of each sequence, from 0 to T; only read with centering */
    nbl_centers centers;
    uint32_t center_mode; /**< enum nbl_center_mode */
    uint32_t reserved;
    nbl_quant_stats *stats; /**< or NULL */
    void *workspace;
    uint64_t workspace_bytes;
    nbl_stream stream;
} nbl_append_args;

/** How an engine holds the scales of its nvfp4 codes (docs/formats.md F9). C = ceil(D/16) scales of a vector. */
enum nbl_scale_layout {
    NBL_SCALES_LINEAR = 0, /**< [T, Hk, C] */
    NBL_SCALES_128X4 = 1,  /**< matrices of rows of C scales in tiles of 128 rows and 4 columns, 512 bytes each, as
                                block-scaled matrix products take them: [Hk, bytes], a row for each token, or
                                [1, bytes], a row for each token and kv head, token * Hk + head */
    NBL_SCALE_LAYOUT_MAX_ENUM = 0x7fffffff
};

/** Codes of T tokens that an engine has already quantized, and where they go. Since ABI 1.1. */
typedef struct nbl_append_coded_args {
    NBL_HEADER;
    const nbl_pool *pool;
    uint32_t layer;
    uint32_t k_format;     /**< NBL_NVFP4 or NBL_FP8_E4M3; every slot's region has it. Not read without k */
    uint32_t v_format;     /**< the same of v */
    uint32_t scale_layout; /**< enum nbl_scale_layout, of nvfp4 */
    nbl_tensor k;          /**< u8, fp8_e4m3: [T, Hk, Dk]; nvfp4: [T, Hk, Dk/2], element 2i in the low nibble of byte i;
                                absent: K of the slots stays as it is */
    nbl_tensor v;          /**< u8 [T, Hk, Dv] or [T, Hk, Dv/2], or absent */
    nbl_tensor k_scales;   /**< u8 E4M3 as scale_layout says; only with nvfp4 */
    nbl_tensor v_scales;
    const int64_t *slots;   /**< [T] page*page_tokens + offset, or -1: skip this token */
    uint64_t scale_token;   /**< 128X4: token of the matrices that the first token of the call is */
    nbl_quant_stats *stats; /**< or NULL: vectors, and NaN codes and scales as nan_inputs */
    nbl_stream stream;
} nbl_append_coded_args;

/* Flags of nbl_attend_args. */
#define NBL_ATTEND_CAUSAL 1u       /**< key j visible to row i of a sequence iff j <= i + kv_len - q_len */
#define NBL_ATTEND_WINDOW_LEFT 2u  /**< and iff j >= i + kv_len - q_len - window_left */
#define NBL_ATTEND_WINDOW_RIGHT 4u /**< and iff j <= i + kv_len - q_len + window_right */
#define NBL_ATTEND_LSE_BASE2 8u    /**< lse in base 2 instead of natural */
#define NBL_ATTEND_FLAGS_ALL 15u

/** Attention of query rows over the cached tokens of their sequences; prefill, decode and everything between. */
typedef struct nbl_attend_args {
    NBL_HEADER;
    const nbl_pool *pool;
    uint32_t layer;
    uint32_t q_heads;          /**< Hq, a multiple of Hk; query head h reads kv head h / (Hq/Hk) */
    uint32_t q_format;         /**< enum nbl_qformat */
    uint32_t batch;            /**< B */
    nbl_tensor q;              /**< [Tq, Hq, Dk] f32, f16 or bf16 */
    nbl_tensor o;              /**< [Tq, Hq, Dv] f32, f16 or bf16; absent if only states are wanted */
    nbl_tensor lse;            /**< [Tq, Hq] f32, or absent */
    nbl_tensor state_head;     /**< [N, Tq, Hq, 4] f32 {M, L, offset, 0} of the range's N chunks, or absent (NUM 5.6) */
    nbl_tensor state_o;        /**< [N, Tq, Hq, Dv] f32; present iff state_head is */
    const int32_t *q_indptr;   /**< [B+1] query rows of each sequence, from 0 to Tq, non-decreasing */
    const int32_t *kv_len;     /**< [B] tokens in the cache, the queries' own included */
    const int32_t *page_table; /**< [B, page_table_stride] page ids; entries past the length are never read */
    uint32_t page_table_stride; /**< entries per sequence */
    uint32_t q_len_max;         /**< host-side bound on a sequence's query rows */
    uint32_t kv_len_max;        /**< host-side bound on kv_len */
    float sm_scale;             /**< 0: 1/sqrt(Dk) */
    uint32_t window_left;
    uint32_t window_right;
    float soft_cap;       /**< 0: none; else logit := cap * tanh(logit / cap) */
    uint32_t range_begin; /**< tokens [range_begin, range_end) alone take part; multiples of 1024; both 0: all */
    uint32_t range_end;
    uint32_t tree_mask_stride; /**< 32-bit words per query row */
    const float *alibi_slopes; /**< [Hq], -65536 to 65536, or NULL: logit += slope * (key position - query position) */
    const float *sinks;        /**< [Hq] natural-log logits that join the denominator, -2^22 to 2^22 or -inf, or NULL */
    const uint32_t *tree_mask; /**< [Tq, tree_mask_stride] or NULL: bit j of row i (word j/32, bit j%32) lets it see
                                     the j-th of its sequence's last q_len tokens; older tokens are all visible */
    nbl_centers centers;
    void *workspace;
    uint64_t workspace_bytes;
    nbl_stream stream;
    nbl_tensor q_centers; /**< [B, Hq, Dk] f32, f16 or bf16: near the mean of each sequence's queries, untransformed; or
                               absent. Only with NBL_Q_FP4: what is quantized is q less this, and the product of the
                               centre with K is added back (NUM 7.5). Any values give attention of the same q; good ones
                               a smaller error. Since 1.1 */
} nbl_attend_args;

#define NBL_GATHER_STORED 1u /**< leave the transforms in: no inverse Hadamard, no centre added back */

/** Dequantizes tokens of one layer. */
typedef struct nbl_gather_args {
    NBL_HEADER;
    const nbl_pool *pool;
    uint32_t layer;
    uint32_t batch;            /**< only read with centering */
    const int64_t *slots;      /**< [T], -1: that row of the outputs is zero */
    nbl_tensor k;              /**< [T, Hk, Dk] out, or absent */
    nbl_tensor v;              /**< [T, Hk, Dv] out, or absent */
    const int32_t *seq_indptr; /**< [B+1]; only read with centering */
    nbl_centers centers;
    nbl_stream stream;
} nbl_gather_args;

/** Copies whole pages, all layers, bytes as they are; both pages of a pair lie in regions of equal formats. */
typedef struct nbl_copy_pages_args {
    NBL_HEADER;
    const nbl_pool *src_pool;
    const nbl_pool *dst_pool; /**< may be src_pool */
    const int32_t *src_pages; /**< [count] */
    const int32_t *dst_pages; /**< [count], all different and none of them a source */
    uint32_t count;
    uint32_t reserved;
    nbl_stream stream;
} nbl_copy_pages_args;

/** Re-quantizes whole pages, all layers, into the formats of the destination's region (NUM 3.7). */
typedef struct nbl_transcode_args {
    NBL_HEADER;
    const nbl_pool *src_pool;
    const nbl_pool *dst_pool;
    const int32_t *src_pages;
    const int32_t *dst_pages;
    const int32_t *token_counts; /**< [count] tokens in use per page; slots past it are left untouched */
    uint32_t count;
    uint32_t reserved;
    nbl_quant_stats *stats;
    nbl_stream stream;
} nbl_transcode_args;

#define NBL_MERGE_LSE_BASE2 1u /**< lse in and out are base 2 */

/** Merges N partial results of the same query rows. Inputs are either states (exact: equals the undivided call, byte
 *  for byte, when they are given in increasing token order) or pairs (o, lse) (NUM 5.6, 5.8). */
typedef struct nbl_merge_args {
    NBL_HEADER;
    uint32_t count;           /**< N >= 1 */
    uint32_t v_hadamard;      /**< of the cache the states come from; undone on o */
    nbl_tensor in_state_head; /**< [N, T, Hq, 4] f32; or in_o and in_lse */
    nbl_tensor in_state_o;    /**< [N, T, Hq, Dv] f32 */
    nbl_tensor in_o;          /**< [N, T, Hq, Dv] f32, f16 or bf16 */
    nbl_tensor in_lse;        /**< [N, T, Hq] f32 */
    nbl_tensor state_head;    /**< out [T, Hq, 4], or absent; only from states */
    nbl_tensor state_o;       /**< out [T, Hq, Dv]; present iff state_head is */
    nbl_tensor o;             /**< out [T, Hq, Dv], or absent */
    nbl_tensor lse;           /**< out [T, Hq] f32, or absent */
    const float *sinks;       /**< [Hq] as in attend, or NULL; only from states, and only where o or lse is asked for */
    nbl_stream stream;
} nbl_merge_args;

/* Features of nbl_op_desc. */
#define NBL_FEATURE_CAUSAL 1u
#define NBL_FEATURE_WINDOW 2u
#define NBL_FEATURE_SINKS 4u
#define NBL_FEATURE_SOFT_CAP 8u
#define NBL_FEATURE_ALIBI 16u
#define NBL_FEATURE_TREE_MASK 32u
#define NBL_FEATURE_RANGE 64u
#define NBL_FEATURE_STATE 128u
#define NBL_FEATURE_LSE 256u
#define NBL_FEATURE_Q_CENTERS 512u /**< since ABI 1.1 */
#define NBL_FEATURES_ALL 1023u

/** An operation before any memory is laid out: asked of supports() and workspace_size(). */
typedef struct nbl_op_desc {
    NBL_HEADER;
    const nbl_kv_shape *shape;
    uint32_t op; /**< enum nbl_op */
    uint32_t k_format;
    uint32_t v_format;
    uint32_t dst_k_format; /**< transcode only */
    uint32_t dst_v_format;
    uint32_t q_format;
    uint32_t q_heads;
    uint32_t in_dtype;  /**< of Q, or of K and V in append */
    uint32_t out_dtype; /**< of O, or of gather's K and V */
    uint32_t features;  /**< NBL_FEATURE_ bits */
    uint32_t batch_max;
    uint32_t q_tokens_max; /**< Tq, or T of append */
    uint32_t q_len_max;
    uint32_t kv_len_max;
} nbl_op_desc;

/** What a device can do, beyond what supports() answers per operation. */
typedef struct nbl_caps {
    NBL_HEADER;
    uint32_t formats; /**< bit (1 << enum nbl_format) */
    uint32_t k_dim_max;
    uint32_t v_dim_max;
    uint32_t page_tokens_max;
    uint64_t kv_tokens_max;
    uint64_t memory_bytes;  /**< of the device, 0 if not known */
    uint32_t stream_kind;   /**< enum nbl_stream_kind it accepts */
    uint32_t threads;       /**< team size (sim), multiprocessors (cuda) */
    uint32_t deterministic; /**< 1: bits depend on the inputs alone */
    uint32_t graph_capture; /**< 1: calls may be captured and replayed */
    char device_name[64];
    char isa[32]; /**< instruction set in use, e.g. "avx512", "sm_90" */
} nbl_caps;

/** How a device is opened. */
typedef struct nbl_device_options {
    NBL_HEADER;
    uint32_t ordinal;
    uint32_t threads;    /**< sim: team size, 0 = CPUs this process may use; NIBBLE_SIM_THREADS goes before it */
    const char *isa;     /**< sim: a value of NIBBLE_SIM_ISA; NULL = best; NIBBLE_SIM_ISA goes before it */
    const char *profile; /**< sim: the GPU whose arithmetic the float core has, "sm_80", "sm_89", "sm_90", "sm_100" or
                              "sm_120" (NUM 6.2); NULL = "sm_90"; NIBBLE_SIM_PROFILE goes before it */
} nbl_device_options;

/** Direction of a copy between host and device memory. */
enum nbl_copy_kind {
    NBL_COPY_TO_DEVICE = 0,
    NBL_COPY_TO_HOST = 1,
    NBL_COPY_ON_DEVICE = 2,
    NBL_COPY_MAX_ENUM = 0x7fffffff
};

#ifdef __cplusplus
}
#endif

#endif
