/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file check.c
 * @brief Checks on the host, and the report of what kernels found.
 */
#include "cuda_plugin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define KNOWN_CHECKS 1024u /* of addresses, after which all is forgotten: the arguments of some 60 calls */

nbl_status cuda_check_stream(const nbl_device *device, nbl_stream stream, nbl_error *err)
{
    if (stream.kind != NBL_STREAM_CUDA) {
        return cuda_fail(err, NBL_E_INVALID, "cuda: stream.kind is %u (allowed: %d, NBL_STREAM_CUDA)", stream.kind,
                         NBL_STREAM_CUDA);
    }
    if (stream.device != device->ordinal) {
        return cuda_fail(err, NBL_E_INVALID, "cuda: stream.device is %d, the device is %d", stream.device,
                         device->ordinal);
    }
    if (stream.handle == NULL) {
        return cuda_fail(err, NBL_E_INVALID,
                         "cuda: stream.handle is NULL (allowed: a stream, cudaStreamLegacy or cudaStreamPerThread)");
    }
    /* A stream may not be asked for its device while it is being captured. */
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int ordinal = device->ordinal;
    cudaError_t error = cudaStreamIsCapturing((cudaStream_t)stream.handle, &capture);
    if (error == cudaSuccess && capture == cudaStreamCaptureStatusNone) {
        error = cudaStreamGetDevice((cudaStream_t)stream.handle, &ordinal);
    }
    if (error != cudaSuccess) {
        return cuda_fail_native(err, error, "stream.handle");
    }
    if (ordinal != device->ordinal) {
        return cuda_fail(err, NBL_E_INVALID, "cuda: stream.handle belongs to device %d, the call is for device %d",
                         ordinal, device->ordinal);
    }
    return NBL_OK;
}

void cuda_known_clear(cuda_known *known)
{
    for (uint32_t i = 0; i < CUDA_KNOWN_SLOTS; ++i) {
        __atomic_store_n(&known->slots[i], 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&known->checks, 0, __ATOMIC_RELAXED);
}

/* Where an address is kept. */
static uintptr_t *known_slot(cuda_known *known, const void *memory)
{
    const uint64_t hash = (uint64_t)(uintptr_t)memory * UINT64_C(0x9e3779b97f4a7c15);
    return &known->slots[hash >> 32 & (CUDA_KNOWN_SLOTS - 1u)];
}

/* Whether the address is known. Now and then all is forgotten, for memory may have been freed. */
static int is_known(cuda_known *known, const void *memory)
{
    if (__atomic_add_fetch(&known->checks, 1, __ATOMIC_RELAXED) >= KNOWN_CHECKS) {
        cuda_known_clear(known);
    }
    return __atomic_load_n(known_slot(known, memory), __ATOMIC_RELAXED) == (uintptr_t)memory;
}

nbl_status cuda_check_memory(const nbl_device *device, const char *name, const void *memory, nbl_error *err)
{
    struct cudaPointerAttributes attributes;
    if (memory == NULL || device->reads_host || is_known(device->known, memory)) {
        return NBL_OK;
    }
    cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
    if (error != cudaSuccess) {
        return cuda_fail_native(err, error, name);
    }
    if (attributes.type == cudaMemoryTypeUnregistered) {
        return cuda_fail(err, NBL_E_INVALID, "cuda: %s is host memory that the device cannot read (%p)", name, memory);
    }
    if (attributes.devicePointer == NULL) { /* of another device, and peer access is off */
        return cuda_fail(err, NBL_E_INVALID, "cuda: %s is memory of device %d, which device %d cannot read", name,
                         attributes.device, device->ordinal);
    }
    if (attributes.type == cudaMemoryTypeDevice) {
        __atomic_store_n(known_slot(device->known, memory), (uintptr_t)memory, __ATOMIC_RELAXED);
    }
    return NBL_OK;
}

nbl_status cuda_check_memories(const nbl_device *device, const cuda_named_memory *list, uint32_t count, nbl_error *err)
{
    nbl_status status = NBL_OK;
    for (uint32_t i = 0; i < count && status == NBL_OK; ++i) {
        status = cuda_check_memory(device, list[i].name, list[i].memory, err);
    }
    return status;
}

/* Memory of region i. Its name is put together only where it is needed. */
static nbl_status check_region(const nbl_device *device, const char *pool, uint32_t i, const char *field,
                               const void *memory, nbl_error *err)
{
    char name[48];
    nbl_status status = cuda_check_memory(device, pool, memory, err);
    if (status == NBL_OK) {
        return NBL_OK;
    }
    snprintf(name, sizeof name, "%s.regions[%u].%s", pool, i, field);
    return cuda_check_memory(device, name, memory, err);
}

static nbl_status check_most(const char *field, uint32_t value, uint32_t most, nbl_error *err)
{
    return value <= most
               ? NBL_OK
               : cuda_fail(err, NBL_E_UNSUPPORTED, "cuda: shape.%s is %u (this backend: up to %u)", field, value, most);
}

nbl_status cuda_check_shape(const nbl_kv_shape *shape, nbl_error *err)
{
    nbl_status status = check_most("layers", shape->layers, CUDA_LAYERS_MAX, err);
    return status == NBL_OK ? check_most("kv_heads", shape->kv_heads, CUDA_KV_HEADS_MAX, err) : status;
}

nbl_status cuda_check_pool(const nbl_device *device, const char *name, const nbl_pool *pool, nbl_error *err)
{
    nbl_status status = cuda_check_shape(pool->shape, err);
    for (uint32_t i = 0; i < pool->region_count && status == NBL_OK; ++i) {
        status = check_region(device, name, i, "codes", pool->regions[i].codes, err);
        status = status == NBL_OK ? check_region(device, name, i, "scales", pool->regions[i].scales, err) : status;
    }
    return status;
}

nbl_status cuda_check_centers(const nbl_device *device, const nbl_centers *centers, const nbl_kv_shape *shape,
                              nbl_error *err)
{
    cuda_centers used = cuda_centers_of(centers, shape);
    const cuda_named_memory list[] = {{"centers.codes", used.codes},
                                      {"centers.exponents", used.exponents},
                                      {"centers.shifts", used.shifts},
                                      {"centers.rows", used.rows}};
    return cuda_check_memories(device, list, sizeof list / sizeof list[0], err);
}

/* ------------------------------------------------------------------------------------------------ faults */

static const char *const indptr_name[2] = {"q_indptr", "seq_indptr"};

static nbl_status report_indptr(const cuda_status *s, nbl_error *err)
{
    const char *name = indptr_name[s->other != 0];
    long long index = (long long)s->index, value = (long long)s->value, limit = (long long)s->limit;
    if (s->code == CUDA_FAULT_INDPTR_FIRST) {
        return cuda_fail(err, NBL_E_RANGE, "cuda: %s[0] is %lld (allowed: 0)", name, value);
    }
    if (s->code == CUDA_FAULT_INDPTR_ORDER) {
        return cuda_fail(err, NBL_E_RANGE, "cuda: %s[%lld] is %lld, less than the entry before it (%lld)", name, index,
                         value, limit);
    }
    return cuda_fail(err, NBL_E_RANGE, "cuda: %s[%lld] is %lld (allowed: %lld, the number of rows)", name, index, value,
                     limit);
}

static nbl_status report_sequence(const cuda_status *s, nbl_error *err)
{
    long long index = (long long)s->index, other = (long long)s->other, value = (long long)s->value;
    long long limit = (long long)s->limit;
    switch (s->code) {
    case CUDA_FAULT_KV_LEN:
        return cuda_fail(err, NBL_E_RANGE, "cuda: kv_len[%lld] is %lld (allowed: 0 to kv_len_max, %lld)", index, value,
                         limit);
    case CUDA_FAULT_Q_LEN:
        return cuda_fail(err, NBL_E_RANGE, "cuda: sequence %lld has %lld query rows (allowed: up to q_len_max, %lld)",
                         index, value, limit);
    case CUDA_FAULT_TREE_MASK:
        return cuda_fail(err, NBL_E_RANGE, "cuda: sequence %lld has %lld query rows, tree_mask_stride is %lld words",
                         index, value, limit);
    case CUDA_FAULT_TABLE_STRIDE:
        return cuda_fail(err, NBL_E_RANGE, "cuda: kv_len[%lld] is %lld, which takes %lld pages; the table holds %lld",
                         index, value, other, limit);
    case CUDA_FAULT_TABLE_PAGE:
        return cuda_fail(err, NBL_E_RANGE, "cuda: page_table[%lld][%lld] is %lld, in no region of the pool", index,
                         other, value);
    default:
        return cuda_fail(err, NBL_E_RANGE, "cuda: centers row of sequence %lld is %lld (allowed: 0 to %lld)", index,
                         value, limit - 1);
    }
}

static double float_of(int64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float x;
    memcpy(&x, &low, sizeof x);
    return (double)x;
}

static nbl_status report_value(const cuda_status *s, nbl_error *err)
{
    double value = float_of(s->value);
    long long index = (long long)s->index;
    if (s->code == CUDA_FAULT_SINK) {
        return cuda_fail(err, NBL_E_RANGE, "cuda: sinks[%lld] is %g (allowed: -2^22 to 2^22, or -inf)", index, value);
    }
    if (s->code == CUDA_FAULT_SLOPE) {
        return cuda_fail(err, NBL_E_RANGE, "cuda: alibi_slopes[%lld] is %g (allowed: -65536 to 65536)", index, value);
    }
    return cuda_fail(err, NBL_E_RANGE, "cuda: in_lse[%lld][%lld][%lld] is %g (allowed: finite or -inf)", index,
                     (long long)(s->other / s->limit), (long long)(s->other % s->limit), value);
}

static nbl_status report_pages(const cuda_status *s, nbl_error *err)
{
    long long index = (long long)s->index, value = (long long)s->value, limit = (long long)s->limit;
    switch (s->code) {
    case CUDA_FAULT_SLOT:
        return cuda_fail(err, NBL_E_RANGE, "cuda: slots[%lld] is %lld, in no page of the pool (allowed: -1 or a slot)",
                         index, value);
    case CUDA_FAULT_SLOT_FORMATS:
        return cuda_fail(err, NBL_E_RANGE, "cuda: slots[%lld] is %lld, in a region of other formats", index, value);
    case CUDA_FAULT_SRC_PAGE:
        return cuda_fail(err, NBL_E_RANGE, "cuda: src_pages[%lld] is %lld, in no region of the pool", index, value);
    case CUDA_FAULT_DST_PAGE:
        return cuda_fail(err, NBL_E_RANGE, "cuda: dst_pages[%lld] is %lld, in no region of the pool", index, value);
    case CUDA_FAULT_FORMATS:
        return cuda_fail(err, NBL_E_RANGE,
                         "cuda: pair %lld copies page %lld to page %lld of other formats (use transcode)", index, value,
                         limit);
    case CUDA_FAULT_DST_TWICE:
        return cuda_fail(err, NBL_E_OVERLAP, "cuda: dst_pages[%lld] is %lld, named twice", index, value);
    case CUDA_FAULT_DST_IS_SRC:
        return cuda_fail(err, NBL_E_OVERLAP, "cuda: src_pages[%lld] is %lld, also a destination", index, value);
    default:
        return cuda_fail(err, NBL_E_RANGE, "cuda: token_counts[%lld] is %lld (allowed: 0 to %lld)", index, value,
                         limit);
    }
}

static nbl_status report(const cuda_status *s, nbl_error *err)
{
    switch (s->code) {
    case CUDA_FAULT_INDPTR_FIRST:
    case CUDA_FAULT_INDPTR_ORDER:
    case CUDA_FAULT_INDPTR_LAST: return report_indptr(s, err);
    case CUDA_FAULT_KV_LEN:
    case CUDA_FAULT_Q_LEN:
    case CUDA_FAULT_TREE_MASK:
    case CUDA_FAULT_TABLE_STRIDE:
    case CUDA_FAULT_TABLE_PAGE:
    case CUDA_FAULT_CENTER_ROW: return report_sequence(s, err);
    case CUDA_FAULT_SINK:
    case CUDA_FAULT_SLOPE:
    case CUDA_FAULT_LSE: return report_value(s, err);
    default: return report_pages(s, err);
    }
}

/* Waits for the stream, unless it is being captured: a fault of work still on its way would be missed. */
static nbl_status wait_for(cudaStream_t stream, nbl_error *err)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaSuccess && capture == cudaStreamCaptureStatusNone) {
        error = cudaStreamSynchronize(stream);
    }
    return cuda_result(err, error, "the device failed");
}

nbl_status cuda_check(nbl_device *device, nbl_stream stream, nbl_error *err)
{
    cuda_saved saved;
    nbl_status status = cuda_enter(device, &saved, err);
    if (status != NBL_OK) {
        return status;
    }
    status = cuda_check_stream(device, stream, err);
    if (status == NBL_OK) {
        status = wait_for((cudaStream_t)stream.handle, err);
    }
    if (status == NBL_OK && ((volatile cuda_status *)device->status)->code != CUDA_FAULT_NONE) {
        cuda_status found = *device->status;
        memset(device->status, 0, sizeof *device->status);
        status = report(&found, err);
    }
    return cuda_leave(device, &saved, status);
}
