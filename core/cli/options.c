/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 48, VALUE_BASE = 256 };

bool nbl_number_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out_value)
{
    if (text[0] < '0' || text[0] > '9')
        return false;
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < min || value > max)
        return false;
    *out_value = value;
    return true;
}

bool nbl_number_parse_f64(const char *text, double min, double max, double *out_value)
{
    bool starts_well = (text[0] >= '0' && text[0] <= '9') || text[0] == '-' || text[0] == '.';
    if (!starts_well)
        return false;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < min || value > max)
        return false;
    *out_value = value;
    return true;
}

int nbl_option_number_u64(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out_value,
                          nbl_fault *fault)
{
    if (nbl_number_parse_u64(text, min, max, out_value))
        return NBL_EXIT_OK;
    return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: \"%.64s\" is not a whole number from %" PRIu64 " to %" PRIu64,
                         option, text, min, max);
}

int nbl_list_split(const char *option, const char *text, nbl_list *out_list, nbl_fault *fault)
{
    const size_t items_max = sizeof out_list->items / sizeof out_list->items[0];
    size_t length = strlen(text);
    if (length >= sizeof out_list->storage)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: list of %zu bytes, at most %zu are allowed", option, length,
                             sizeof out_list->storage - 1);
    memcpy(out_list->storage, text, length + 1);
    out_list->count = 0;
    char *item = out_list->storage;
    for (;;) {
        char *comma = strchr(item, ',');
        if (comma)
            *comma = '\0';
        if (*item == '\0')
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: \"%.64s\" has an empty item", option, text);
        if (out_list->count == items_max)
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: more than %zu items", option, items_max);
        out_list->items[out_list->count++] = item;
        if (!comma)
            return NBL_EXIT_OK;
        item = comma + 1;
    }
}

static int store_number(const nbl_option *option, const char *text, void *field, nbl_fault *fault)
{
    if (option->kind == NBL_OPTION_F64) {
        if (nbl_number_parse_f64(text, option->min, option->max, field))
            return NBL_EXIT_OK;
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: \"%.64s\" is not a number from %g to %g", option->name, text,
                             option->min, option->max);
    }
    uint64_t value = 0;
    int code = nbl_option_number_u64(option->name, text, (uint64_t)option->min, (uint64_t)option->max, &value, fault);
    if (code != NBL_EXIT_OK)
        return code;
    if (option->kind == NBL_OPTION_U64)
        *(uint64_t *)field = value;
    else
        *(uint32_t *)field = (uint32_t)value;
    return NBL_EXIT_OK;
}

static int store(const nbl_option *option, const char *text, void *values, nbl_fault *fault)
{
    void *field = (char *)values + option->offset;
    switch (option->kind) {
    case NBL_OPTION_FLAG: *(bool *)field = true; return NBL_EXIT_OK;
    case NBL_OPTION_TEXT:
        if (text[0] == '\0')
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: the value is empty", option->name);
        *(const char **)field = text;
        return NBL_EXIT_OK;
    default: return store_number(option, text, field, fault);
    }
}

static void print_option(const char *name, const char *value_name, const char *help)
{
    char left[64];
    snprintf(left, sizeof left, "--%s%s%s", name, value_name ? " " : "", value_name ? value_name : "");
    printf("  %-24s %s\n", left, help);
}

static void print_help(const nbl_command *command)
{
    printf("usage: nibble %s [options]\n%s\n\n", command->name, command->summary);
    for (size_t i = 0; i < command->option_count; i++)
        print_option(command->options[i].name, command->options[i].value_name, command->options[i].help);
    print_option("help", NULL, "this text");
    printf("\n%s%s%s", command->details, command->details[0] ? "\n" : "", NBL_EXIT_TEXT);
}

static void make_long_options(const nbl_command *command, struct option *longs)
{
    size_t count = command->option_count < OPTIONS_MAX ? command->option_count : OPTIONS_MAX;
    for (size_t i = 0; i < count; i++) {
        longs[i] = (struct option){command->options[i].name,
                                   command->options[i].kind == NBL_OPTION_FLAG ? no_argument : required_argument, NULL,
                                   VALUE_BASE + (int)i};
    }
    longs[count] = (struct option){"help", no_argument, NULL, 'h'};
    longs[count + 1] = (struct option){0};
}

static int refuse_option(const nbl_command *command, int found, char **argv, nbl_fault *fault)
{
    const char *given = argv[optind - 1];
    if (found == ':')
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "%s: a value is missing", given);
    if (optopt >= VALUE_BASE)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: takes no value", command->options[optopt - VALUE_BASE].name);
    return nbl_fault_set(fault, NBL_EXIT_USAGE, "%.128s: unknown or ambiguous option (see nibble %s --help)", given,
                         command->name);
}

int nbl_options_parse(const nbl_command *command, int argc, char **argv, void *values, nbl_fault *fault)
{
    struct option longs[OPTIONS_MAX + 2];
    make_long_options(command, longs);
    opterr = 0;
    optind = 0; /* glibc: start over; the main program may have parsed before */
    for (;;) {
        int found = getopt_long(argc, argv, "+:h", longs, NULL);
        if (found == -1)
            break;
        if (found == 'h') {
            print_help(command);
            return NBL_EXIT_HELP;
        }
        if (found < VALUE_BASE)
            return refuse_option(command, found, argv, fault);
        int code = store(&command->options[found - VALUE_BASE], optarg, values, fault);
        if (code != NBL_EXIT_OK)
            return code;
    }
    if (optind < argc)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "\"%.128s\": not an option (see nibble %s --help)", argv[optind],
                             command->name);
    return NBL_EXIT_OK;
}
