/* SPDX-License-Identifier: Apache-2.0 */
/** @file predict.h @brief `nibble bench --predict GPU`: the time model of sim/model instead of a run. */
#ifndef NBL_CLI_PREDICT_H
#define NBL_CLI_PREDICT_H

#include "generate.h"

/** What bench would time, and on which GPU. */
typedef struct nbl_predict_request {
    const char *gpu;
    const char *op_name; /**< attend, append or prefill */
    uint32_t batch;
    const nbl_shape_options *shape;
    bool full; /**< as in --full */
    bool json;
} nbl_predict_request;

/** Prints a row for each recipe. An unknown GPU, another operation or formats without counts are wrong usage. */
int nbl_predict_run(const nbl_predict_request *request, const nbl_list *recipes, nbl_fault *fault);

#endif
