/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void keep_one_line(char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte < 0x20 || byte == 0x7f)
            *text = '?';
    }
}

int nbl_fault_set(nbl_fault *fault, int exit_code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(fault->text, sizeof fault->text, format, arguments) < 0)
        fault->text[0] = '\0';
    va_end(arguments);
    keep_one_line(fault->text);
    return exit_code;
}

const char *nbl_message_text(const char *message)
{
    static const char prefix[] = "nibble: ";
    return strncmp(message, prefix, sizeof prefix - 1) == 0 ? message + sizeof prefix - 1 : message;
}

int nbl_fault_from_api(nbl_fault *fault, int exit_code, const char *what, const nbl_error *err)
{
    return nbl_fault_set(fault, exit_code, "%s%s%s", what ? what : "", what ? ": " : "",
                         nbl_message_text(err->message));
}

void *nbl_alloc(uint64_t count, uint64_t item_bytes, nbl_fault *fault)
{
    void *memory = NULL;
    if (item_bytes == 0 || count <= SIZE_MAX / item_bytes)
        memory = calloc(count ? (size_t)count : 1, item_bytes ? (size_t)item_bytes : 1);
    if (!memory)
        nbl_fault_set(fault, NBL_EXIT_FAILED, "no memory for %" PRIu64 " items of %" PRIu64 " bytes", count,
                      item_bytes);
    return memory;
}
