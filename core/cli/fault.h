/* SPDX-License-Identifier: Apache-2.0 */
/** @file fault.h @brief Exit codes of the tool and the one line it says when something is wrong. */
#ifndef NBL_CLI_FAULT_H
#define NBL_CLI_FAULT_H

#include <nibble/nibble.h>

/** What the process returns. Functions of the tool return one of these; 0 means go on. */
enum nbl_exit {
    NBL_EXIT_OK = 0,
    NBL_EXIT_FAILED = 1,  /**< a check or comparison failed, or an operation did */
    NBL_EXIT_USAGE = 2,   /**< an option or its value is wrong */
    NBL_EXIT_BACKEND = 3, /**< no backend or no device */
    NBL_EXIT_INPUT = 4,   /**< an input file cannot be used */
    NBL_EXIT_HELP = -1    /**< help was printed: stop, return 0 */
};

#define NBL_EXIT_TEXT                                                                       \
    "Exit status: 0 ok, 1 a check or an operation failed, 2 wrong usage, 3 no backend or\n" \
    "device, 4 an input file cannot be used.\n"

/** One line without the "nibble: " prefix; empty if the line was printed already. */
typedef struct nbl_fault {
    char text[1024];
} nbl_fault;

/** Formats the fault and returns exit_code for the caller to return. Control bytes become '?': it stays one line. */
int nbl_fault_set(nbl_fault *fault, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** The text of a message of the runtime without its "nibble: ". */
const char *nbl_message_text(const char *message);

/** Turns an error of the runtime into a fault: "WHAT: message", or the message alone if what is NULL. */
int nbl_fault_from_api(nbl_fault *fault, int exit_code, const char *what, const nbl_error *err);

/** Allocates count items of item_bytes each, zeroed; NULL and a fault if there is no memory or the size overflows. */
void *nbl_alloc(uint64_t count, uint64_t item_bytes, nbl_fault *fault);

#endif
