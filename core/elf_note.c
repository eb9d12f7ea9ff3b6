/* SPDX-License-Identifier: Apache-2.0 */
#include "elf_note.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Real files are far below these. */
enum { NOTE_SEGMENT_BYTES_MAX = 65536, SEGMENTS_MAX = 512, DYNAMIC_ENTRIES_MAX = 1024 };

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64 };
#else
#error "nibble runs on x86-64 and aarch64"
#endif

typedef struct elf_file {
    int fd;
    uint64_t bytes;
    const char *path;
    nbl_error *err;
} elf_file;

static const char *machine_name(uint32_t machine)
{
    switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "aarch64";
    case EM_386: return "x86";
    case EM_ARM: return "arm";
    case EM_PPC64: return "ppc64";
    case EM_S390: return "s390x";
    case EM_RISCV: return "riscv";
    default: return "unknown";
    }
}

static nbl_status read_exactly(const elf_file *file, void *dst, uint64_t bytes, uint64_t offset)
{
    uint64_t done = 0;
    while (done < bytes) {
        const ssize_t n = pread(file->fd, (char *)dst + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return nbl_fail(file->err, NBL_E_IO, NBL_ORIGIN_OS, n < 0 ? errno : 0, "%s: cannot read %llu bytes at %llu",
                            file->path, (unsigned long long)bytes, (unsigned long long)offset);
        done += (uint64_t)n;
    }
    return NBL_OK;
}

static nbl_status read_header(const elf_file *file, Elf64_Ehdr *out)
{
    unsigned char magic[SELFMAG] = {0};
    if (file->bytes == 0)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s is empty (0 bytes)", file->path);
    const uint64_t magic_bytes = file->bytes < SELFMAG ? file->bytes : SELFMAG;
    nbl_status status = read_exactly(file, magic, magic_bytes, 0);
    if (status != NBL_OK)
        return status;
    if (memcmp(magic, ELFMAG, SELFMAG) != 0)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s is not an ELF file", file->path);
    if (file->bytes < sizeof *out)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: truncated (the ELF header ends at %zu, file has %llu bytes)", file->path, sizeof *out,
                        (unsigned long long)file->bytes);
    return read_exactly(file, out, sizeof *out, 0);
}

static nbl_status check_header(const elf_file *file, const Elf64_Ehdr *header)
{
    if (header->e_ident[EI_CLASS] != ELFCLASS64)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s is a 32-bit file, this process is 64-bit",
                        file->path);
    if (header->e_ident[EI_DATA] != ELFDATA2LSB)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s is a big-endian file, this process is little-endian", file->path);
    if (header->e_machine != MACHINE)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s is for machine %s (%u), this process is %s",
                        file->path, machine_name(header->e_machine), header->e_machine, machine_name(MACHINE));
    if (header->e_type != ET_DYN)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s is not a shared object (ELF type %u, needs %u)", file->path, header->e_type, ET_DYN);
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0 || header->e_phnum > SEGMENTS_MAX)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s: damaged (%u segments of %u bytes)",
                        file->path, header->e_phnum, header->e_phentsize);
    const uint64_t table_bytes = (uint64_t)header->e_phnum * sizeof(Elf64_Phdr);
    if (header->e_phoff > file->bytes || table_bytes > file->bytes - header->e_phoff)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: truncated (the segment table ends at %llu, file has %llu bytes)", file->path,
                        (unsigned long long)(header->e_phoff + table_bytes), (unsigned long long)file->bytes);
    return NBL_OK;
}

/* A mapped page past the end of the file would raise SIGBUS inside dlopen. */
static nbl_status check_segment(const elf_file *file, const Elf64_Phdr *segment, uint32_t index)
{
    if (segment->p_offset > file->bytes || segment->p_filesz > file->bytes - segment->p_offset)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: truncated (segment %u ends at %llu, file has %llu bytes)", file->path, index,
                        (unsigned long long)(segment->p_offset + segment->p_filesz), (unsigned long long)file->bytes);
    if (segment->p_memsz < segment->p_filesz || segment->p_vaddr > UINT64_MAX - segment->p_memsz)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: damaged (segment %u has %llu bytes in the file and %llu in memory, from 0x%llx)",
                        file->path, index, (unsigned long long)segment->p_filesz, (unsigned long long)segment->p_memsz,
                        (unsigned long long)segment->p_vaddr);
    return NBL_OK;
}

/* Linkers put the section table last: where a copy stopped early, it is cut off, or full of zeros. */
static nbl_status check_sections(const elf_file *file, const Elf64_Ehdr *header)
{
    if (header->e_shoff == 0)
        return NBL_OK;
    const uint64_t table_bytes = (uint64_t)header->e_shnum * sizeof(Elf64_Shdr);
    if (header->e_shoff > file->bytes || table_bytes > file->bytes - header->e_shoff)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: truncated (the section table ends at %llu, file has %llu bytes)", file->path,
                        (unsigned long long)(header->e_shoff + table_bytes), (unsigned long long)file->bytes);
    if (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shstrndx >= header->e_shnum)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: damaged (%u sections of %u bytes, names in section %u)", file->path, header->e_shnum,
                        header->e_shentsize, header->e_shstrndx);
    Elf64_Shdr names;
    const nbl_status status =
        read_exactly(file, &names, sizeof names, header->e_shoff + header->e_shstrndx * sizeof names);
    if (status == NBL_OK && names.sh_type != SHT_STRTAB)
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: damaged (the section table at %llu is not one; was the file copied in part?)", file->path,
                        (unsigned long long)header->e_shoff);
    return status;
}

/* ------------------------------------------------------------------------------------------------ dynamic section */

/* Tells whether an address lies in memory that a segment of the file fills. */
static int is_mapped(const Elf64_Phdr *segments, uint32_t count, uint64_t address)
{
    for (uint32_t i = 0; i < count; i++)
        if (segments[i].p_type == PT_LOAD && address >= segments[i].p_vaddr &&
            address - segments[i].p_vaddr < segments[i].p_memsz)
            return 1;
    return 0;
}

/* Tags whose value the dynamic loader follows without a check of its own. */
static int is_address(int64_t tag)
{
    switch (tag) {
    case DT_STRTAB:
    case DT_SYMTAB:
    case DT_HASH:
    case DT_GNU_HASH:
    case DT_RELA:
    case DT_JMPREL:
    case DT_PLTGOT:
    case DT_INIT:
    case DT_FINI:
    case DT_INIT_ARRAY:
    case DT_FINI_ARRAY:
    case DT_VERSYM:
    case DT_VERDEF:
    case DT_VERNEED: return 1;
    default: return 0;
    }
}

static nbl_status check_entry(const elf_file *file, const Elf64_Phdr *segments, uint32_t count, const Elf64_Dyn *entry)
{
    if (is_address(entry->d_tag) && !is_mapped(segments, count, entry->d_un.d_ptr))
        return nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: damaged (dynamic entry 0x%llx points to 0x%llx, outside every segment)", file->path,
                        (unsigned long long)entry->d_tag, (unsigned long long)entry->d_un.d_ptr);
    return NBL_OK;
}

/* dlopen follows the dynamic section blindly; without strings or symbols it would crash. */
static nbl_status check_dynamic(const elf_file *file, const Elf64_Phdr *segments, uint32_t count)
{
    const Elf64_Phdr *dynamic = NULL;
    for (uint32_t i = 0; i < count && !dynamic; i++)
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = &segments[i];
    const uint64_t entries = dynamic ? dynamic->p_filesz / sizeof(Elf64_Dyn) : 0;
    int strings = 0, symbols = 0, ends = 0;
    nbl_status status = NBL_OK;
    for (uint64_t i = 0; status == NBL_OK && i < entries && i < DYNAMIC_ENTRIES_MAX && !ends; i++) {
        Elf64_Dyn entry;
        status = read_exactly(file, &entry, sizeof entry, dynamic->p_offset + i * sizeof entry);
        if (status == NBL_OK)
            status = check_entry(file, segments, count, &entry);
        strings |= entry.d_tag == DT_STRTAB;
        symbols |= entry.d_tag == DT_SYMTAB;
        ends = entry.d_tag == DT_NULL;
    }
    if (status == NBL_OK && !(strings && symbols && ends && is_mapped(segments, count, dynamic->p_vaddr)))
        status = nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                          "%s: damaged (no dynamic section with strings, symbols and an end)", file->path);
    return status;
}

/* ------------------------------------------------------------------------------------------------ note */

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

/* Looks for our note in the bytes of one PT_NOTE segment. */
static int find_note(const unsigned char *bytes, uint64_t count, uint64_t step, nbl_note_payload *out_note)
{
    for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= count;) {
        Elf64_Nhdr head;
        memcpy(&head, bytes + at, sizeof head);
        const uint64_t name = at + sizeof head;
        const uint64_t payload = round_up(name + head.n_namesz, step);
        if (payload > count || head.n_descsz > count - payload)
            return 0;
        if (head.n_type == NBL_NOTE_TYPE && head.n_namesz == sizeof NBL_NOTE_OWNER &&
            memcmp(bytes + name, NBL_NOTE_OWNER, sizeof NBL_NOTE_OWNER) == 0 && head.n_descsz >= sizeof *out_note) {
            memcpy(out_note, bytes + payload, sizeof *out_note);
            return 1;
        }
        at = round_up(payload + head.n_descsz, step);
    }
    return 0;
}

static nbl_status search_segment(const elf_file *file, const Elf64_Phdr *segment, nbl_note_payload *out_note,
                                 int *found)
{
    unsigned char bytes[4096];
    if (segment->p_filesz > NOTE_SEGMENT_BYTES_MAX)
        return NBL_OK;
    const uint64_t count = segment->p_filesz < sizeof bytes ? segment->p_filesz : sizeof bytes;
    const nbl_status status = read_exactly(file, bytes, count, segment->p_offset);
    if (status == NBL_OK)
        *found = find_note(bytes, count, segment->p_align == 8 ? 8 : 4, out_note);
    return status;
}

/* What dlopen would map and follow lies inside the file, and one of the segments holds the note. */
static nbl_status check_segments(const elf_file *file, const Elf64_Ehdr *header, const Elf64_Phdr *segments,
                                 nbl_note_payload *out_note)
{
    int found = 0;
    nbl_status status = NBL_OK;
    for (uint32_t i = 0; status == NBL_OK && i < header->e_phnum; i++) {
        const uint32_t type = segments[i].p_type;
        if (type == PT_LOAD || type == PT_NOTE || type == PT_DYNAMIC)
            status = check_segment(file, &segments[i], i);
    }
    if (status == NBL_OK)
        status = check_sections(file, header);
    if (status == NBL_OK)
        status = check_dynamic(file, segments, header->e_phnum);
    for (uint32_t i = 0; status == NBL_OK && i < header->e_phnum && !found; i++)
        if (segments[i].p_type == PT_NOTE)
            status = search_segment(file, &segments[i], out_note, &found);
    if (status == NBL_OK && !found)
        status = nbl_fail(file->err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                          "%s has no nibble ABI note (not a nibble backend, or built without the SDK)", file->path);
    return status;
}

nbl_status nbl_elf_note_read(int fd, uint64_t file_bytes, const char *path, nbl_note_payload *out_note, nbl_error *err)
{
    const elf_file file = {fd, file_bytes, path, err};
    Elf64_Ehdr header;
    nbl_status status = read_header(&file, &header);
    if (status == NBL_OK)
        status = check_header(&file, &header);
    if (status != NBL_OK)
        return status;
    Elf64_Phdr *segments = calloc(header.e_phnum, sizeof *segments);
    if (!segments)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for the segments of %s", path);
    status = read_exactly(&file, segments, header.e_phnum * sizeof *segments, header.e_phoff);
    if (status == NBL_OK)
        status = check_segments(&file, &header, segments, out_note);
    free(segments);
    return status;
}

/* ------------------------------------------------------------------------------------------------ acceptance */

#if defined(__x86_64__)
/* Highest level whose instructions this CPU and its operating system offer; one that only the compiler's list knows
 * (lahf, movbe and the like) comes with the others on every CPU made. */
static uint32_t cpu_level(void)
{
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("sse3") && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
          __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")))
        return NBL_ISA_X86_64;
    if (!(__builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
          __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma")))
        return NBL_ISA_X86_64_V2;
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl")))
        return NBL_ISA_X86_64_V3;
    return NBL_ISA_X86_64_V4;
}
#else
static uint32_t cpu_level(void)
{
    return NBL_ISA_AARCH64;
}
#endif

static const char *isa_name(uint32_t level)
{
    switch (level) {
    case NBL_ISA_X86_64: return "x86-64";
    case NBL_ISA_X86_64_V2: return "x86-64-v2";
    case NBL_ISA_X86_64_V3: return "x86-64-v3";
    case NBL_ISA_X86_64_V4: return "x86-64-v4";
    case NBL_ISA_AARCH64: return "aarch64";
    default: return NULL;
    }
}

static nbl_status check_isa(uint32_t level, const char *path, nbl_error *err)
{
    if (!isa_name(level))
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: its note asks for instruction set level %u, which is not known", path, level);
    const uint32_t have = cpu_level();
    if ((level >= NBL_ISA_AARCH64) != (have >= NBL_ISA_AARCH64) || level > have)
        return nbl_fail(err, NBL_E_UNSUPPORTED, NBL_ORIGIN_LOADER, 0, "%s needs %s, this CPU has %s", path,
                        isa_name(level), isa_name(have));
    return NBL_OK;
}

nbl_status nbl_backend_versions_check(uint32_t abi_major, uint32_t minor_min, uint32_t minor, uint32_t numerics,
                                      uint32_t layout, const char *path, nbl_error *err)
{
    /* minor - MIN wraps below MIN, which a comparison with a MIN of 0 could not say without a warning. */
    const int too_old = (int64_t)minor - (int64_t)NBL_BACKEND_ABI_MINOR_MIN < 0;
    if (abi_major != NBL_BACKEND_ABI_MAJOR || minor_min > NBL_BACKEND_ABI_MINOR || too_old)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_LOADER, 0,
                        "%s speaks backend ABI %u.%u to %u.%u, this runtime speaks %u.%u to %u.%u; "
                        "update libnibble or the backend",
                        path, abi_major, minor_min, abi_major, minor, NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR_MIN,
                        NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR);
    if (numerics != NBL_NUMERICS_VERSION)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_LOADER, 0,
                        "%s implements numerics %u, runtime needs %u (results would differ)", path, numerics,
                        NBL_NUMERICS_VERSION);
    if (layout != NBL_LAYOUT_VERSION)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_LOADER, 0,
                        "%s implements page layout %u, runtime needs %u (pages would be misread)", path, layout,
                        NBL_LAYOUT_VERSION);
    return NBL_OK;
}

nbl_status nbl_elf_note_check(const nbl_note_payload *note, const char *path, nbl_error *err)
{
    if (note->magic != NBL_NOTE_MAGIC || note->note_version != 1)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: its nibble note has magic 0x%08x version %u, needs 0x%08x version 1", path, note->magic,
                        note->note_version, NBL_NOTE_MAGIC);
    const nbl_status status = nbl_backend_versions_check(note->abi_major, note->abi_minor_min, note->abi_minor,
                                                         note->numerics_version, note->layout_version, path, err);
    return status == NBL_OK ? check_isa(note->isa_level, path, err) : status;
}
