/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file log.h
 * @brief Where log lines go: to the callback of a runtime, or to stderr.
 */
#ifndef NBL_LOG_H
#define NBL_LOG_H

#include <stdint.h>

/** Destination of one runtime's lines. */
typedef struct nbl_log_sink {
    void (*write)(void *user, uint32_t level, const char *message); /**< NULL: stderr */
    void *user;
    uint32_t level; /**< highest that goes to stderr, enum nbl_log_level */
    struct nbl_log_sink *older;
} nbl_log_sink;

/** Makes a sink the one that lines of plugins go to, until it is removed or a newer one is added. */
void nbl_log_add(nbl_log_sink *sink);

/** Removes a sink; when this returns, its callback is not running and will not run again. */
void nbl_log_remove(nbl_log_sink *sink);

/** Writes "nibble: " and one line. A callback gets every level; stderr gets those up to sink->level, a repeated one
 * once. */
__attribute__((format(printf, 3, 4))) void nbl_log(const nbl_log_sink *sink, uint32_t level, const char *format, ...);

/** nbl_host.log: a line of a plugin, to the newest sink. */
void nbl_log_plugin(uint32_t level, const char *message);

#endif
