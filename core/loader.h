/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file loader.h
 * @brief From a file to a backend table that every slot of can be called.
 */
#ifndef NBL_LOADER_H
#define NBL_LOADER_H

#include <sys/types.h>

#include "internal.h"
#include "report.h"

/** A loaded backend file; lives as long as the process. */
typedef struct nbl_instance {
    struct nbl_instance *next;
    nbl_backend_v1 table; /**< complete: absent slots answer NBL_E_UNSUPPORTED */
    char *path;
    dev_t file_device;
    ino_t file_inode;
    _Atomic int32_t device_pid; /**< process that first tried to open a device, 0 before */
} nbl_instance;

/** Loads a backend file, or returns the instance it was loaded as before. Nothing in the file runs before it has been
 *  checked. The caller holds NBL_LOCK_LOADER. CPU affinity, floating-point control and errno are the same after as
 *  before.
 *
 * @param name     NAME of the file
 * @param attempt  gets path, phase, file numbers, versions and description as far as they become known
 * @retval NBL_OK
 * @retval NBL_E_BACKEND      damaged, foreign, in an unsafe place, or misbehaving
 * @retval NBL_E_ABI          versions do not meet, or the table is too short
 * @retval NBL_E_UNSUPPORTED  the CPU is too old, or the plugin says it cannot work here
 * @retval NBL_E_IO           the file cannot be opened or read
 * @retval NBL_E_NO_MEMORY
 */
nbl_status nbl_instance_load(const char *name, const char *path, nbl_instance **out_instance, nbl_attempt *attempt,
                             nbl_error *err);

/** Completes a plugin's table: checks it and copies it into one whose every slot can be called.
 * @retval NBL_E_ABI      struct_size is too short or beyond belief
 * @retval NBL_E_BACKEND  a required slot, the name or the description is missing or wrong
 */
nbl_status nbl_backend_table_complete(nbl_backend_v1 *out_table, const nbl_backend_v1 *table, const char *name,
                                      const char *path, nbl_error *err);

#endif
