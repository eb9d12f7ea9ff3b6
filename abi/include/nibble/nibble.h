/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble.h
 * @brief Application ABI: attention over a 4- to 8-bit KV cache, the same bits on every backend.
 *
 * libnibble.so.1 exports one function, nbl_get_api. Everything else is a slot of the table it returns.
 *
 * Two properties hold for every call of attend:
 * - **No plan step.** Work is cut where the numerics say, so a launch depends on upper bounds only; lengths are read from
 *   device memory.
 * - **No split into prefill and decode.** One call, one result; the backend picks kernels and the pick cannot change a bit.
 *
 * Conventions of all slots: they return #nbl_status, fill the optional caller-owned #nbl_error with one line, and leave
 * outputs untouched on any error found before the work starts. Any slot may be called from any thread; one device or
 * cache handle by one thread at a time. Handles are refused in a forked child (NBL_E_FORKED).
 */
#ifndef NIBBLE_H
#define NIBBLE_H

#include "nibble_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NBL_ABI_MAJOR 1u
#define NBL_ABI_MINOR 0u

/** A loaded backend; owns nothing of a device. */
typedef struct nbl_runtime nbl_runtime;
/** What the loader tried and why. */
typedef struct nbl_report nbl_report;
/** Managed cache: pages, sequences. */
typedef struct nbl_cache nbl_cache;

/** How far one load attempt came. */
enum nbl_load_phase {
    NBL_PHASE_NAME = 0,      /**< the name itself */
    NBL_PHASE_FIND = 1,      /**< looking for the file */
    NBL_PHASE_PROBE = 2,     /**< reading ELF header and note, no code run */
    NBL_PHASE_OPEN = 3,      /**< dlopen */
    NBL_PHASE_NEGOTIATE = 4, /**< entry function and table */
    NBL_PHASE_LOADED = 5,    /**< usable */
    NBL_PHASE_DEVICE = 6,    /**< opening a device */
    NBL_PHASE_MAX_ENUM = 0x7fffffff
};

/** One candidate of a report. Strings live as long as the report. */
typedef struct nbl_load_attempt {
    NBL_HEADER;
    const char *name;
    const char *path;        /**< "" if no file was found */
    const char *message;     /**< why it failed, or why it was chosen */
    const char *description; /**< the backend's own line, "" before negotiation */
    nbl_status status;
    uint32_t phase; /**< enum nbl_load_phase */
    uint64_t file_device;
    uint64_t file_inode;
    uint32_t abi_minor;
    uint32_t numerics_version;
    uint32_t layout_version;
    uint32_t reserved;
} nbl_load_attempt;

#define NBL_LOAD_IGNORE_ENV 1u /**< NIBBLE_BACKEND, NIBBLE_BACKEND_DIR and the other variables do not count */

/** What to load. All zero: NIBBLE_BACKEND if set, else "cuda". */
typedef struct nbl_load_options {
    NBL_HEADER;
    const char *backend;     /**< comma list of names in order, or one absolute path; NIBBLE_BACKEND goes before it */
    const char *backend_dir; /**< absolute directory searched first, or NULL */
    void (*log)(void *user, uint32_t level, const char *message); /**< or NULL: errors go to stderr */
    void *log_user;
    const char *client_name; /**< for the log, or NULL */
} nbl_load_options;

/** A named choice of formats and transforms (docs/formats.md): "qk4v8", "mxkv4", "kv4", "k4v8", "kv8". */
typedef struct nbl_recipe {
    NBL_HEADER;
    uint32_t q_format;
    uint32_t k_format;
    uint32_t v_format;
    uint32_t k_hadamard; /**< for the dimensions given to recipe_parse */
    uint32_t v_hadamard;
    uint32_t centering;
    uint32_t sink_tokens; /**< first tokens of a sequence kept in int8, rounded up to whole pages */
    uint32_t reserved;
    char name[32];
} nbl_recipe;

/** Managed cache. */
typedef struct nbl_cache_config {
    NBL_HEADER;
    nbl_kv_shape shape;        /**< by value; hadamard and centering as in the recipe */
    uint32_t k_format;
    uint32_t v_format;
    uint32_t sink_tokens;      /**< first tokens of each sequence stored int8; one page holds at least one token */
    uint32_t sequences_max;
    uint64_t tokens_max;       /**< of all sequences together; decides how many pages there are */
    uint32_t sequence_tokens_max; /**< of one sequence; 0: tokens_max */
    uint32_t reserved;
} nbl_cache_config;

/** Counters and sizes of a cache; every byte the backend was asked for is in one of them. */
typedef struct nbl_cache_stats {
    NBL_HEADER;
    uint64_t code_bytes;     /**< code pools, all regions */
    uint64_t scale_bytes;    /**< scale pools */
    uint64_t center_bytes;   /**< K centres */
    uint64_t metadata_bytes; /**< page tables and other arrays in device memory */
    uint64_t workspace_bytes;
    uint64_t total_bytes;    /**< sum of the five */
    uint64_t used_bytes;     /**< codes and scales of pages in use */
    uint32_t pages_total[NBL_REGIONS_MAX];
    uint32_t pages_used[NBL_REGIONS_MAX];
    uint32_t region_count;
    uint32_t sequences;
    uint64_t tokens;
    nbl_quant_stats quant;
} nbl_cache_stats;

/** One sequence's part of a batched append. */
typedef struct nbl_cache_append_args {
    NBL_HEADER;
    const uint64_t *sequences; /**< [B] handles, all different (host memory) */
    const int32_t *seq_indptr; /**< [B+1] tokens of each, from 0 to T (host memory) */
    uint32_t batch;
    uint32_t layer;            /**< layers are appended in any order; see nbl_api_v1.cache_append */
    nbl_tensor k;              /**< [T, Hk, Dk] device memory */
    nbl_tensor v;              /**< [T, Hk, Dv] */
    nbl_stream stream;
} nbl_cache_append_args;

/** Attention of a batch of cached sequences; fields mean what they mean in #nbl_attend_args. */
typedef struct nbl_cache_attend_args {
    NBL_HEADER; /**< flags: NBL_ATTEND_ bits */
    const uint64_t *sequences; /**< [B] handles (host memory) */
    const int32_t *q_indptr;   /**< [B+1] (host memory) */
    uint32_t batch;
    uint32_t layer;
    uint32_t q_heads;
    uint32_t q_format;
    nbl_tensor q;
    nbl_tensor o;
    nbl_tensor lse;
    float sm_scale;
    float soft_cap;
    uint32_t window_left;
    uint32_t window_right;
    uint32_t tree_mask_stride;
    uint32_t reserved;
    const float *alibi_slopes; /**< device memory, as are the next two */
    const float *sinks;
    const uint32_t *tree_mask;
    nbl_stream stream;
} nbl_cache_attend_args;

/** What the caller of nbl_get_api wants. */
typedef struct nbl_api_request {
    uint32_t struct_size;
    uint32_t abi_major;     /**< NBL_ABI_MAJOR of the header compiled against */
    uint32_t abi_minor_min; /**< smallest minor the caller can live with */
    uint32_t reserved;
} nbl_api_request;

/** All slots of the application ABI: X(result, name, (arguments)). Only ever appended. */
#define NBL_API_SLOTS(X)                                                                                                   \
    X(nbl_status, load, (const nbl_load_options *options, nbl_runtime **out_runtime, nbl_report **out_report, nbl_error *err)) \
    X(nbl_status, runtime_destroy, (nbl_runtime * runtime, nbl_error *err))                                                \
    X(uint32_t, report_count, (const nbl_report *report))                                                                  \
    X(nbl_status, report_get, (const nbl_report *report, uint32_t index, nbl_load_attempt *out_attempt, nbl_error *err))   \
    X(void, report_free, (nbl_report * report))                                                                            \
    X(const char *, status_name, (nbl_status status))                                                                      \
    X(const char *, status_text, (nbl_status status))                                                                      \
    X(const char *, build_info, (void))                                                                                    \
    X(nbl_status, open, (nbl_runtime * runtime, const nbl_device_options *options, nbl_device **out_device, nbl_error *err)) \
    X(nbl_status, close, (nbl_device * device, nbl_error *err))                                                            \
    X(nbl_status, caps, (nbl_device * device, nbl_caps *out_caps, nbl_error *err))                                         \
    X(nbl_status, supports, (nbl_device * device, const nbl_op_desc *op, nbl_error *err))                                  \
    X(nbl_status, workspace_size, (nbl_device * device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err))       \
    X(nbl_status, kv_layout,                                                                                               \
      (const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, nbl_page_layout *out_layout, nbl_error *err))      \
    X(nbl_status, memory_alloc, (nbl_device * device, uint64_t bytes, void **out_memory, nbl_error *err))                  \
    X(nbl_status, memory_free, (nbl_device * device, void *memory, nbl_error *err))                                        \
    X(nbl_status, memory_copy,                                                                                             \
      (nbl_device * device, void *dst, const void *src, uint64_t bytes, uint32_t kind, nbl_stream stream, nbl_error *err)) \
    X(nbl_status, check, (nbl_device * device, nbl_stream stream, nbl_error *err))                                         \
    X(nbl_status, append, (nbl_device * device, const nbl_append_args *args, nbl_error *err))                              \
    X(nbl_status, attend, (nbl_device * device, const nbl_attend_args *args, nbl_error *err))                              \
    X(nbl_status, gather, (nbl_device * device, const nbl_gather_args *args, nbl_error *err))                              \
    X(nbl_status, copy_pages, (nbl_device * device, const nbl_copy_pages_args *args, nbl_error *err))                      \
    X(nbl_status, transcode, (nbl_device * device, const nbl_transcode_args *args, nbl_error *err))                        \
    X(nbl_status, merge, (nbl_device * device, const nbl_merge_args *args, nbl_error *err))                                \
    X(nbl_status, recipe_parse, (const char *name, uint32_t k_dim, uint32_t v_dim, nbl_recipe *out_recipe, nbl_error *err)) \
    X(nbl_status, cache_plan, (const nbl_cache_config *config, nbl_cache_stats *out_stats, nbl_error *err))                \
    X(nbl_status, cache_create, (nbl_device * device, const nbl_cache_config *config, nbl_cache **out_cache, nbl_error *err)) \
    X(nbl_status, cache_destroy, (nbl_cache * cache, nbl_error *err))                                                      \
    X(nbl_status, cache_stats, (nbl_cache * cache, nbl_cache_stats *out_stats, nbl_error *err))                            \
    X(nbl_status, seq_create, (nbl_cache * cache, uint64_t *out_sequence, nbl_error *err))                                 \
    X(nbl_status, seq_free, (nbl_cache * cache, uint64_t sequence, nbl_error *err))                                        \
    X(nbl_status, seq_length, (nbl_cache * cache, uint64_t sequence, uint32_t layer, uint32_t *out_tokens, nbl_error *err)) \
    X(nbl_status, seq_truncate, (nbl_cache * cache, uint64_t sequence, uint32_t tokens, nbl_error *err))                   \
    X(nbl_status, cache_append, (nbl_cache * cache, const nbl_cache_append_args *args, nbl_error *err))                    \
    X(nbl_status, cache_attend, (nbl_cache * cache, const nbl_cache_attend_args *args, nbl_error *err))

/** The application table. */
typedef struct nbl_api_v1 {
    uint32_t struct_size;
    uint32_t abi_minor;
#define NBL_SLOT(result, name, arguments) result(*name) arguments;
    NBL_API_SLOTS(NBL_SLOT)
#undef NBL_SLOT
} nbl_api_v1;

/** Returns the table, or a reason. The only exported symbol.
 *
 * @param request  zero or the version wanted; NULL means major NBL_ABI_MAJOR, any minor
 * @param out_api  receives a table that lives as long as the process
 * @param err      or NULL
 * @retval NBL_OK, NBL_E_INVALID (out_api is NULL), NBL_E_ABI (other major, newer minor, short struct)
 * @since ABI 1.0
 */
nbl_status nbl_get_api(const nbl_api_request *request, const nbl_api_v1 **out_api, nbl_error *err);

/** Type of nbl_get_api, for dlsym. */
typedef nbl_status (*nbl_get_api_fn)(const nbl_api_request *request, const nbl_api_v1 **out_api, nbl_error *err);

#ifdef __cplusplus
}
#endif

#endif
