/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble_backend.h
 * @brief The ABI between the runtime and a backend plugin.
 *
 * A plugin is libnibble-backend-NAME.so.1. It exports one function, nbl_backend_entry_v1, carries one ELF note
 * (#NBL_BACKEND_NOTE) and links nothing of the runtime: it calls the host only through #nbl_host.
 *
 * @section duties Duties of a plugin
 * The loader checks B1 to B6 and refuses a plugin that breaks one. A plugin that breaks another duty harms its process.
 *
 * - B1: The file is a complete ELF64 shared object for this machine, named libnibble-backend-NAME.so.1.
 * - B2: It carries the note, whose versions are those of the table.
 * - B3: The entry lies in the file itself, not in a library it depends on.
 * - B4: All symbols resolve at load; the runtime opens plugins with RTLD_NOW.
 * - B5: Every required slot is set and lies within struct_size; name is NAME of the file.
 * - B6: Numerics and layout versions equal the runtime's: other versions mean other bits.
 * - B7: It exports the entry and nothing else, and does not depend on libnibble; else symbols of host and plugin mix.
 * - B8: No constructor, destructor, atexit handler or TLS destructor acts outside the file.
 * - B9: The entry touches no device and starts no thread, so that a process may still fork after a load.
 * - B10: It is never unloaded. It may keep threads and static state, and frees neither at exit.
 * - B11: Any slot may be called from any thread; one device by one thread at a time, different ones in parallel.
 * - B12: Every call restores what it changes: current device, floating-point mode, CPU affinity, signal mask, errno.
 * - B13: Argument structs arrive complete and checked for shape, enums, alignment, overlap and unknown fields. The data
 *   behind their pointers is the plugin's to check: an index out of range is NBL_E_RANGE, never a stray access.
 * - B14: A failing call fills err, which may be NULL, through host->fail, and leaves outputs as they were. No exception
 *   leaves a slot; nothing prints, aborts or exits.
 * - B15: append, attend, gather, copy_pages, transcode and merge allocate no device memory, keep no pointer and do not
 *   synchronise the stream.
 * - B16: Results are the bytes of docs/numerics.md, for any number of threads.
 */
#ifndef NIBBLE_BACKEND_H
#define NIBBLE_BACKEND_H

#include "nibble_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NBL_BACKEND_ABI_MAJOR 1u
#define NBL_BACKEND_ABI_MINOR 1u
#define NBL_BACKEND_ABI_MINOR_MIN 0u /**< oldest minor this runtime accepts */

/** What the runtime gives a plugin. Valid for the life of the process. */
typedef struct nbl_host {
    uint32_t struct_size;
    uint32_t reserved;
    /** Writes one log line (enum nbl_log_level), without a prefix or a line end; any thread. */
    void (*log)(uint32_t level, const char *message);
    /** Host memory, aligned to a power of two of at least 8; NULL when there is none. */
    void *(*alloc)(uint64_t bytes, uint64_t alignment);
    /** Frees memory of alloc, or NULL. */
    void (*free)(void *memory);
    /** Fills err (may be NULL) and returns status. message is one line without the "nibble: " prefix. */
    nbl_status (*fail)(nbl_error *err, nbl_status status, uint32_t origin, int32_t native_code, const char *message);
} nbl_host;

/** Negotiation, in: what the runtime speaks; out: what the plugin will speak. */
typedef struct nbl_backend_request {
    uint32_t struct_size;
    uint32_t abi_major;
    uint32_t abi_minor_min;    /**< in: oldest minor accepted */
    uint32_t abi_minor;        /**< in: newest minor known; out: minor of the table returned */
    uint32_t numerics_version; /**< in: the runtime's; out: the plugin's */
    uint32_t layout_version;   /**< in: the runtime's; out: the plugin's */
} nbl_backend_request;

/** Table of a backend. Slots are only ever appended. Each slot is REQUIRED (never NULL) or OPTIONAL since a minor
 * (NULL, or
 *  past struct_size, where the backend has it not; the runtime then answers NBL_E_UNSUPPORTED in its place).
 *
 *  What each slot computes, its shapes, numerics and results are those of the slot of the same name in nbl_api_v1;
 *  below is only what the backend must know besides. device is the backend's own object, from its device_open. */
typedef struct nbl_backend_v1 {
    uint32_t struct_size;    /**< bytes of the table, so far as the backend knows it */
    uint32_t abi_minor;      /**< equal to abi_minor of the negotiated request */
    const char *name;        /**< equal to NAME of the file; static */
    const char *description; /**< one line: version, build, what it needs; static */

    /** Opens device options->ordinal. REQUIRED.
     *
     * The first slot that may touch a driver or start a thread. Several devices may be open, of one ordinal too.
     * @param options     complete; unknown values of threads and isa are refused with their value
     * @param out_device  written on success only
     * @retval NBL_OK
     * @retval NBL_E_DEVICE       no driver, no device, no such ordinal; native_code is the driver's. The runtime may
     *                            then go on to the next backend of its list, as after NBL_E_UNSUPPORTED and
     *                            NBL_E_BACKEND
     * @retval NBL_E_INVALID      an option is out of range
     * @retval NBL_E_NO_MEMORY    no memory
     * @since backend ABI 1.0
     */
    nbl_status (*device_open)(const nbl_device_options *options, nbl_device **out_device, nbl_error *err);

    /** Frees a device that is not NULL. All memory of memory_alloc has been freed, all work has finished. REQUIRED.
     * @since backend ABI 1.0
     */
    void (*device_close)(nbl_device *device);

    /** Fills a complete, zeroed out_caps. REQUIRED.
     * @since backend ABI 1.0
     */
    nbl_status (*caps)(nbl_device *device, nbl_caps *out_caps, nbl_error *err);

    /** Answers for a complete op whose shape is valid: NBL_OK, or NBL_E_UNSUPPORTED with the reason. REQUIRED.
     * @since backend ABI 1.0
     */
    nbl_status (*supports)(nbl_device *device, const nbl_op_desc *op, nbl_error *err);

    /** Bytes of workspace for op; the largest over all calls within its bounds. REQUIRED.
     * @since backend ABI 1.0
     */
    nbl_status (*workspace_size)(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err);

    /** Allocates bytes > 0 of device memory, aligned to 256. REQUIRED.
     * @since backend ABI 1.0
     */
    nbl_status (*memory_alloc)(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err);

    /** Frees memory of memory_alloc, not NULL. REQUIRED.
     * @since backend ABI 1.0
     */
    void (*memory_free)(nbl_device *device, void *memory);

    /** Copies bytes > 0, ranges checked for NULL and overlap, kind and stream.kind for their values. NBL_STREAM_HOST
     *  must be taken, whatever caps say of streams: then the copy has finished when the call returns. REQUIRED.
     * @since backend ABI 1.0
     */
    nbl_status (*memory_copy)(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                              nbl_stream stream, nbl_error *err);

    /** Reports and clears the first error of execution since the last check; waits for the stream unless it is being
     *  captured. REQUIRED.
     * @since backend ABI 1.0
     */
    nbl_status (*check)(nbl_device *device, nbl_stream stream, nbl_error *err);

    /** Quantizes new tokens into pages (NUM 3, 4). OPTIONAL since 1.0.
     * @since backend ABI 1.0
     */
    nbl_status (*append)(nbl_device *device, const nbl_append_args *args, nbl_error *err);

    /** Attention over pages (NUM 5.1 to 5.7). OPTIONAL since 1.0.
     * @since backend ABI 1.0
     */
    nbl_status (*attend)(nbl_device *device, const nbl_attend_args *args, nbl_error *err);

    /** Dequantizes tokens (NUM 4.4). OPTIONAL since 1.0.
     * @since backend ABI 1.0
     */
    nbl_status (*gather)(nbl_device *device, const nbl_gather_args *args, nbl_error *err);

    /** Copies whole pages. OPTIONAL since 1.0.
     * @since backend ABI 1.0
     */
    nbl_status (*copy_pages)(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err);

    /** Re-quantizes whole pages (NUM 3.7). OPTIONAL since 1.0.
     * @since backend ABI 1.0
     */
    nbl_status (*transcode)(nbl_device *device, const nbl_transcode_args *args, nbl_error *err);

    /** Merges partial results (NUM 5.6 to 5.8). OPTIONAL since 1.0.
     * @since backend ABI 1.0
     */
    nbl_status (*merge)(nbl_device *device, const nbl_merge_args *args, nbl_error *err);

    /** Allocates bytes > 0 of host memory, aligned to 256, that memory_copy moves without a copy in between and without
     *  holding up the caller (page-locked). OPTIONAL since 1.1, together with host_free.
     * @since backend ABI 1.1
     */
    nbl_status (*host_alloc)(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err);

    /** Frees memory of host_alloc, not NULL; copies from and to it have finished. OPTIONAL since 1.1.
     * @since backend ABI 1.1
     */
    void (*host_free)(nbl_device *device, void *memory);

    /** Takes codes that an engine has quantized into pages (NUM 6.8). OPTIONAL since 1.1.
     * @since backend ABI 1.1
     */
    nbl_status (*append_coded)(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err);
} nbl_backend_v1;

/** Makes the entry visible in a plugin built with hidden symbols. */
#define NBL_BACKEND_EXPORT __attribute__((visibility("default")))

/** The one symbol of a plugin: agrees on versions and hands out the table. Runs before anything else of the plugin,
 * under
 *  the loader's lock; it must not call the application ABI.
 *
 * @param host         lives as long as the process
 * @param request      in: what the runtime speaks; out: what the plugin will speak
 * @param out_backend  a table that lives as long as the process
 * @param err          or NULL
 * @retval NBL_OK
 * @retval NBL_E_INVALID      an argument but err is NULL
 * @retval NBL_E_ABI          no common version; err says which ones the plugin speaks
 * @retval NBL_E_UNSUPPORTED  the plugin cannot work in this process; err says why
 * @since backend ABI 1.0
 */
NBL_BACKEND_EXPORT nbl_status nbl_backend_entry_v1(const nbl_host *host, nbl_backend_request *request,
                                                   const nbl_backend_v1 **out_backend, nbl_error *err);

/** Type of nbl_backend_entry_v1, for dlsym. */
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
#define NBL_BACKEND_NOTE(isa_level_, cuda_version_)                                                         \
    __attribute__((section(NBL_NOTE_SECTION), used, aligned(4))) static const nbl_note nbl_backend_note = { \
        7u,                                                                                                 \
        (uint32_t)sizeof(nbl_note_payload),                                                                 \
        NBL_NOTE_TYPE,                                                                                      \
        NBL_NOTE_OWNER,                                                                                     \
        {NBL_NOTE_MAGIC, 1u, NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR_MIN, NBL_BACKEND_ABI_MINOR,       \
         NBL_NUMERICS_VERSION, NBL_LAYOUT_VERSION, (isa_level_), (cuda_version_), 0u}}

#ifdef __cplusplus
}
#endif

#endif
