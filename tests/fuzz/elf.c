/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a plugin file: the probe that the loader makes before it opens one. */
#include "fuzz.h"

#include <elf_note.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file, in memory; one for all inputs. */
static int open_file(void)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("plugin", MFD_CLOEXEC);
    FUZZ_REQUIRE(fd >= 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = open_file();
    FUZZ_REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    nbl_note_payload note;
    nbl_error err = NBL_INIT(nbl_error);
    memset(&note, 0x5a, sizeof note);
    nbl_status status = nbl_elf_note_read(fd, size, "FILE", &note, &err);
    if (status == NBL_OK)
        status = nbl_elf_note_check(&note, "FILE", &err);
    if (status == NBL_OK) {
        FUZZ_REQUIRE(note.magic == NBL_NOTE_MAGIC && note.numerics_version == NBL_NUMERICS_VERSION);
        return 0;
    }
    FUZZ_REQUIRE(status == NBL_E_BACKEND || status == NBL_E_ABI || status == NBL_E_UNSUPPORTED);
    FUZZ_REQUIRE(err.status == status && strncmp(err.message, "nibble: FILE", strlen("nibble: FILE")) == 0);
    FUZZ_REQUIRE(strpbrk(err.message, "\n\r") == NULL);
    return 0;
}
