/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file internal.h
 * @brief What the files of core/ share: handles, errors, struct rules, and the prototypes behind the application table.
 */
#ifndef NBL_INTERNAL_H
#define NBL_INTERNAL_H

#include <stdatomic.h>

#include "nibble/nibble.h"
#include "nibble/nibble_asserts.h"
#include "nibble/nibble_backend.h"

/* ------------------------------------------------------------------------------------------------ errors */

/** Fills err (may be NULL, may be short) with "nibble: " and the formatted line, and returns status.
 *
 * Control characters become '?', so the text stays one line; a text that does not fit is cut and marked truncated.
 * @param origin  enum nbl_origin
 * @param native  errno or cudaError_t where origin says so, else 0
 */
__attribute__((format(printf, 5, 6))) nbl_status nbl_fail(nbl_error *err, nbl_status status, uint32_t origin,
                                                          int32_t native, const char *format, ...);

/** Fills err with the contents of another error and returns its status. */
nbl_status nbl_fail_again(nbl_error *err, const nbl_error *from);

/** "nibble: ", the start of every message. */
#define NBL_MESSAGE_PREFIX "nibble: "

/* ------------------------------------------------------------------------------------------------ struct rules */

/** Largest struct_size that is believed; beyond it the tail would be read from nowhere. */
#define NBL_STRUCT_BYTES_MAX 65536u

/** Copies a caller's argument struct into a complete one of this version.
 *
 * dst gets the fields both sides know, zero for the rest, struct_size = dst_bytes and next = NULL: what this version
 * does not know has been refused or may be skipped. src must start with NBL_HEADER. Flags are the caller's to check.
 * @param dst_bytes  sizeof the struct in this version
 * @param min_bytes  its size in version 1.0
 * @param type_name  for the message
 * @retval NBL_OK
 * @retval NBL_E_INVALID        src is NULL, or its extension chain is longer than NBL_EXT_CHAIN_MAX (or a cycle)
 * @retval NBL_E_ABI            struct_size below min_bytes or above NBL_STRUCT_BYTES_MAX; an extension node is too
 *                              short
 * @retval NBL_E_UNKNOWN_FIELD  non-zero bytes past dst_bytes, or an extension that is required and not known
 */
nbl_status nbl_struct_in(void *dst, uint32_t dst_bytes, uint32_t min_bytes, const void *src, const char *type_name,
                         nbl_error *err);

/** nbl_struct_in for a public type by name. */
#define NBL_STRUCT_IN(type, dst, src, err) \
    nbl_struct_in((dst), (uint32_t)sizeof(type), NBL_V1_BYTES(type), (src), #type, (err))

/** Tells whether an out struct can be filled; to be asked before the work. Same errors as nbl_struct_in, but bytes past
 *  the known size are the callee's to write and so are not looked at. */
nbl_status nbl_struct_out_check(const void *dst, uint32_t min_bytes, const char *type_name, nbl_error *err);

/** nbl_struct_out_check for a public type by name. */
#define NBL_STRUCT_OUT_CHECK(type, dst, err) nbl_struct_out_check((dst), NBL_V1_BYTES(type), #type, (err))

/** Fills a checked out struct: the fields both sides know, and struct_size = src_bytes. flags, next and every byte past
 *  the caller's size stay. */
void nbl_struct_out(void *dst, const void *src, uint32_t src_bytes);

/** Refuses non-zero bytes between known_bytes and src_bytes (NBL_E_UNKNOWN_FIELD naming the struct and the byte). */
nbl_status nbl_tail_check(const void *src, uint32_t src_bytes, uint32_t known_bytes, const char *type_name,
                          nbl_error *err);

/** Refuses flag bits that are not in allowed (NBL_E_UNKNOWN_FIELD naming the struct and the bits). */
nbl_status nbl_flags_check(uint32_t flags, uint32_t allowed, const char *type_name, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ handles */

enum nbl_handle_kind {
    NBL_HANDLE_DEAD = 0,
    NBL_HANDLE_RUNTIME = 0x4e424c01,
    NBL_HANDLE_DEVICE = 0x4e424c02,
    NBL_HANDLE_CACHE = 0x4e424c03,
};

/** First member of every handle. Its memory outlives the handle, so a use after destruction is seen, not suffered. */
typedef struct nbl_handle {
    _Atomic uint32_t kind;  /**< enum nbl_handle_kind */
    int32_t pid;            /**< process that created it */
    _Atomic uint32_t users; /**< handles that depend on it and are alive */
    uint32_t bytes;
    struct nbl_handle *next; /**< in the queue of dead ones */
} nbl_handle;

/** Number of this process, as getpid gives it, without a system call. */
int32_t nbl_process_id(void);

/** Creates a zeroed handle of bytes (its nbl_handle included); NULL when there is no memory. */
void *nbl_handle_create(uint32_t kind, size_t bytes);

/** Tells whether a handle can be used.
 * @retval NBL_OK
 * @retval NBL_E_INVALID  NULL
 * @retval NBL_E_STATE    destroyed, or of another kind
 * @retval NBL_E_FORKED   created in another process
 */
nbl_status nbl_handle_check(const void *handle, uint32_t kind, nbl_error *err);

/** Marks a handle destroyed, once: of two racing calls one succeeds. Its fields stay valid until nbl_handle_recycle.
 * @retval NBL_E_STATE  also while other handles depend on it
 */
nbl_status nbl_handle_retire(void *handle, uint32_t kind, nbl_error *err);

/** Gives the memory of a retired handle back; it is used again only after many others. */
void nbl_handle_recycle(void *handle);

/** Counts a dependent handle in or out; a parent with users cannot be retired. */
void nbl_handle_add_user(void *parent);
void nbl_handle_drop_user(void *parent);

/** The runtime's device, behind the application's nbl_device pointers. The backend's own object of the same type name
 * is
 *  inner; only the backend looks into it. */
struct nbl_device {
    nbl_handle handle;
    nbl_runtime *runtime;
    const nbl_backend_v1 *backend; /**< complete: every slot can be called */
    nbl_device *inner;             /**< first argument of every backend slot */
    nbl_caps caps;                 /**< as the backend gave them when the device was opened */
};

/** nbl_handle_check for a device. */
nbl_status nbl_device_check(const nbl_device *device, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ application table */

/* runtime.c, status.c */
nbl_status nbl_api_load(const nbl_load_options *options, nbl_runtime **out_runtime, nbl_report **out_report,
                        nbl_error *err);
nbl_status nbl_api_runtime_destroy(nbl_runtime *runtime, nbl_error *err);
uint32_t nbl_api_report_count(const nbl_report *report);
nbl_status nbl_api_report_get(const nbl_report *report, uint32_t index, nbl_load_attempt *out_attempt, nbl_error *err);
void nbl_api_report_free(nbl_report *report);
const char *nbl_api_status_name(nbl_status status);
const char *nbl_api_status_text(nbl_status status);
const char *nbl_api_build_info(void);
nbl_status nbl_api_open(nbl_runtime *runtime, const nbl_device_options *options, nbl_device **out_device,
                        nbl_error *err);
nbl_status nbl_api_close(nbl_device *device, nbl_error *err);
nbl_status nbl_api_caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err);

/* dispatch.c */
nbl_status nbl_api_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err);
nbl_status nbl_api_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err);
nbl_status nbl_api_kv_layout(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format,
                             nbl_page_layout *out_layout, nbl_error *err);
nbl_status nbl_api_memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err);
nbl_status nbl_api_memory_free(nbl_device *device, void *memory, nbl_error *err);
nbl_status nbl_api_memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                               nbl_stream stream, nbl_error *err);
nbl_status nbl_api_check(nbl_device *device, nbl_stream stream, nbl_error *err);
nbl_status nbl_api_append(nbl_device *device, const nbl_append_args *args, nbl_error *err);
nbl_status nbl_api_attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err);
nbl_status nbl_api_gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err);
nbl_status nbl_api_copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err);
nbl_status nbl_api_transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err);
nbl_status nbl_api_merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err);
nbl_status nbl_api_append_coded(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err);

/* cache/policy.c */
nbl_status nbl_api_recipe_parse(const char *name, uint32_t k_dim, uint32_t v_dim, nbl_recipe *out_recipe,
                                nbl_error *err);

nbl_status nbl_api_policy_parse(const char *text, uint32_t layers, uint32_t k_dim, uint32_t v_dim,
                                nbl_policy *out_policy, nbl_error *err);

/* cache/ */
nbl_status nbl_api_cache_plan(const nbl_cache_config *config, nbl_cache_stats *out_stats, nbl_error *err);
nbl_status nbl_api_cache_create(nbl_device *device, const nbl_cache_config *config, nbl_cache **out_cache,
                                nbl_error *err);
nbl_status nbl_api_cache_destroy(nbl_cache *cache, nbl_error *err);
nbl_status nbl_api_cache_stats(nbl_cache *cache, nbl_cache_stats *out_stats, nbl_error *err);
nbl_status nbl_api_seq_create(nbl_cache *cache, uint64_t *out_sequence, nbl_error *err);
nbl_status nbl_api_seq_free(nbl_cache *cache, uint64_t sequence, nbl_error *err);
nbl_status nbl_api_seq_length(nbl_cache *cache, uint64_t sequence, uint32_t layer, uint32_t *out_tokens,
                              nbl_error *err);
nbl_status nbl_api_seq_truncate(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err);
nbl_status nbl_api_seq_fork(nbl_cache *cache, uint64_t parent, uint32_t tokens, uint64_t *out_child, nbl_error *err);
nbl_status nbl_api_seq_truncate_batch(nbl_cache *cache, const uint64_t *sequences, const uint32_t *tokens,
                                      uint32_t batch, nbl_error *err);
nbl_status nbl_api_seq_drop_prefix(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err);
nbl_status nbl_api_cache_verify(nbl_cache *cache, nbl_error *err);
nbl_status nbl_api_prefix_publish(nbl_cache *cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens,
                                  nbl_error *err);
nbl_status nbl_api_prefix_match(nbl_cache *cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err);
nbl_status nbl_api_seq_adopt(nbl_cache *cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens,
                             nbl_error *err);
nbl_status nbl_api_prefix_pin(nbl_cache *cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err);
nbl_status nbl_api_prefix_unpin(nbl_cache *cache, const nbl_prefix *prefix, uint32_t tokens, nbl_error *err);
nbl_status nbl_api_prefix_clear(nbl_cache *cache, nbl_error *err);
nbl_status nbl_api_snapshot_size(nbl_cache *cache, uint64_t sequence, uint64_t *out_bytes, nbl_error *err);
nbl_status nbl_api_snapshot_write(nbl_cache *cache, uint64_t sequence, void *buffer, uint64_t bytes, nbl_error *err);
nbl_status nbl_api_snapshot_save(nbl_cache *cache, uint64_t sequence, const char *path, nbl_error *err);
nbl_status nbl_api_snapshot_read(nbl_cache *cache, const void *buffer, uint64_t bytes, uint64_t *out_sequence,
                                 nbl_error *err);
nbl_status nbl_api_snapshot_load(nbl_cache *cache, const char *path, uint64_t *out_sequence, nbl_error *err);
nbl_status nbl_api_cache_stats_text(nbl_cache *cache, uint32_t format, char *buffer, uint64_t bytes,
                                    uint64_t *out_bytes, nbl_error *err);
nbl_status nbl_api_cache_append(nbl_cache *cache, const nbl_cache_append_args *args, nbl_error *err);
nbl_status nbl_api_cache_append_coded(nbl_cache *cache, const nbl_cache_append_coded_args *args, nbl_error *err);
nbl_status nbl_api_cache_attend(nbl_cache *cache, const nbl_cache_attend_args *args, nbl_error *err);

/* cache/locked.c: the slots of the table. They check the handle and take the lock of a locked cache around the calls
 * above, which rely on that. */
#define NBL_LOCKED_CALLS(X)                                                                                           \
    X(cache_stats, (nbl_cache * cache, nbl_cache_stats * out_stats, nbl_error * err), (cache, out_stats, err))        \
    X(cache_verify, (nbl_cache * cache, nbl_error * err), (cache, err))                                               \
    X(cache_append, (nbl_cache * cache, const nbl_cache_append_args *args, nbl_error *err), (cache, args, err))       \
    X(cache_append_coded, (nbl_cache * cache, const nbl_cache_append_coded_args *args, nbl_error *err),               \
      (cache, args, err))                                                                                             \
    X(cache_attend, (nbl_cache * cache, const nbl_cache_attend_args *args, nbl_error *err), (cache, args, err))       \
    X(cache_stats_text,                                                                                               \
      (nbl_cache * cache, uint32_t format, char *buffer, uint64_t bytes, uint64_t *out_bytes, nbl_error *err),        \
      (cache, format, buffer, bytes, out_bytes, err))                                                                 \
    X(seq_create, (nbl_cache * cache, uint64_t * out_sequence, nbl_error * err), (cache, out_sequence, err))          \
    X(seq_free, (nbl_cache * cache, uint64_t sequence, nbl_error * err), (cache, sequence, err))                      \
    X(seq_length, (nbl_cache * cache, uint64_t sequence, uint32_t layer, uint32_t * out_tokens, nbl_error * err),     \
      (cache, sequence, layer, out_tokens, err))                                                                      \
    X(seq_truncate, (nbl_cache * cache, uint64_t sequence, uint32_t tokens, nbl_error * err),                         \
      (cache, sequence, tokens, err))                                                                                 \
    X(seq_truncate_batch,                                                                                             \
      (nbl_cache * cache, const uint64_t *sequences, const uint32_t *tokens, uint32_t batch, nbl_error *err),         \
      (cache, sequences, tokens, batch, err))                                                                         \
    X(seq_fork, (nbl_cache * cache, uint64_t parent, uint32_t tokens, uint64_t * out_child, nbl_error * err),         \
      (cache, parent, tokens, out_child, err))                                                                        \
    X(seq_drop_prefix, (nbl_cache * cache, uint64_t sequence, uint32_t tokens, nbl_error * err),                      \
      (cache, sequence, tokens, err))                                                                                 \
    X(seq_adopt,                                                                                                      \
      (nbl_cache * cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err),         \
      (cache, sequence, prefix, out_tokens, err))                                                                     \
    X(prefix_publish,                                                                                                 \
      (nbl_cache * cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err),         \
      (cache, sequence, prefix, out_tokens, err))                                                                     \
    X(prefix_match, (nbl_cache * cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err),              \
      (cache, prefix, out_tokens, err))                                                                               \
    X(prefix_pin, (nbl_cache * cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err),                \
      (cache, prefix, out_tokens, err))                                                                               \
    X(prefix_unpin, (nbl_cache * cache, const nbl_prefix *prefix, uint32_t tokens, nbl_error *err),                   \
      (cache, prefix, tokens, err))                                                                                   \
    X(prefix_clear, (nbl_cache * cache, nbl_error * err), (cache, err))                                               \
    X(snapshot_size, (nbl_cache * cache, uint64_t sequence, uint64_t * out_bytes, nbl_error * err),                   \
      (cache, sequence, out_bytes, err))                                                                              \
    X(snapshot_write, (nbl_cache * cache, uint64_t sequence, void *buffer, uint64_t bytes, nbl_error *err),           \
      (cache, sequence, buffer, bytes, err))                                                                          \
    X(snapshot_save, (nbl_cache * cache, uint64_t sequence, const char *path, nbl_error *err),                        \
      (cache, sequence, path, err))                                                                                   \
    X(snapshot_read, (nbl_cache * cache, const void *buffer, uint64_t bytes, uint64_t *out_sequence, nbl_error *err), \
      (cache, buffer, bytes, out_sequence, err))                                                                      \
    X(snapshot_load, (nbl_cache * cache, const char *path, uint64_t *out_sequence, nbl_error *err),                   \
      (cache, path, out_sequence, err))

#define NBL_LOCKED_PROTOTYPE(name, parameters, arguments) nbl_status nbl_locked_##name parameters;
NBL_LOCKED_CALLS(NBL_LOCKED_PROTOTYPE)
#undef NBL_LOCKED_PROTOTYPE

#endif
