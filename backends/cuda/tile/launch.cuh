/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launch.cuh
 * @brief Launching the steps of attend behind each other.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include "../attend.h"

/** Launches a kernel that follows another one of the same call. From sm_90 on it may start as soon as all blocks of
 *  that one have called ptx_grid_release or ended: it must call ptx_grid_wait before it reads what that one writes, or
 *  writes what that one reads. What came before that one is over if its blocks call ptx_grid_wait and then
 *  ptx_grid_release, in this order; a kernel that relies on it calls ptx_grid_wait before its end, for the next one. */
template <typename... Rest>
static inline cudaError_t launch_after(void (*kernel)(attend_params, Rest...), dim3 grid, uint32_t threads,
                                       size_t shared_bytes, cudaStream_t stream, const attend_params *p, Rest... rest)
{
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = p->capability >= 90u ? 1u : 0u;
    return cudaLaunchKernelEx(&config, kernel, *p, rest...);
}

/** launch_after for every item of the call: up to `rows` query rows of a kv head, and a chunk if the call is split. The
 *  kernel takes the number of items a kv head has of a sequence's rows. */
static inline cudaError_t launch_items(void (*kernel)(attend_params, uint32_t), uint32_t rows, uint32_t threads,
                                       size_t shared_bytes, cudaStream_t stream, const attend_params *p)
{
    uint64_t rows_most = (uint64_t)p->q_len_max * p->group_rows;
    uint32_t blocks = (uint32_t)((rows_most + rows - 1u) / rows);
    uint64_t items = (uint64_t)p->batch * p->kv_heads * blocks * (p->split ? p->chunks : 1u);
    if (items == 0) {
        return cudaSuccess;
    }
    if (items > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error != cudaSuccess) {
        return error;
    }
    return launch_after(kernel, dim3((uint32_t)items), threads, shared_bytes, stream, p, blocks);
}

/** The same in clusters of `cluster` blocks, from sm_90 on. */
template <typename Plan>
static inline cudaError_t launch_clusters(void (*kernel)(attend_params, Plan), dim3 grid, uint32_t threads,
                                          size_t shared_bytes, uint32_t cluster, cudaStream_t stream,
                                          const attend_params *p, const Plan &plan)
{
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2u;
    return cudaLaunchKernelEx(&config, kernel, *p, plan);
}

#endif
