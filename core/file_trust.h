/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file file_trust.h
 * @brief Whether somebody else could have put a file where it is.
 */
#ifndef NBL_FILE_TRUST_H
#define NBL_FILE_TRUST_H

#include <sys/stat.h>

#include "internal.h"

/** Refuses a file that everyone can write, or whose directory everyone can write, before and after symbolic links are
 *  resolved. With raised privileges file and all directories above it must belong to root or the effective user and be
 *  writable by the owner alone.
 *
 * @param path  absolute
 * @param file  of the opened file
 * @retval NBL_E_BACKEND  not to be trusted; err names the file or directory and its mode or owner
 * @retval NBL_E_IO       it cannot be looked at
 */
nbl_status nbl_file_trust(const char *path, const struct stat *file, nbl_error *err);

#endif
