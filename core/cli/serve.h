/* SPDX-License-Identifier: Apache-2.0 */
/** @file serve.h @brief Requests over a managed cache, each checked against a cache that shares nothing. */
#ifndef NBL_CLI_SERVE_H
#define NBL_CLI_SERVE_H

#include "session.h"

#define NBL_SERVE_DRAFT 4u /**< tokens that a speculating sequence appends at once */

/** A request of the trace. Token ids follow from it: those of the prefix from its number, the others from its own. */
typedef struct nbl_request {
    uint32_t arrival; /**< step */
    uint32_t prefix;
    uint32_t prefix_tokens;
    uint32_t prompt_tokens; /**< those of the prefix included */
    uint32_t output_tokens;
} nbl_request;

/** What the simulation is about. */
typedef struct nbl_serve_setup {
    uint32_t layers, q_heads, kv_heads, dim, page_tokens;
    uint32_t batch;      /**< sequences that run at the same time */
    uint32_t chunk;      /**< most tokens of one append */
    uint32_t length_max; /**< tokens of the longest request */
    uint64_t tokens_max; /**< that the cache has room for */
    uint64_t host_bytes, file_bytes;
    const char *file_folder;
    const char *policy;
} nbl_serve_setup;

/** A sequence that runs, in the cache and in the one that shares nothing. */
typedef struct nbl_served {
    const nbl_request *request;
    uint32_t number; /**< of the request */
    uint32_t branch; /**< 1: a fork, whose answer differs */
    uint32_t length;
    uint32_t alone_length;
    uint64_t sequence;
    uint64_t alone;
} nbl_served;

/** Two caches on one device, and memory for one call. */
typedef struct nbl_serve {
    nbl_session *session;
    nbl_serve_setup setup;
    nbl_cache *cache;
    nbl_cache *alone; /**< no prefix index, no forks: what it gives is the recomputation */
    uint32_t q_format;
    bool window;      /**< the policy has a recent window */
    uint32_t *tokens; /**< [length_max] of one sequence */
    float *host;      /**< what goes to the device, and what comes back */
    float *other;
    void *k, *v, *q, *o;
    uint64_t checked; /**< attends compared */
    uint64_t wrong;   /**< of these, with a byte that differs */
} nbl_serve;

/** Creates both caches; a policy that does not fit is a fault NBL_EXIT_USAGE. */
int nbl_serve_open(nbl_serve *serve, nbl_session *session, const nbl_serve_setup *setup, nbl_fault *fault);
void nbl_serve_close(nbl_serve *serve);

/** Starts a request: adopts what is cached of its prompt. *out_room is false if there is no room for a sequence. */
int nbl_serve_start(nbl_serve *serve, nbl_served *served, bool *out_room, nbl_fault *fault);
/** Ends it and keeps its pages for others. */
int nbl_serve_end(nbl_serve *serve, nbl_served *served, nbl_fault *fault);
/** Drops it; its pages stay only as far as they were published. */
int nbl_serve_drop(nbl_serve *serve, nbl_served *served, nbl_fault *fault);
/** A fork of a sequence, which goes on in its own way. */
int nbl_serve_fork(nbl_serve *serve, const nbl_served *parent, nbl_served *child, bool *out_room, nbl_fault *fault);
/** Appends tokens; *out_room is false, and nothing has changed, if the cache is out of pages. */
int nbl_serve_append(nbl_serve *serve, nbl_served *served, uint32_t count, bool *out_room, nbl_fault *fault);
/** Takes tokens back. */
int nbl_serve_rollback(nbl_serve *serve, nbl_served *served, uint32_t count, nbl_fault *fault);
/** Publishes the tokens that are there. */
int nbl_serve_publish(nbl_serve *serve, const nbl_served *served, nbl_fault *fault);
/** Attends with the last rows in every layer, on both caches, and compares. */
int nbl_serve_attend(nbl_serve *serve, nbl_served *served, uint32_t rows, nbl_fault *fault);

#endif
