/* SPDX-License-Identifier: Apache-2.0 */
/** @file trap.cu  A kernel that fails: what a fault of any kernel in the process looks like to the others. */
#include <cuda_runtime_api.h>

static __global__ void trap_kernel(void)
{
    __trap();
}

extern "C" cudaError_t launch_trap(cudaStream_t stream)
{
    trap_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}
