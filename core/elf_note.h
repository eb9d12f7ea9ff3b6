/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file elf_note.h
 * @brief What can be known about a plugin file without running any of it.
 */
#ifndef NBL_ELF_NOTE_H
#define NBL_ELF_NOTE_H

#include "internal.h"

/** Reads the nibble note of an ELF file and checks that dlopen can map the file: ELF64, this machine's byte order and
 *  architecture, a shared object, every segment inside the file.
 *
 * @param file_bytes  size of the file
 * @param path        for messages
 * @retval NBL_E_BACKEND  the file is none of that, or has no note
 * @retval NBL_E_IO       it cannot be read
 */
nbl_status nbl_elf_note_read(int fd, uint64_t file_bytes, const char *path, nbl_note_payload *out_note, nbl_error *err);

/** Tells whether this runtime and this CPU can use a plugin with such a note.
 *
 * @retval NBL_E_ABI          ABI, numerics or layout versions do not meet
 * @retval NBL_E_UNSUPPORTED  the CPU lacks the instruction set level
 * @retval NBL_E_BACKEND      the note contradicts itself
 */
nbl_status nbl_elf_note_check(const nbl_note_payload *note, const char *path, nbl_error *err);

/** Tells whether ABI, numerics and layout versions of a plugin meet the runtime's: the test that note and negotiation
 *  share. The plugin speaks abi_major with minors from minor_min to minor.
 * @retval NBL_E_ABI
 */
nbl_status nbl_backend_versions_check(uint32_t abi_major, uint32_t minor_min, uint32_t minor, uint32_t numerics,
                                      uint32_t layout, const char *path, nbl_error *err);

#endif
