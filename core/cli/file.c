/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMPORARY_BYTES = 4096 };

static int file_fault(nbl_fault *fault, const char *path, const char *what)
{
    return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.400s: %s: %s", path, what, strerror(errno));
}

static int read_all(int descriptor, const char *path, nbl_file *file, nbl_fault *fault)
{
    uint64_t done = 0;
    while (done < file->size) {
        ssize_t got = read(descriptor, file->bytes + done, file->size - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return file_fault(fault, path, "cannot read");
        if (got == 0)
            return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.400s: ends at byte %" PRIu64 " of %" PRIu64, path, done,
                                 file->size);
        done += (uint64_t)got;
    }
    return NBL_EXIT_OK;
}

static int read_descriptor(int descriptor, const char *path, nbl_file *out_file, nbl_fault *fault)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0)
        return file_fault(fault, path, "cannot stat");
    if (!S_ISREG(status.st_mode))
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.400s: not a regular file", path);
    nbl_file file = {.size = (uint64_t)status.st_size};
    file.bytes = malloc(file.size ? (size_t)file.size : 1);
    if (!file.bytes)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.400s: no memory for its %" PRIu64 " bytes", path, file.size);
    int code = read_all(descriptor, path, &file, fault);
    if (code == NBL_EXIT_OK)
        *out_file = file;
    else
        nbl_file_free(&file);
    return code;
}

int nbl_file_read(const char *path, nbl_file *out_file, nbl_fault *fault)
{
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return file_fault(fault, path, "cannot open");
    int code = read_descriptor(descriptor, path, out_file, fault);
    close(descriptor);
    return code;
}

void nbl_file_free(nbl_file *file)
{
    free(file->bytes);
    *file = (nbl_file){0};
}

bool nbl_file_line(const nbl_file *file, uint64_t *at, const char **out_text, uint64_t *out_bytes)
{
    if (*at >= file->size)
        return false;
    const char *text = (const char *)file->bytes + *at;
    const char *end = memchr(text, '\n', file->size - *at);
    *out_text = text;
    *out_bytes = end ? (uint64_t)(end - text) : file->size - *at;
    *at += *out_bytes + 1;
    return true;
}

static bool write_parts(FILE *stream, const nbl_part *parts, uint32_t count)
{
    bool written = true;
    for (uint32_t i = 0; i < count; i++)
        written = written && fwrite(parts[i].bytes, 1, parts[i].size, stream) == parts[i].size;
    return fclose(stream) == 0 && written;
}

/* Creates the temporary file beside path. Only a regular file may be replaced: a device, or a link such as /dev/stdout,
 * would be gone. */
static int open_temporary(const char *path, char temporary[TEMPORARY_BYTES], FILE **out_stream, nbl_fault *fault)
{
    struct stat status;
    if (lstat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--out: %.400s is %s", path,
                             S_ISDIR(status.st_mode) ? "a directory" : "no regular file");
    int length = snprintf(temporary, TEMPORARY_BYTES, "%s.tmp%ld", path, (long)getpid());
    if (length < 0 || length >= TEMPORARY_BYTES)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--out: path of %zu bytes is too long", strlen(path));
    *out_stream = fopen(temporary, "wbx");
    if (!*out_stream)
        return nbl_fault_set(fault, NBL_EXIT_FAILED, "--out: cannot create %.400s: %s", temporary, strerror(errno));
    return NBL_EXIT_OK;
}

int nbl_file_check_out(const char *path, nbl_fault *fault)
{
    char temporary[TEMPORARY_BYTES];
    FILE *stream = NULL;
    if (!path)
        return NBL_EXIT_OK;
    int code = open_temporary(path, temporary, &stream, fault);
    if (code != NBL_EXIT_OK)
        return code;
    fclose(stream);
    unlink(temporary);
    return NBL_EXIT_OK;
}

int nbl_file_write(const char *path, const nbl_part *parts, uint32_t count, nbl_fault *fault)
{
    char temporary[TEMPORARY_BYTES];
    FILE *stream = NULL;
    int code = open_temporary(path, temporary, &stream, fault);
    if (code != NBL_EXIT_OK)
        return code;
    if (write_parts(stream, parts, count) && rename(temporary, path) == 0)
        return NBL_EXIT_OK;
    int error = errno;
    unlink(temporary);
    return nbl_fault_set(fault, NBL_EXIT_FAILED, "--out: cannot write %.400s: %s", path, strerror(error));
}

uint32_t nbl_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case NBL_F32: return 4;
    case NBL_F16:
    case NBL_BF16: return 2;
    default: return 0;
    }
}

bool nbl_shape_bytes(const uint64_t *shape, uint32_t rank, uint32_t element_bytes, uint64_t *out_bytes)
{
    uint64_t bytes = element_bytes;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] != 0 && bytes > UINT64_MAX / shape[i])
            return false;
        bytes *= shape[i];
    }
    *out_bytes = bytes;
    return true;
}

static float bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu)
        return bits_to_f32(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return bits_to_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

void nbl_array_to_f32(const nbl_array *array, float *out_values)
{
    if (array->dtype == NBL_F32) {
        if (array->count > 0)
            memcpy(out_values, array->data, array->count * sizeof *out_values);
        return;
    }
    for (uint64_t i = 0; i < array->count; i++) {
        uint16_t half;
        memcpy(&half, array->data + i * sizeof half, sizeof half);
        out_values[i] = array->dtype == NBL_F16 ? f16_to_f32(half) : bits_to_f32((uint32_t)half << 16);
    }
}

void nbl_f32_to_bf16(const float *values, uint64_t count, uint16_t *out_values)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        out_values[i] = (uint16_t)(isnan(values[i]) ? (bits >> 16) | 0x40u : rounded >> 16);
    }
}
