/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_plugin.h
 * @brief The CUDA plugin on the host: device, errors, entering and leaving a slot.
 *
 * Kernels are launched on the caller's stream and never waited for. What sim checks before it writes anything, the
 * first kernel of a call checks here; check() reports it.
 */
#ifndef CUDA_PLUGIN_H
#define CUDA_PLUGIN_H

#include "ops.h"
#include "select.h"

#include <cuda_runtime_api.h>
#include <nibble/nibble_backend.h>

#define CUDA_KNOWN_SLOTS 256u /**< a power of two */

/** Device memory that was asked for lately, by hash of the address; 0 where there is none. An engine passes the same
 *  addresses in every call, and asking the driver takes 0.13 us each. Threads share it: every access is atomic. */
typedef struct cuda_known {
    uintptr_t slots[CUDA_KNOWN_SLOTS];
    uint32_t checks; /**< since all was forgotten */
} cuda_known;

/** An open device. */
struct nbl_device {
    int32_t ordinal;
    uint32_t processors;
    uint32_t capability;        /**< 10 * major + minor */
    uint32_t shared_bytes;      /**< of shared memory that a block may ask for */
    uint32_t reads_host;        /**< 1: kernels may read any host memory */
    cuda_status *status;        /**< for the host */
    cuda_status *status_device; /**< the same memory for kernels */
    cuda_known *known;
};

/** What a slot restores when it leaves. */
typedef struct cuda_saved {
    int current_device;
    int errno_value;
} cuda_saved;

/** The host table of the process; set once by the entry function. */
extern const nbl_host *cuda_host;

/** Fills err with a formatted line and returns status. */
nbl_status cuda_fail(nbl_error *err, nbl_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/** Fills err from an error of the CUDA runtime; NBL_E_DEVICE, or NBL_E_NO_MEMORY for lack of memory. Takes the error
 *  back from the runtime's own record. what names the action. */
nbl_status cuda_fail_native(nbl_error *err, cudaError_t error, const char *what);
/** NBL_OK, or cuda_fail_native. */
nbl_status cuda_result(nbl_error *err, cudaError_t error, const char *what);

/** Makes the device current. On failure nothing has to be left. */
nbl_status cuda_enter(const nbl_device *device, cuda_saved *saved, nbl_error *err);
/** Restores what cuda_enter saved; passes status on. */
nbl_status cuda_leave(const nbl_device *device, const cuda_saved *saved, nbl_status status);

/** Forgets all known memory. */
void cuda_known_clear(cuda_known *known);

/** The stream must be a CUDA stream of the device, not NULL. */
nbl_status cuda_check_stream(const nbl_device *device, nbl_stream stream, nbl_error *err);
/** The memory must be readable by the device; NULL is accepted. */
nbl_status cuda_check_memory(const nbl_device *device, const char *name, const void *memory, nbl_error *err);
/** An argument by its name in the ABI. */
typedef struct cuda_named_memory {
    const char *name;
    const void *memory;
} cuda_named_memory;

/** cuda_check_memory on each of a list. */
nbl_status cuda_check_memories(const nbl_device *device, const cuda_named_memory *list, uint32_t count, nbl_error *err);
/** NBL_E_UNSUPPORTED for shapes beyond CUDA_LAYERS_MAX and CUDA_KV_HEADS_MAX. */
nbl_status cuda_check_shape(const nbl_kv_shape *shape, nbl_error *err);
/** The shape must be one of this backend, all regions of the pool readable by the device. */
nbl_status cuda_check_pool(const nbl_device *device, const char *name, const nbl_pool *pool, nbl_error *err);
/** What the shape's centring reads of the centres must be readable by the device. */
nbl_status cuda_check_centers(const nbl_device *device, const nbl_centers *centers, const nbl_kv_shape *shape,
                              nbl_error *err);

/** Tensor as kernels take it. */
cuda_tensor cuda_tensor_of(const nbl_tensor *tensor);
/** Regions of one layer of a pool. */
cuda_pages cuda_pages_of(const nbl_pool *pool, uint32_t layer);
/** Centres as kernels take them; all zero without centring. */
cuda_centers cuda_centers_of(const nbl_centers *centers, const nbl_kv_shape *shape);

/* Slots of the plugin table. */
nbl_status cuda_device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err);
void cuda_device_close(nbl_device *device);
nbl_status cuda_device_caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err);
nbl_status cuda_memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err);
void cuda_memory_free(nbl_device *device, void *memory);
nbl_status cuda_host_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err);
void cuda_host_free(nbl_device *device, void *memory);
nbl_status cuda_memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                            nbl_stream stream, nbl_error *err);
nbl_status cuda_check(nbl_device *device, nbl_stream stream, nbl_error *err);
nbl_status cuda_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err);
nbl_status cuda_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err);
nbl_status cuda_append(nbl_device *device, const nbl_append_args *args, nbl_error *err);
nbl_status cuda_append_coded(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err);
nbl_status cuda_attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err);
nbl_status cuda_gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err);
nbl_status cuda_copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err);
nbl_status cuda_transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err);
nbl_status cuda_merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err);

#endif
