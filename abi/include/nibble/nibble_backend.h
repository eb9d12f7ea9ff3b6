/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble_backend.h
 * @brief The ABI between the runtime and a backend plugin.
 *
 * A plugin is libnibble-backend-NAME.so.1. It exports one function, #nbl_backend_entry_v1, carries one ELF note
 * (#NBL_BACKEND_NOTE) and links nothing of the runtime: it calls the host only through #nbl_host.
 */
#ifndef NIBBLE_BACKEND_H
#define NIBBLE_BACKEND_H

#include "nibble_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NBL_BACKEND_ABI_MAJOR 1u
#define NBL_BACKEND_ABI_MINOR 0u
#define NBL_BACKEND_ABI_MINOR_MIN 0u /**< oldest minor this runtime accepts */

/** Log levels, as in NIBBLE_LOG. */
enum nbl_log_level {
    NBL_LOG_ERROR = 0,
    NBL_LOG_WARN = 1,
    NBL_LOG_INFO = 2,
    NBL_LOG_DEBUG = 3,
    NBL_LOG_MAX_ENUM = 0x7fffffff
};

/** What the runtime gives a plugin. Valid for the life of the process. */
typedef struct nbl_host {
    uint32_t struct_size;
    uint32_t reserved;
    /** Writes one log line. */
    void (*log)(uint32_t level, const char *message);
    /** Host memory, aligned to a power of two of at least 8; NULL when there is none. */
    void *(*alloc)(uint64_t bytes, uint64_t alignment);
    void (*free)(void *memory);
    /** Fills err (may be NULL) and returns status. message is one line without the "nibble: " prefix. */
    nbl_status (*fail)(nbl_error *err, nbl_status status, uint32_t origin, int32_t native_code, const char *message);
} nbl_host;

/** Negotiation, in: what the runtime speaks; out: what the plugin will speak. */
typedef struct nbl_backend_request {
    uint32_t struct_size;
    uint32_t abi_major;
    uint32_t abi_minor_min;     /**< in: oldest minor accepted */
    uint32_t abi_minor;         /**< in: newest minor known; out: minor of the table returned */
    uint32_t numerics_version;  /**< in: the runtime's; out: the plugin's */
    uint32_t layout_version;    /**< in: the runtime's; out: the plugin's */
} nbl_backend_request;

/** Prototypes of the table's slots. Every call fills err (may be NULL) when it fails and then leaves outputs untouched,
 *  unless it says otherwise. Argument structs reach the plugin complete and checked for shape, alignment, overlap and
 *  unknown fields; the data behind the pointers is the plugin's to check. */
#define NBL_BACKEND_SLOTS(X)                                                                                             \
    X(REQUIRED, nbl_status, device_open, (const nbl_device_options *options, nbl_device **out_device, nbl_error *err))   \
    X(REQUIRED, void, device_close, (nbl_device * device))                                                              \
    X(REQUIRED, nbl_status, caps, (nbl_device * device, nbl_caps *out_caps, nbl_error *err))                            \
    X(REQUIRED, nbl_status, supports, (nbl_device * device, const nbl_op_desc *op, nbl_error *err))                     \
    X(REQUIRED, nbl_status, workspace_size,                                                                             \
      (nbl_device * device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err))                                \
    X(REQUIRED, nbl_status, memory_alloc, (nbl_device * device, uint64_t bytes, void **out_memory, nbl_error *err))     \
    X(REQUIRED, void, memory_free, (nbl_device * device, void *memory))                                                 \
    X(REQUIRED, nbl_status, memory_copy,                                                                                \
      (nbl_device * device, void *dst, const void *src, uint64_t bytes, uint32_t kind, nbl_stream stream, nbl_error *err)) \
    X(REQUIRED, nbl_status, check, (nbl_device * device, nbl_stream stream, nbl_error *err))                            \
    X(OPTIONAL, nbl_status, append, (nbl_device * device, const nbl_append_args *args, nbl_error *err))                 \
    X(OPTIONAL, nbl_status, attend, (nbl_device * device, const nbl_attend_args *args, nbl_error *err))                 \
    X(OPTIONAL, nbl_status, gather, (nbl_device * device, const nbl_gather_args *args, nbl_error *err))                 \
    X(OPTIONAL, nbl_status, copy_pages, (nbl_device * device, const nbl_copy_pages_args *args, nbl_error *err))         \
    X(OPTIONAL, nbl_status, transcode, (nbl_device * device, const nbl_transcode_args *args, nbl_error *err))           \
    X(OPTIONAL, nbl_status, merge, (nbl_device * device, const nbl_merge_args *args, nbl_error *err))

/** Table of a backend. Slots are only ever appended. */
typedef struct nbl_backend_v1 {
    uint32_t struct_size;
    uint32_t abi_minor;
    const char *name;        /**< equal to NAME of the file */
    const char *description; /**< one line: version, build, what it needs */
#define NBL_SLOT(need, result, name, arguments) result(*name) arguments;
    NBL_BACKEND_SLOTS(NBL_SLOT)
#undef NBL_SLOT
} nbl_backend_v1;

/** The one symbol of a plugin. Touches no device, starts no thread. Returns NBL_OK and a table that lives as long as the
 *  process, or a reason. host is NULL-checked by the plugin; request is in/out. */
typedef nbl_status (*nbl_backend_entry_v1_fn)(const nbl_host *host, nbl_backend_request *request,
                                              const nbl_backend_v1 **out_backend, nbl_error *err);
#define NBL_BACKEND_ENTRY_SYMBOL "nbl_backend_entry_v1"

/* ------------------------------------------------------------------------------------------------ ELF note */

#define NBL_NOTE_SECTION ".note.nibble.abi"
#define NBL_NOTE_OWNER "nibble"
#define NBL_NOTE_TYPE 1u
#define NBL_NOTE_MAGIC 0x314c424eu /* "NBL1" */

enum nbl_isa_level { /**< what the CPU must have before the file may be opened */
    NBL_ISA_X86_64 = 0,
    NBL_ISA_X86_64_V2 = 2,
    NBL_ISA_X86_64_V3 = 3,
    NBL_ISA_X86_64_V4 = 4,
    NBL_ISA_AARCH64 = 100,
    NBL_ISA_MAX_ENUM = 0x7fffffff
};

/** Payload of the note. */
typedef struct nbl_note_payload {
    uint32_t magic;
    uint32_t note_version; /**< 1 */
    uint32_t abi_major;
    uint32_t abi_minor_min;
    uint32_t abi_minor;
    uint32_t numerics_version;
    uint32_t layout_version;
    uint32_t isa_level;
    uint32_t cuda_version; /**< CUDART_VERSION built with, 0 without CUDA */
    uint32_t reserved;
} nbl_note_payload;

/** The whole note as it lies in the file. */
typedef struct nbl_note {
    uint32_t name_bytes;
    uint32_t payload_bytes;
    uint32_t type;
    char owner[8];
    nbl_note_payload payload;
} nbl_note;

/** Defines the note; once per plugin, at file scope. */
#define NBL_BACKEND_NOTE(isa_level_, cuda_version_)                                                     \
    __attribute__((section(NBL_NOTE_SECTION), used, aligned(4))) static const nbl_note nbl_backend_note = { \
        7u, (uint32_t)sizeof(nbl_note_payload), NBL_NOTE_TYPE, NBL_NOTE_OWNER,                          \
        {NBL_NOTE_MAGIC, 1u, NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR_MIN, NBL_BACKEND_ABI_MINOR,   \
         NBL_NUMERICS_VERSION, NBL_LAYOUT_VERSION, (isa_level_), (cuda_version_), 0u}}

#ifdef __cplusplus
}
#endif

#endif
