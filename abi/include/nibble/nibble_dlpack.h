/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble_dlpack.h
 * @brief DLPack tensors to nbl_tensor and back. Optional, header-only, needs no dlpack.h.
 *
 * Only the versioned struct (DLManagedTensorVersioned, DLPack 1.x) is taken: the older one cannot say that a tensor is
 * read-only. The structs below have its layout; a pointer out of a PyCapsule named "dltensor_versioned", or to the
 * struct of dlpack.h, is passed as void *.
 *
 * Import borrows: the tensor stays its producer's, and has to stay alive until the stream has passed the calls that use
 * it; then nbl_dlpack_release gives it back. Export lends: the consumer's deleter tells the owner.
 */
#ifndef NIBBLE_DLPACK_H
#define NIBBLE_DLPACK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NBL_DLPACK_MAJOR 1u
#define NBL_DLPACK_READ_ONLY 1u /**< flag: nobody may write the data */
#define NBL_DLPACK_CAPSULE "dltensor_versioned"

/** Kinds of memory that nibble can use (DLDeviceType). */
enum nbl_dlpack_device {
    NBL_DLPACK_CPU = 1,
    NBL_DLPACK_CUDA = 2,
    NBL_DLPACK_CUDA_HOST = 3,
    NBL_DLPACK_CUDA_MANAGED = 13
};

/** Kinds of numbers that nibble can use (DLDataTypeCode). */
enum nbl_dlpack_code { NBL_DLPACK_FLOAT = 2, NBL_DLPACK_BFLOAT = 4 };

/** What a tensor is wanted for. */
enum nbl_dlpack_access { NBL_DLPACK_INPUT = 0, NBL_DLPACK_OUTPUT = 1 };

/** DLTensor. */
typedef struct nbl_dlpack_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    int64_t *shape;
    int64_t *strides; /**< in elements, or NULL: packed, row-major */
    uint64_t byte_offset;
} nbl_dlpack_tensor;

/** DLManagedTensorVersioned. */
typedef struct nbl_dlpack_managed {
    uint32_t major;
    uint32_t minor;
    void *manager_ctx;
    void (*deleter)(struct nbl_dlpack_managed *self);
    uint64_t flags;
    nbl_dlpack_tensor tensor;
} nbl_dlpack_managed;

/** Fills err (may be NULL) with "nibble: dlpack: " and the text, in which %lld stands for value. */
static inline nbl_status nbl_dlpack_fail(nbl_error *err, nbl_status status, const char *text, int64_t value)
{
    if (err && err->struct_size >= sizeof *err) {
        const char *mark = strstr(text, "%lld");
        const int head = (int)(mark ? mark - text : (ptrdiff_t)strlen(text));
        char number[24] = "";
        if (mark)
            (void)snprintf(number, sizeof number, "%lld", (long long)value);
        (void)snprintf(err->message, sizeof err->message, "nibble: dlpack: %.*s%s%s", head, text, number,
                       mark ? mark + 4 : "");
        err->status = status;
        err->origin = NBL_ORIGIN_HOST;
        err->native_code = 0;
        err->truncated = 0;
    }
    return status;
}

/** nbl_dtype of a DLPack type, NBL_DTYPE_NONE for one that nibble does not take. */
static inline uint32_t nbl_dlpack_dtype(uint32_t code, uint32_t bits)
{
    if (code == NBL_DLPACK_FLOAT)
        return bits == 32 ? NBL_F32 : bits == 16 ? NBL_F16 : NBL_DTYPE_NONE;
    return code == NBL_DLPACK_BFLOAT && bits == 16 ? NBL_BF16 : NBL_DTYPE_NONE;
}

static inline nbl_status nbl_dlpack_check_type(const nbl_dlpack_tensor *t, nbl_error *err)
{
    if (t->dtype_lanes != 1)
        return nbl_dlpack_fail(err, NBL_E_UNSUPPORTED, "elements have %lld lanes; 1 is needed", t->dtype_lanes);
    if (t->dtype_bits % 8 != 0)
        return nbl_dlpack_fail(err, NBL_E_UNSUPPORTED,
                               "elements have %lld bits; tensors of f32, f16 or bf16 are needed, pages are no tensors",
                               t->dtype_bits);
    if (nbl_dlpack_dtype(t->dtype_code, t->dtype_bits) == NBL_DTYPE_NONE)
        return nbl_dlpack_fail(err, NBL_E_UNSUPPORTED, "type code %lld of this width; f32, f16 or bf16 are needed",
                               t->dtype_code);
    if (t->ndim < 1 || t->ndim > (int32_t)NBL_RANK_MAX)
        return nbl_dlpack_fail(err, NBL_E_INVALID, "%lld dimensions; 1 to 5 are allowed", t->ndim);
    return t->shape ? NBL_OK : nbl_dlpack_fail(err, NBL_E_INVALID, "shape is NULL", 0);
}

static inline nbl_status nbl_dlpack_check_place(const nbl_dlpack_tensor *t, const nbl_stream *stream, nbl_error *err)
{
    const int32_t type = t->device_type;
    const int on_host = type == NBL_DLPACK_CPU || type == NBL_DLPACK_CUDA_HOST || type == NBL_DLPACK_CUDA_MANAGED;
    const int on_device = type == NBL_DLPACK_CUDA || type == NBL_DLPACK_CUDA_HOST || type == NBL_DLPACK_CUDA_MANAGED;
    if (stream->kind == NBL_STREAM_CUDA ? !on_device : !on_host)
        return nbl_dlpack_fail(err, NBL_E_INVALID, "device type %lld is not memory that this backend can use", type);
    if (type == NBL_DLPACK_CUDA && t->device_id != stream->device)
        return nbl_dlpack_fail(err, NBL_E_INVALID, "the tensor lies on CUDA device %lld, the stream on another",
                               t->device_id);
    return NBL_OK;
}

/** Shape and strides into out, whose other fields are set. Strides of a dimension of one element do not matter. */
static inline nbl_status nbl_dlpack_copy_shape(const nbl_dlpack_tensor *t, int output, nbl_tensor *out, nbl_error *err)
{
    const int64_t bytes = t->dtype_bits / 8;
    const int64_t bound = INT64_MAX / 16;
    int64_t packed = bytes;
    int empty = 0, moves = 0, longer = 0;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        const int64_t extent = t->shape[i];
        const int64_t stride = t->strides ? t->strides[i] : packed / bytes;
        if (extent < 0 || (extent > 1 && (stride > bound || stride < -bound)) || (extent && packed > bound / extent))
            return nbl_dlpack_fail(err, NBL_E_INVALID, "dimension %lld is out of range", i);
        if (output && extent > 1 && stride == 0)
            return nbl_dlpack_fail(err, NBL_E_OVERLAP, "dimension %lld of an output is broadcast", i);
        out->shape[i] = (uint64_t)extent;
        out->stride_bytes[i] = extent > 1 ? stride * bytes : packed;
        moves |= extent > 1 && stride != 0;
        longer |= extent > 1;
        empty |= extent == 0;
        packed *= extent;
    }
    if (longer && !moves && !empty)
        return nbl_dlpack_fail(err, NBL_E_UNSUPPORTED, "every stride is 0; give one dimension that is not broadcast",
                               0);
    return NBL_OK;
}

/** Views a DLPack tensor as nbl_tensor, without copying and without taking it over.
 *
 * @param managed     a DLManagedTensorVersioned
 * @param access      enum nbl_dlpack_access
 * @param stream      that the tensor will be used on: its kind and device decide which memory is allowed
 * @param out_tensor  written on success only
 * @retval NBL_OK             release managed by nbl_dlpack_release when the stream has passed
 * @retval NBL_E_ABI          another major version: the deleter, the one thing that may be called, has been called;
 *                            managed is gone
 * @retval NBL_E_INVALID      NULL, rank, shape, memory of another kind or device, an output that is read-only
 * @retval NBL_E_UNSUPPORTED  not f32, f16 or bf16; lanes; elements of less than a byte; nothing but broadcasts
 * @retval NBL_E_OVERLAP      an output with a broadcast dimension
 * @retval NBL_E_ALIGN        data is not aligned to the element
 *                            (after these four managed is still the caller's)
 */
static inline nbl_status nbl_dlpack_import(void *managed, uint32_t access, const nbl_stream *stream,
                                           nbl_tensor *out_tensor, nbl_error *err)
{
    nbl_dlpack_managed *m = (nbl_dlpack_managed *)managed;
    nbl_tensor out;
    if (!m)
        return nbl_dlpack_fail(err, NBL_E_INVALID, "the tensor is NULL", 0);
    if (m->major != NBL_DLPACK_MAJOR) {
        const int64_t major = m->major;
        if (m->deleter)
            m->deleter(m);
        return nbl_dlpack_fail(err, NBL_E_ABI, "version %lld.x; 1.x is needed", major);
    }
    const nbl_dlpack_tensor *t = &m->tensor;
    nbl_status status = nbl_dlpack_check_type(t, err);
    if (status == NBL_OK)
        status = nbl_dlpack_check_place(t, stream, err);
    if (status == NBL_OK && access == NBL_DLPACK_OUTPUT && (m->flags & NBL_DLPACK_READ_ONLY))
        status = nbl_dlpack_fail(err, NBL_E_INVALID, "the tensor is read-only and cannot be an output", 0);
    if (status != NBL_OK)
        return status;
    memset(&out, 0, sizeof out);
    out.data = t->data ? (char *)t->data + t->byte_offset : NULL;
    out.dtype = nbl_dlpack_dtype(t->dtype_code, t->dtype_bits);
    out.rank = (uint32_t)t->ndim;
    status = nbl_dlpack_copy_shape(t, access == NBL_DLPACK_OUTPUT, &out, err);
    if (status == NBL_OK && (uintptr_t)out.data % (t->dtype_bits / 8u) != 0)
        status = nbl_dlpack_fail(err, NBL_E_ALIGN, "data is not aligned to %lld bytes", t->dtype_bits / 8);
    if (status == NBL_OK)
        *out_tensor = out;
    return status;
}

/** Gives an imported tensor back to its producer. NULL is accepted. */
static inline void nbl_dlpack_release(void *managed)
{
    nbl_dlpack_managed *m = (nbl_dlpack_managed *)managed;
    if (m && m->deleter)
        m->deleter(m);
}

/** An exported tensor with what it needs, in one block. */
typedef struct nbl_dlpack_export_block {
    nbl_dlpack_managed managed;
    int64_t shape[NBL_RANK_MAX];
    int64_t strides[NBL_RANK_MAX];
    void (*release)(void *owner);
} nbl_dlpack_export_block;

static inline void nbl_dlpack_export_delete(nbl_dlpack_managed *self)
{
    nbl_dlpack_export_block *block = (nbl_dlpack_export_block *)(void *)self;
    if (block->release)
        block->release(self->manager_ctx);
    free(block);
}

/** Lends a tensor as DLManagedTensorVersioned.
 *
 * The code of the deleter is that of the file which includes this header, and must stay loaded as long as the tensor
 * lives.
 * @param device_type  enum nbl_dlpack_device
 * @param flags        NBL_DLPACK_READ_ONLY or 0
 * @param owner        given to release
 * @param release      called once, when the consumer is done; or NULL
 * @param out_managed  written on success only
 * @retval NBL_OK
 * @retval NBL_E_INVALID    no data type, no rank, a stride that is no whole number of elements
 * @retval NBL_E_NO_MEMORY
 */
static inline nbl_status nbl_dlpack_export(const nbl_tensor *tensor, int32_t device_type, int32_t device_id,
                                           uint64_t flags, void *owner, void (*release)(void *owner),
                                           nbl_dlpack_managed **out_managed, nbl_error *err)
{
    const int64_t bytes = tensor->dtype == NBL_F32 ? 4 : 2;
    int64_t packed = bytes;
    int given = 0;
    if (tensor->dtype < NBL_F32 || tensor->dtype > NBL_BF16 || tensor->rank < 1 || tensor->rank > NBL_RANK_MAX)
        return nbl_dlpack_fail(err, NBL_E_INVALID, "the tensor has no data type or no rank", 0);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        given |= tensor->stride_bytes[i] != 0;
        if (tensor->stride_bytes[i] % bytes != 0)
            return nbl_dlpack_fail(err, NBL_E_INVALID, "stride %lld is no whole number of elements", i);
    }
    nbl_dlpack_export_block *block = (nbl_dlpack_export_block *)calloc(1, sizeof *block);
    if (!block)
        return nbl_dlpack_fail(err, NBL_E_NO_MEMORY, "no memory", 0);
    for (uint32_t i = tensor->rank; i-- > 0; packed *= (int64_t)tensor->shape[i]) {
        block->shape[i] = (int64_t)tensor->shape[i];
        block->strides[i] = (given ? tensor->stride_bytes[i] : packed) / bytes;
    }
    nbl_dlpack_managed *m = &block->managed;
    m->major = NBL_DLPACK_MAJOR;
    m->manager_ctx = owner;
    m->deleter = nbl_dlpack_export_delete;
    m->flags = flags;
    m->tensor.data = tensor->data;
    m->tensor.device_type = device_type;
    m->tensor.device_id = device_id;
    m->tensor.ndim = (int32_t)tensor->rank;
    m->tensor.dtype_code = tensor->dtype == NBL_BF16 ? NBL_DLPACK_BFLOAT : NBL_DLPACK_FLOAT;
    m->tensor.dtype_bits = (uint8_t)(8 * bytes);
    m->tensor.dtype_lanes = 1;
    m->tensor.shape = block->shape;
    m->tensor.strides = block->strides;
    block->release = release;
    *out_managed = m;
    return NBL_OK;
}

#ifdef __cplusplus
}
#endif

#endif
