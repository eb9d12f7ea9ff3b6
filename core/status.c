/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

const char *nbl_api_status_name(nbl_status status)
{
    switch (status) {
#define NBL_STATUS_CASE(name, value, text) \
    case (value): return "NBL_" #name;
        NBL_STATUS_LIST(NBL_STATUS_CASE)
#undef NBL_STATUS_CASE
    default: return "NBL_E_?";
    }
}

const char *nbl_api_status_text(nbl_status status)
{
    switch (status) {
#define NBL_STATUS_CASE(name, value, text) \
    case (value): return text;
        NBL_STATUS_LIST(NBL_STATUS_CASE)
#undef NBL_STATUS_CASE
    default: return "unknown status";
    }
}

#if defined(__clang__)
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

static char build_line[160];

static void format_build_line(void)
{
    (void)snprintf(build_line, sizeof build_line, "nibble %s, ABI %u.%u, backend ABI %u.%u, numerics %u, layout %u, %s",
                   NIBBLE_VERSION, NBL_ABI_MAJOR, NBL_ABI_MINOR, NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR,
                   NBL_NUMERICS_VERSION, NBL_LAYOUT_VERSION, COMPILER);
}

const char *nbl_api_build_info(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, format_build_line);
    return build_line;
}

/* Bytes of text that fit into err, its NUL included; 0 when nothing of err may be written. */
static size_t message_bytes(const nbl_error *err)
{
    const size_t head_bytes = offsetof(nbl_error, message);
    if (!err || err->struct_size <= head_bytes)
        return 0;
    const size_t bytes = err->struct_size - head_bytes;
    return bytes < sizeof err->message ? bytes : sizeof err->message;
}

/* A line break in a path or variable must not break the line. */
static void one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

nbl_status nbl_fail(nbl_error *err, nbl_status status, uint32_t origin, int32_t native, const char *format, ...)
{
    const size_t bytes = message_bytes(err);
    if (bytes == 0)
        return status;
    char line[sizeof err->message] = NBL_MESSAGE_PREFIX;
    const size_t prefix_bytes = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    const int wanted = vsnprintf(line + prefix_bytes, sizeof line - prefix_bytes, format, arguments);
    va_end(arguments);
    one_line(line);
    err->status = status;
    err->origin = origin;
    err->native_code = native;
    err->truncated = wanted < 0 || prefix_bytes + (size_t)wanted >= bytes;
    (void)snprintf(err->message, bytes, "%s", line);
    return status;
}

nbl_status nbl_fail_again(nbl_error *err, const nbl_error *from)
{
    const size_t prefix_bytes = strlen(NBL_MESSAGE_PREFIX);
    const int prefixed = strncmp(from->message, NBL_MESSAGE_PREFIX, prefix_bytes) == 0;
    return nbl_fail(err, from->status, from->origin, from->native_code, "%s",
                    from->message + (prefixed ? prefix_bytes : 0));
}
