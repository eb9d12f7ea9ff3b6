/* SPDX-License-Identifier: Apache-2.0 */
/** @file options.h @brief One table of options per subcommand; parsing and help come from it. */
#ifndef NBL_CLI_OPTIONS_H
#define NBL_CLI_OPTIONS_H

#include "fault.h"

#include <stdbool.h>

/** Type of the field an option writes. */
enum nbl_option_kind {
    NBL_OPTION_FLAG, /**< bool; takes no value */
    NBL_OPTION_U32,  /**< uint32_t */
    NBL_OPTION_U64,  /**< uint64_t, at most 2^53 */
    NBL_OPTION_F64,  /**< double, finite */
    NBL_OPTION_TEXT  /**< const char *, not empty */
};

/** One option: where its value goes and what is allowed. */
typedef struct nbl_option {
    const char *name; /**< without "--" */
    uint32_t kind;    /**< enum nbl_option_kind */
    size_t offset;    /**< of the field in the command's values */
    double min;       /**< numbers only */
    double max;
    const char *value_name; /**< for the help, NULL for a flag */
    const char *help;
} nbl_option;

/** One subcommand. */
typedef struct nbl_command {
    const char *name;
    const char *summary;
    const char *details; /**< text of --help after the options */
    const nbl_option *options;
    size_t option_count;
    int (*run)(int argc, char **argv, nbl_fault *fault);
} nbl_command;

extern const nbl_command nbl_command_info;
extern const nbl_command nbl_command_doctor;
extern const nbl_command nbl_command_plan;
extern const nbl_command nbl_command_attend;
extern const nbl_command nbl_command_compare;
extern const nbl_command nbl_command_tune;
extern const nbl_command nbl_command_bench;
extern const nbl_command nbl_command_serve_sim;

/** Reads argv[1..] into the command's values.
 *  Returns 0, NBL_EXIT_USAGE with a fault, or NBL_EXIT_HELP after printing the help. */
int nbl_options_parse(const nbl_command *command, int argc, char **argv, void *values, nbl_fault *fault);

/** Reads a whole decimal number: digits only, no sign, space or suffix. False if text is not one or is out of range. */
bool nbl_number_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out_value);

/** Reads a whole finite floating-point number in [min, max]. False if text is not one. */
bool nbl_number_parse_f64(const char *text, double min, double max, double *out_value);

/** A comma list cut into its items; texts point into storage. */
typedef struct nbl_list {
    size_t count;
    const char *items[32];
    char storage[512];
} nbl_list;

/** Cuts a comma list; empty items, more than 32 of them or over 511 bytes are a fault that names the option. */
int nbl_list_split(const char *option, const char *text, nbl_list *out_list, nbl_fault *fault);

/** Reads item as a number for the option, or sets a fault that names the option, the text and the range. */
int nbl_option_number_u64(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out_value,
                          nbl_fault *fault);

#endif
