/* SPDX-License-Identifier: Apache-2.0 */
/** @file input.h @brief Problems read from files. */
#ifndef NBL_CLI_INPUT_H
#define NBL_CLI_INPUT_H

#include "problem.h"
#include "safetensors.h"

#define NBL_LAYERS_MAX 1024u
#define NBL_LAYER_ONLY UINT32_MAX /**< "the only layer of the file" */

/** An open capture: tensors layers.N.q [Tq, Hq, Dk] of the last Tq positions, layers.N.k [T, Hk, Dk],
 *  layers.N.v [T, Hk, Dv]; metadata "sm_scale" and "layers.N.window" if known. */
typedef struct nbl_capture {
    nbl_file file;
    nbl_safetensors tensors;
    uint32_t layer_count;
    uint32_t layers[NBL_LAYERS_MAX]; /**< ascending */
} nbl_capture;

/** Opens and checks a capture. */
int nbl_capture_open(const char *path, nbl_capture *out_capture, nbl_fault *fault);

/** Closes it. */
void nbl_capture_close(nbl_capture *capture);

/** Reads one layer as f32. NBL_LAYER_ONLY stands for the only layer. A layer that is not there, or not
 *  named where there are several, is wrong usage of the option. */
int nbl_capture_read(const nbl_capture *capture, const char *option, uint32_t layer, nbl_problem *out_problem,
                     nbl_fault *fault);

/** Reads three .npy files of the shapes of a capture's tensors. */
int nbl_problem_read_npy(const char *q_path, const char *k_path, const char *v_path, nbl_problem *out_problem,
                         nbl_fault *fault);

#endif
