/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launch.cuh
 * @brief Launching the steps of attend behind each other.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include "../attend.h"

/** Launches a kernel that follows another one of the same call. From sm_90 on it may start before that one has ended:
 *  it must call ptx_grid_wait before it reads what the call wrote, and before it writes. */
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
