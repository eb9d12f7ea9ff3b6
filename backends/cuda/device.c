/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.c
 * @brief Opening a device, its memory, errors of the CUDA runtime.
 */
#include "cuda_plugin.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_ALIGNMENT 64u

/* ------------------------------------------------------------------------------------------------ errors */

nbl_status cuda_fail(nbl_error *err, nbl_status status, const char *format, ...)
{
    char message[sizeof err->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return cuda_host->fail(err, status, NBL_ORIGIN_BACKEND, 0, message);
}

nbl_status cuda_fail_native(nbl_error *err, cudaError_t error, const char *what)
{
    char message[sizeof err->message];
    nbl_status status = error == cudaErrorMemoryAllocation ? NBL_E_NO_MEMORY : NBL_E_DEVICE;
    snprintf(message, sizeof message, "cuda: %s: %s (%d)", what, cudaGetErrorString(error), (int)error);
    (void)cudaGetLastError();
    return cuda_host->fail(err, status, NBL_ORIGIN_CUDA, (int32_t)error, message);
}

nbl_status cuda_result(nbl_error *err, cudaError_t error, const char *what)
{
    return error == cudaSuccess ? NBL_OK : cuda_fail_native(err, error, what);
}

/* ------------------------------------------------------------------------------------------------ entering a slot */

nbl_status cuda_enter(const nbl_device *device, cuda_saved *saved, nbl_error *err)
{
    saved->errno_value = errno;
    cudaError_t error = cudaGetDevice(&saved->current_device);
    if (error == cudaSuccess && saved->current_device != device->ordinal) {
        error = cudaSetDevice(device->ordinal);
    }
    nbl_status status = cuda_result(err, error, "cannot make the device current");
    errno = saved->errno_value;
    return status;
}

nbl_status cuda_leave(const nbl_device *device, const cuda_saved *saved, nbl_status status)
{
    if (saved->current_device != device->ordinal) {
        (void)cudaSetDevice(saved->current_device);
    }
    errno = saved->errno_value;
    return status;
}

/* ------------------------------------------------------------------------------------------------ opening */

/* Why there is no device to count. */
static nbl_status fail_no_device(nbl_error *err, cudaError_t error)
{
    char message[sizeof err->message];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaGetLastError();
    if (error == cudaErrorStubLibrary) {
        snprintf(message, sizeof message, "cuda: the libcuda found is that of the toolkit, not the driver's (%d)",
                 (int)error);
    } else if (error == cudaErrorInsufficientDriver && driver == 0) {
        snprintf(message, sizeof message, "cuda: no NVIDIA driver (cudart %d.%d, driver 0)", CUDART_VERSION / 1000,
                 CUDART_VERSION % 1000 / 10);
    } else if (error == cudaErrorInsufficientDriver) {
        snprintf(message, sizeof message, "cuda: driver too old (cudart %d.%d, driver for CUDA %d.%d)",
                 CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, driver / 1000, driver % 1000 / 10);
    } else if (error == cudaErrorNoDevice) {
        snprintf(message, sizeof message, "cuda: no device visible (CUDA_VISIBLE_DEVICES=\"%s\")",
                 visible != NULL ? visible : "");
    } else {
        return cuda_fail_native(err, error, "cannot count devices");
    }
    return cuda_host->fail(err, NBL_E_DEVICE, NBL_ORIGIN_CUDA, (int32_t)error, message);
}

static nbl_status check_options(const nbl_device_options *options, int count, nbl_error *err)
{
    if (options->ordinal >= (uint32_t)count) {
        return cuda_fail(err, NBL_E_DEVICE, "cuda: device ordinal %u does not exist (allowed: 0 to %d)",
                         options->ordinal, count - 1);
    }
    if (options->threads != 0) {
        return cuda_fail(err, NBL_E_INVALID, "cuda: threads is %u (allowed: 0)", options->threads);
    }
    return NBL_OK;
}

static cudaError_t read_attributes(nbl_device *device)
{
    int major = 0, minor = 0, processors = 0, shared = 0, reads_host = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->ordinal);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->ordinal);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device->ordinal);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device->ordinal);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&reads_host, cudaDevAttrPageableMemoryAccess, device->ordinal);
    }
    device->capability = (uint32_t)(10 * major + minor);
    device->processors = (uint32_t)processors;
    device->shared_bytes = (uint32_t)shared;
    device->reads_host = (uint32_t)reads_host;
    return error;
}

static nbl_status check_capability(const nbl_device *device, const nbl_device_options *options, nbl_error *err)
{
    char isa[sizeof(((nbl_caps *)NULL)->isa)];
    snprintf(isa, sizeof isa, "sm_%u", device->capability);
    if (!cuda_capability_supported(device->capability)) {
        return cuda_fail(err, NBL_E_DEVICE, "cuda: device %d has compute capability %u.%u (needed: 8.0 or newer)",
                         device->ordinal, device->capability / 10u, device->capability % 10u);
    }
    if (options->isa != NULL && options->isa[0] != '\0' && strcmp(options->isa, isa) != 0) {
        return cuda_fail(err, NBL_E_INVALID, "cuda: isa is \"%s\" (allowed on this device: %s)", options->isa, isa);
    }
    return NBL_OK;
}

/* Things that need the device's context: the fault record, and code for this device. */
static nbl_status open_context(nbl_device *device, nbl_error *err)
{
    cuda_saved saved;
    void *memory = NULL, *mapped = NULL;
    nbl_status status = cuda_enter(device, &saved, err);
    if (status != NBL_OK) {
        return status;
    }
    status = cuda_result(err, nbl_cuda_probe(), "no code for this device in the plugin");
    if (status == NBL_OK) {
        status = cuda_result(err, nbl_cuda_short_open(device->capability, device->shared_bytes),
                             "cannot set up the kernels for short caches");
    }
    if (status == NBL_OK) {
        status = cuda_result(err, nbl_cuda_team_open(device->shared_bytes),
                             "cannot set up the kernels for caches of middling length");
    }
    if (status == NBL_OK) {
        status = cuda_result(err, cudaHostAlloc(&memory, sizeof *device->status, cudaHostAllocMapped),
                             "no pinned host memory");
    }
    if (status == NBL_OK) {
        status = cuda_result(err, cudaHostGetDevicePointer(&mapped, memory, 0), "no mapped host memory");
    }
    if (status == NBL_OK) {
        memset(memory, 0, sizeof *device->status);
        device->status = memory;
        device->status_device = mapped;
    } else if (memory != NULL) {
        (void)cudaFreeHost(memory);
    }
    return cuda_leave(device, &saved, status);
}

static nbl_status open_device(const nbl_device_options *options, nbl_device *device, nbl_error *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        return fail_no_device(err, error != cudaSuccess ? error : cudaErrorNoDevice);
    }
    nbl_status status = check_options(options, count, err);
    if (status != NBL_OK) {
        return status;
    }
    device->ordinal = (int32_t)options->ordinal;
    status = cuda_result(err, read_attributes(device), "cannot read the device's attributes");
    if (status == NBL_OK) {
        status = check_capability(device, options, err);
    }
    return status == NBL_OK ? open_context(device, err) : status;
}

nbl_status cuda_device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err)
{
    int errno_value = errno;
    struct {
        nbl_device device; /* first: the whole is freed by its address */
        cuda_known known;
    } *all = cuda_host->alloc(sizeof *all, DEVICE_ALIGNMENT);
    if (all == NULL) {
        return cuda_fail(err, NBL_E_NO_MEMORY, "cuda: no memory for the device");
    }
    memset(all, 0, sizeof *all);
    nbl_device *device = &all->device;
    device->known = &all->known;
    nbl_status status = open_device(options, device, err);
    if (status == NBL_OK) {
        *out_device = device;
    } else {
        cuda_host->free(device);
    }
    errno = errno_value;
    return status;
}

void cuda_device_close(nbl_device *device)
{
    cuda_saved saved;
    if (cuda_enter(device, &saved, NULL) == NBL_OK) {
        (void)cudaFreeHost(device->status);
        (void)cuda_leave(device, &saved, NBL_OK);
    }
    cuda_host->free(device);
}

nbl_status cuda_device_caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    struct cudaDeviceProp properties;
    int errno_value = errno;
    nbl_status status =
        cuda_result(err, cudaGetDeviceProperties(&properties, device->ordinal), "cannot read the device's properties");
    errno = errno_value;
    if (status != NBL_OK) {
        return status;
    }
    nbl_caps c = NBL_INIT(nbl_caps);
    c.formats = 1u << NBL_INT8 | 1u << NBL_MXFP4 | 1u << NBL_MXFP4_16 | 1u << NBL_INT4P | 1u << NBL_FORMAT_BF16 |
                1u << NBL_FORMAT_FP16 | 1u << NBL_FP8_E4M3 | 1u << NBL_NVFP4;
    c.k_dim_max = NBL_K_DIM_MAX;
    c.v_dim_max = NBL_V_DIM_MAX;
    c.page_tokens_max = NBL_PAGE_TOKENS_MAX;
    c.kv_tokens_max = NBL_KV_TOKENS_MAX;
    c.memory_bytes = properties.totalGlobalMem;
    c.stream_kind = NBL_STREAM_CUDA;
    c.threads = device->processors;
    c.deterministic = 1;
    c.graph_capture = 1;
    snprintf(c.device_name, sizeof c.device_name, "%.63s", properties.name);
    snprintf(c.isa, sizeof c.isa, "sm_%u", device->capability);
    uint32_t size = out_caps->struct_size < sizeof c ? out_caps->struct_size : (uint32_t)sizeof c;
    c.struct_size = size;
    memcpy(out_caps, &c, size);
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ memory */

nbl_status cuda_memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    cuda_saved saved;
    nbl_status status = cuda_enter(device, &saved, err);
    if (status != NBL_OK) {
        return status;
    }
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        status = cuda_fail(err, NBL_E_NO_MEMORY, "cuda: no memory for %llu bytes", (unsigned long long)bytes);
    } else {
        status = cuda_result(err, error, "cudaMalloc");
    }
    if (status == NBL_OK) {
        *out_memory = memory;
    }
    return cuda_leave(device, &saved, status);
}

void cuda_memory_free(nbl_device *device, void *memory)
{
    cuda_saved saved;
    if (cuda_enter(device, &saved, NULL) == NBL_OK) {
        (void)cudaFree(memory);
        cuda_known_clear(device->known);
        (void)cudaGetLastError();
        (void)cuda_leave(device, &saved, NBL_OK);
    }
}

nbl_status cuda_host_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    cuda_saved saved;
    nbl_status status = cuda_enter(device, &saved, err);
    if (status != NBL_OK) {
        return status;
    }
    void *memory = NULL;
    cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        status =
            cuda_fail(err, NBL_E_NO_MEMORY, "cuda: no page-locked memory for %llu bytes", (unsigned long long)bytes);
    } else {
        status = cuda_result(err, error, "cudaHostAlloc");
    }
    if (status == NBL_OK) {
        *out_memory = memory;
    }
    return cuda_leave(device, &saved, status);
}

void cuda_host_free(nbl_device *device, void *memory)
{
    cuda_saved saved;
    if (cuda_enter(device, &saved, NULL) == NBL_OK) {
        (void)cudaFreeHost(memory);
        (void)cudaGetLastError();
        (void)cuda_leave(device, &saved, NBL_OK);
    }
}

/* NBL_STREAM_HOST: after all work on blocking streams, and finished when this returns. */
static cudaError_t copy_and_wait(void *dst, const void *src, uint64_t bytes, enum cudaMemcpyKind kind)
{
    const cudaError_t error = cudaMemcpyAsync(dst, src, bytes, kind, cudaStreamLegacy);
    return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

/* Ordered by the stream. Out of or into pageable host memory the CUDA runtime stages the bytes: such a copy to the
 * host has finished when this returns, and the host bytes of one to the device may be changed afterwards. */
nbl_status cuda_memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                            nbl_stream stream, nbl_error *err)
{
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDeviceToDevice};
    cuda_saved saved;
    nbl_status status = cuda_enter(device, &saved, err);
    if (status != NBL_OK) {
        return status;
    }
    if (stream.kind == NBL_STREAM_HOST) {
        status = cuda_result(err, copy_and_wait(dst, src, bytes, kinds[kind]), "cudaMemcpyAsync");
        return cuda_leave(device, &saved, status);
    }
    status = cuda_check_stream(device, stream, err);
    if (status == NBL_OK) {
        status = cuda_result(err, cudaMemcpyAsync(dst, src, bytes, kinds[kind], (cudaStream_t)stream.handle),
                             "cudaMemcpyAsync");
    }
    return cuda_leave(device, &saved, status);
}
