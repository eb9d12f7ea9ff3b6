/* SPDX-License-Identifier: Apache-2.0 */
/** @file session.h @brief The runtime, a backend and a device, as the command line asks for them. */
#ifndef NBL_CLI_SESSION_H
#define NBL_CLI_SESSION_H

#include "options.h"

/** What the shared options say. An option given goes before the environment variable of the same meaning. */
typedef struct nbl_session_options {
    const char *backend;
    const char *backend_dir;
    const char *isa;
    uint32_t threads;
    uint32_t ordinal;
} nbl_session_options;

/** Rows of an option table for a values struct with a nbl_session_options field named session. */
#define NBL_SESSION_OPTION_ROWS(type)                                                                                  \
    {"backend",                                                                                                        \
     NBL_OPTION_TEXT,                                                                                                  \
     offsetof(type, session.backend),                                                                                  \
     0,                                                                                                                \
     0,                                                                                                                \
     "NAME",                                                                                                           \
     "cuda, sim, a comma list tried in order, or a path (else NIBBLE_BACKEND, else cuda)"},                            \
        {"backend-dir",                                                                                                \
         NBL_OPTION_TEXT,                                                                                              \
         offsetof(type, session.backend_dir),                                                                          \
         0,                                                                                                            \
         0,                                                                                                            \
         "DIR",                                                                                                        \
         "absolute directory searched first"},                                                                         \
        {"device", NBL_OPTION_U32, offsetof(type, session.ordinal), 0, 255, "N", "device of the backend (default 0)"}, \
        {"threads", NBL_OPTION_U32, offsetof(type, session.threads), 1, 1024, "N", "team size of sim"},                \
    {                                                                                                                  \
        "isa", NBL_OPTION_TEXT, offsetof(type, session.isa), 0, 0, "NAME",                                             \
            "instruction set of sim: scalar, avx2, avx512, amx; neon, i8mm on AArch64"                                 \
    }

/** An open device and the calls to use it. */
typedef struct nbl_session {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_report *report; /**< every backend tried, and how far it got */
    bool quiet;         /**< log lines of the runtime are dropped */
    nbl_stream stream;
    nbl_caps caps;
    char backend[64]; /**< name of the backend loaded */
    char path[1024];  /**< its file */
} nbl_session;

/** Gets the application table. */
int nbl_session_api(const nbl_api_v1 **out_api, nbl_fault *fault);

/** Says whether the options can be used at all: --backend-dir must be an absolute directory that is there. */
int nbl_session_check(const nbl_session_options *options, nbl_fault *fault);

/** Loads a backend and opens its device; NBL_EXIT_BACKEND and a fault if that is not possible, NBL_EXIT_USAGE if it
 *  would be without --device, --isa or --threads, which the fault names. */
int nbl_session_open(nbl_session *out_session, const nbl_session_options *options, nbl_fault *fault);

/** The same without log lines, for outcomes that are reported anyway. The session keeps the report also on failure: it
 *  is the caller's to close whatever is returned. */
int nbl_session_try(nbl_session *out_session, const nbl_session_options *options, nbl_fault *fault);

/** Opens the first device of one backend, a name or an absolute path, and of no other: of the environment only
 *  NIBBLE_BACKEND_DIR counts, as in a load. Quiet, and closed, as nbl_session_try. */
int nbl_session_probe(nbl_session *out_session, const char *backend, const char *backend_dir, nbl_fault *fault);

/** What became of the last backend tried; strings live as long as the session. False if none was. */
bool nbl_session_last_attempt(const nbl_session *session, nbl_load_attempt *out_attempt);

/** Closes device, runtime and report. */
void nbl_session_close(nbl_session *session);

/** Allocates device memory; zeroed is not promised. */
int nbl_session_alloc(nbl_session *session, uint64_t bytes, void **out_memory, nbl_fault *fault);

/** Allocates device memory and copies bytes from the host into it. */
int nbl_session_upload(nbl_session *session, const void *bytes, uint64_t size, void **out_memory, nbl_fault *fault);

/** Copies device memory to the host and reports what went wrong on the stream so far. */
int nbl_session_download(nbl_session *session, const void *memory, void *bytes, uint64_t size, nbl_fault *fault);

/** Waits until the work queued on the stream is done; memory is any device memory of at least 4 bytes. */
int nbl_session_sync(nbl_session *session, const void *memory, nbl_fault *fault);

/** Frees device memory; NULL is fine. */
void nbl_session_release(nbl_session *session, void *memory);

#endif
