/* SPDX-License-Identifier: Apache-2.0 */
/** @file safetensors.h @brief Reader and writer of safetensors files; trusts no byte of the input. */
#ifndef NBL_CLI_SAFETENSORS_H
#define NBL_CLI_SAFETENSORS_H

#include "file.h"

#include <jansson.h>

#define NBL_SAFETENSORS_HEADER_BYTES_MAX 100000000u

/** A checked file. Borrows the bytes it was parsed from; owns the header. */
typedef struct nbl_safetensors {
    const char *name; /**< for messages */
    json_t *header;
    const uint8_t *data;
    uint64_t data_bytes;
} nbl_safetensors;

/** Checks header, names, types, shapes and offsets of every tensor; no tensor can reach outside the file afterwards.
 *  Faults are NBL_EXIT_INPUT and start with name. */
int nbl_safetensors_parse(const char *name, const uint8_t *bytes, uint64_t size, nbl_safetensors *out_file,
                          nbl_fault *fault);

/** Frees the header. */
void nbl_safetensors_free(nbl_safetensors *file);

/** Finds a tensor of type F32, F16 or BF16; missing, other type or rank over NBL_RANK_MAX is a fault. */
int nbl_safetensors_find(const nbl_safetensors *file, const char *tensor, nbl_array *out_array, nbl_fault *fault);

/** A metadata string, or NULL. */
const char *nbl_safetensors_metadata(const nbl_safetensors *file, const char *key);

#define NBL_SAFETENSORS_WRITE_MAX 4u

/** Writes up to NBL_SAFETENSORS_WRITE_MAX named arrays of f32. */
int nbl_safetensors_write(const char *path, const char *const *names, const nbl_array *arrays, uint32_t count,
                          nbl_fault *fault);

#endif
