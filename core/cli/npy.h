/* SPDX-License-Identifier: Apache-2.0 */
/** @file npy.h @brief Reader and writer of .npy files (versions 1 to 3, little-endian f4 and f2, C order). */
#ifndef NBL_CLI_NPY_H
#define NBL_CLI_NPY_H

#include "file.h"

/** Checks the header, and that the data have the size it announces. Faults are NBL_EXIT_INPUT and start with name. */
int nbl_npy_parse(const char *name, const uint8_t *bytes, uint64_t size, nbl_array *out_array, nbl_fault *fault);

/** Writes a packed array of f32. */
int nbl_npy_write(const char *path, const nbl_array *array, nbl_fault *fault);

#endif
