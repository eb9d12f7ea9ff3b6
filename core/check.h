/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file check.h
 * @brief The small checks that all argument validation is made of: values, pointers, tensors, pools, overlap.
 *
 * Every check returns NBL_OK or refuses with one line that names the argument, what was given and what is allowed.
 * Pointers are device addresses: they are compared and never followed. Names come as prefix and field ("pool.shape.",
 * "layers") and are printed side by side.
 */
#ifndef NBL_CHECK_H
#define NBL_CHECK_H

#include "internal.h"

#include <inttypes.h>
#include <stdbool.h>

/** Leaves the function with the status of expression unless it is NBL_OK. */
#define NBL_TRY(expression)                      \
    do {                                         \
        const nbl_status status_ = (expression); \
        if (status_ != NBL_OK)                   \
            return status_;                      \
    } while (0)

/** Refuses the caller's arguments: NBL_REFUSE(err, status, format, ...). */
#define NBL_REFUSE(err, status, ...) nbl_fail((err), (status), NBL_ORIGIN_HOST, 0, __VA_ARGS__)

/** Largest number of tokens in one call: token indices are int32. */
#define NBL_CALL_TOKENS_MAX ((uint64_t)INT32_MAX)

/* ------------------------------------------------------------------------------------------------ values, pointers */

/** Refuses a value outside low..high (NBL_E_INVALID). */
nbl_status nbl_value_check(const char *prefix, const char *field, uint64_t value, uint64_t low, uint64_t high,
                           nbl_error *err);

/** Refuses an index that is not below count (NBL_E_RANGE). */
nbl_status nbl_index_check(const char *field, uint64_t index, uint64_t count, nbl_error *err);

/** Refuses a reserved field that is not zero (NBL_E_UNKNOWN_FIELD). */
nbl_status nbl_reserved_check(const char *type_name, uint64_t value, nbl_error *err);

/** Refuses an array pointer that is NULL although count > 0 (NBL_E_INVALID), or not aligned (NBL_E_ALIGN). */
nbl_status nbl_pointer_check(const char *field, const void *pointer, uint64_t count, uint32_t alignment,
                             nbl_error *err);

/** Refuses an unknown stream kind (NBL_E_INVALID). */
nbl_status nbl_stream_check(const nbl_stream *stream, nbl_error *err);

/** Refuses a format that does not exist (NBL_E_INVALID). */
nbl_status nbl_format_check(const char *prefix, const char *field, uint32_t format, nbl_error *err);

/** Refuses a Hadamard block that is not 0 or a power of two 8..256 dividing dim (NBL_E_INVALID, NUM 4.1). */
nbl_status nbl_hadamard_check(const char *prefix, const char *field, uint32_t block, uint32_t dim, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ strided sets */

/** One dimension of a strided set: count elements, stride bytes apart, in whichever direction. */
typedef struct nbl_axis {
    uint64_t count;
    uint64_t stride;
} nbl_axis;

#define NBL_AXES_MAX NBL_RANK_MAX

/** Bytes from the first to past the last byte of blocks of block_bytes along all axes; false if 2^62 is exceeded. */
bool nbl_axes_span(const nbl_axis *axes, uint32_t axis_count, uint64_t block_bytes, uint64_t *out_span_bytes);

/** Tells whether no two blocks share a byte. Sufficient: every stride covers the whole span of all smaller ones. */
bool nbl_axes_disjoint(const nbl_axis *axes, uint32_t axis_count, uint64_t block_bytes);

/* ------------------------------------------------------------------------------------------------ overlap */

/** Bytes [begin, end) that a call reads or writes. */
typedef struct nbl_extent {
    const char *prefix; /**< printed before field; two extents of equal prefix and region >= 0 belong to one pool */
    const char *field;
    int32_t region; /**< index printed between prefix and field, or -1 */
    bool written;
    uintptr_t begin;
    uintptr_t end;
} nbl_extent;

#define NBL_EXTENTS_MAX 64u

/** All memory of a call. */
typedef struct nbl_extents {
    uint32_t count;
    nbl_extent items[NBL_EXTENTS_MAX];
} nbl_extents;

/** Adds an array of count elements; nothing if it is absent or empty. */
void nbl_extents_add(nbl_extents *extents, const char *field, const void *pointer, uint64_t count,
                     uint64_t element_bytes, bool written);

/** Refuses two extents that share a byte, one of them written (NBL_E_OVERLAP). Parts of one pool are not compared:
 *  nbl_pool_in has done so with their strides. */
nbl_status nbl_extents_check(const nbl_extents *extents, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ tensors */

#define NBL_DTYPES_FLOAT ((1u << NBL_F32) | (1u << NBL_F16) | (1u << NBL_BF16))
#define NBL_DTYPES_F32 (1u << NBL_F32)
#define NBL_DTYPES_U8 (1u << NBL_U8)

/** What a tensor argument must look like. */
typedef struct nbl_tensor_rule {
    const char *name;
    const char *axes; /**< for messages, "[T, Hk, Dk]" */
    uint32_t dtypes;  /**< bits 1 << enum nbl_dtype */
    uint32_t rank;
    uint64_t shape[NBL_RANK_MAX];
    bool required; /**< data must be there if the shape has elements */
    bool written;
} nbl_tensor_rule;

/** Bytes of one element, 0 for an unknown dtype. */
uint32_t nbl_dtype_bytes(uint32_t dtype);

/** Tells whether a tensor argument is there. */
static inline bool nbl_tensor_present(const nbl_tensor *tensor)
{
    return tensor->data != NULL;
}

/** Gives the length of an axis of a tensor; refuses another rank and more than NBL_CALL_TOKENS_MAX (NBL_E_INVALID). */
nbl_status nbl_tensor_tokens(const nbl_tensor *tensor, const char *name, const char *axes, uint32_t rank, uint32_t axis,
                             uint64_t *out_tokens, nbl_error *err);

/** Checks a tensor against its rule, makes packed strides explicit, and adds its bytes to extents.
 *
 * An absent tensor that is not required becomes all zero. An output must not overlap itself.
 * @retval NBL_E_INVALID (absent, dtype, rank, shape, size), NBL_E_ALIGN (data, strides), NBL_E_OVERLAP (self-overlap)
 */
nbl_status nbl_tensor_in(nbl_tensor *tensor, const nbl_tensor_rule *rule, nbl_extents *extents, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ shapes, pools */

/** A pool copied out of the caller's memory; pool.shape and pool.regions point into this struct. */
typedef struct nbl_pool_copy {
    nbl_pool pool;
    nbl_kv_shape shape;
    nbl_region regions[NBL_REGIONS_MAX];
    nbl_extent extents[2 * NBL_REGIONS_MAX]; /**< codes and scales of the regions */
    uint32_t extent_count;
} nbl_pool_copy;

/** Checks the values of a complete shape (ranges of nibble_types.h). */
nbl_status nbl_shape_check(const nbl_kv_shape *shape, const char *prefix, nbl_error *err);

/** Copies and checks a shape. */
nbl_status nbl_shape_in(nbl_kv_shape *out, const nbl_kv_shape *shape, const char *prefix, nbl_error *err);

/** Copies and checks a pool: shape, formats, page ranges, alignment, strides, and that no two pages share a byte.
 *  prefix is "pool.", "src_pool." or "dst_pool.". */
nbl_status nbl_pool_in(nbl_pool_copy *out, const nbl_pool *pool, const char *prefix, nbl_error *err);

/** Adds the code and scale bytes of all regions to extents. */
void nbl_pool_extents(const nbl_pool_copy *copy, bool written, nbl_extents *extents);

#endif
