/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file model.h
 * @brief How long the CUDA kernels should take on a GPU, from what they load, issue and multiply. No GPU is asked.
 *
 * A kernel's time is that of its scarcest resource: memory, issue slots, tensor cores or the exponential unit. What it
 * needs of each is counted (model.c says how); what a GPU gives is published, times the part of it that the kernels get
 * out of an H200. Kernels of a call run one after the other.
 */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include <nibble/nibble_types.h>

/** A GPU by its published rates. */
typedef struct nbl_gpu {
    const char *name;    /**< "h200" */
    const char *title;   /**< "NVIDIA H200" */
    uint32_t processors; /**< multiprocessors */
    uint32_t capability; /**< 10 * major + minor */
    double clock_ghz;    /**< of multiprocessors under load */
    double memory_tb_s;  /**< published peak */
    double int8_pops;    /**< dense, 10^15 operations a second; a multiply-add is two */
    double half_pflops;  /**< bf16 and fp16, binary32 accumulators, dense */
    double warp_mma;     /**< part of the dense rates that mma.sync reaches */
    double exponentials; /**< ex2 a clock and multiprocessor */
    int is_measured;     /**< 1: the rates were checked against measurements; else they are published ones alone */
} nbl_gpu;

/** Names of the GPUs, for messages. */
#define NBL_GPU_NAMES "h200, b200, b300, rtx5090"

/** The GPU of a name, or NULL. */
const nbl_gpu *nbl_gpu_find(const char *name);

/** What is called. Sequences of a batch are alike. */
typedef struct nbl_model_call {
    uint32_t op; /**< NBL_OP_ATTEND or NBL_OP_APPEND */
    uint32_t k_format;
    uint32_t v_format;
    uint32_t q_format;
    uint32_t batch;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t kv_tokens; /**< of a sequence */
    uint32_t q_tokens;  /**< of a sequence: query rows, or tokens appended */
    int is_full;        /**< every query token sees all tokens; else causal from the bottom right */
} nbl_model_call;

/** What a call takes. Times are of the resource alone, in microseconds. */
typedef struct nbl_model_time {
    const char *kernel; /**< the main one */
    const char *bound;  /**< its scarcest resource: memory, issue, tensor or ex2 */
    double memory_us;
    double issue_us;
    double tensor_us;
    double ex2_us;
    double other_us; /**< kernels before and after it */
    double total_us; /**< the largest of the four, and the others */
    int is_filled;   /**< 0: too little work for all multiprocessors; the call takes longer than total_us */
} nbl_model_time;

/** Predicts a call; 0 if there are no counts for its formats. */
int nbl_model_predict(const nbl_gpu *gpu, const nbl_model_call *call, nbl_model_time *out);

#endif
