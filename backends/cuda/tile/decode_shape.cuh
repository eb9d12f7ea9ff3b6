/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_shape.cuh
 * @brief Which instance of a decode kernel a call runs.
 */
#ifndef CUDA_DECODE_SHAPE_H
#define CUDA_DECODE_SHAPE_H

#include "../attend.h"

/** A decode kernel's head dimension, and the rows that a lane has of a product: 1 for up to four query rows, 2 for up
 *  to eight. */
template <int D, int RPL> struct decode_shape {
    static constexpr int dim = D;
    static constexpr int rows = RPL;
};

/** `function` of the shape that a call has. */
template <typename Function> static inline auto with_decode_shape(const attend_params *p, Function function)
{
    const bool few = p->q_len_max * p->group_rows <= 4u;
    switch (p->k_dim) {
    case 64: return few ? function(decode_shape<64, 1>()) : function(decode_shape<64, 2>());
    case 128: return few ? function(decode_shape<128, 1>()) : function(decode_shape<128, 2>());
    default: return few ? function(decode_shape<256, 1>()) : function(decode_shape<256, 2>());
    }
}

/** `function` of every shape; the first error, if there is one. */
template <typename Function> static inline cudaError_t for_decode_shapes(Function function)
{
    const cudaError_t all[] = {function(decode_shape<64, 1>()),  function(decode_shape<64, 2>()),
                               function(decode_shape<128, 1>()), function(decode_shape<128, 2>()),
                               function(decode_shape<256, 1>()), function(decode_shape<256, 2>())};
    cudaError_t error = cudaSuccess;
    for (const cudaError_t one : all) {
        error = error == cudaSuccess ? one : error;
    }
    return error;
}

#endif
