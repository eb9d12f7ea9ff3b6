/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file counting.h
 * @brief A backend that computes nothing: it counts calls and memory, and shows what reaches a backend.
 */
#ifndef COUNTING_H
#define COUNTING_H

#include <nibble/nibble.h>
#include <nibble/nibble_backend.h>
#include <stdbool.h>

/** Counters and knobs, one set per process. */
typedef struct counting_state {
    uint64_t operations; /**< append, attend, gather, copy_pages, transcode, merge */
    uint64_t questions;  /**< supports, workspace_size */
    uint64_t uploads;    /**< memory_copy to the device */
    uint64_t allocations;
    uint64_t live_bytes; /**< allocated and not freed */
    uint64_t live_blocks;
    uint64_t host_bytes;              /**< page-locked memory that is allocated */
    bool host_fails;                  /**< there is no more of it */
    uint64_t allocation_limit;        /**< allocations that succeed; 0: all */
    uint64_t workspace_bytes_per_row; /**< answer of workspace_size, times q_tokens_max */
    uint64_t workspace_bytes;         /**< added to it */
    uint32_t memory_offset;           /**< memory_alloc answers off by so many bytes */
    uint64_t fail_operation;          /**< number of the operation that fails, counted from 1; 0: none */
    uint64_t copies;                  /**< memory_copy calls */
    uint64_t fail_copy;               /**< number of the memory_copy that fails, counted from 1; 0: none */
    nbl_status supports;              /**< answer of supports */
    void (*on_append)(const nbl_append_args *args);
    void (*on_attend)(const nbl_attend_args *args);
    void (*on_copy_pages)(const nbl_copy_pages_args *args);
    void (*on_transcode)(const nbl_transcode_args *args);
} counting_state;

/** A loaded counting backend. */
typedef struct counting {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    counting_state *state;
} counting;

/** Loads the backend and opens its device; fails the test where that is not possible. */
counting counting_open(void);

/** Closes both. */
void counting_close(counting *c);

#endif
