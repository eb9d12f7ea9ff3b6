/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <stdio.h>
#include <string.h>

static const nbl_command *const commands[] = {
    &nbl_command_info,    &nbl_command_doctor, &nbl_command_plan,  &nbl_command_attend,
    &nbl_command_compare, &nbl_command_tune,   &nbl_command_bench, &nbl_command_serve_sim,
};

static void print_usage(FILE *stream)
{
    fprintf(stream, "usage: nibble COMMAND [options]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(stream, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(stream,
            "\nnibble COMMAND --help (or nibble help COMMAND) lists a command's options; nibble --version prints the "
            "version.\n%s",
            NBL_EXIT_TEXT);
}

static const nbl_command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

static int run_command(const char *name, int argc, char **argv, nbl_fault *fault)
{
    const nbl_command *command = find_command(name);
    if (command)
        return command->run(argc, argv, fault);
    return nbl_fault_set(fault, NBL_EXIT_USAGE, "unknown command \"%.64s\" (see nibble --help)", name);
}

static int dispatch(int argc, char **argv, nbl_fault *fault)
{
    const char *word = argc > 1 ? argv[1] : "";
    bool help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
    if (help && argc == 2) {
        print_usage(stdout);
        return NBL_EXIT_OK;
    }
    if (help) { /* nibble help COMMAND */
        char option[] = "--help", *arguments[] = {argv[2], option, NULL};
        return run_command(argv[2], 2, arguments, fault);
    }
    if (strcmp(word, "--version") == 0) {
        printf("nibble %s\n", NIBBLE_VERSION);
        return NBL_EXIT_OK;
    }
    if (argc > 1)
        return run_command(word, argc - 1, argv + 1, fault);
    print_usage(stderr);
    return NBL_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    nbl_fault fault = {""};
    int code = dispatch(argc, argv, &fault);
    if (code == NBL_EXIT_HELP)
        code = NBL_EXIT_OK;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (code == NBL_EXIT_OK)
            code = nbl_fault_set(&fault, NBL_EXIT_FAILED, "cannot write to standard output");
    }
    if (code != NBL_EXIT_OK && fault.text[0] != '\0')
        fprintf(stderr, "nibble: %s\n", fault.text);
    return code;
}
