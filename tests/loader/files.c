/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are refused before any of their code runs: made from the good mock by cutting and patching. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

TestSuite(files, .init = clean_env, .timeout = 60);

/* Writes bytes as the backend "mock" and expects a refusal whose text has one %s, the path. */
static void expect_bytes_refused(const void *data, size_t count, nbl_status status, const char *text_before,
                                 const char *text_after)
{
    char *folder = make_folder();
    write_plugin(folder, "mock", data, count);
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, status, "%s%s%s", text_before, file_in(folder, "mock"), text_after);
    remove_folder(folder);
}

/* Changes one 16-bit number of the good mock. */
static void expect_patched_refused(size_t offset, uint16_t value, const char *text_after)
{
    file_bytes bytes = read_mock("good", "mock");
    memcpy(bytes.data + offset, &value, sizeof value);
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "", text_after);
    free(bytes.data);
}

static Elf64_Phdr segment_of(const file_bytes *bytes, uint32_t index)
{
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    memcpy(&header, bytes->data, sizeof header);
    memcpy(&segment, bytes->data + header.e_phoff + index * sizeof segment, sizeof segment);
    return segment;
}

Test(files, zero_bytes)
{
    expect_bytes_refused("", 0, NBL_E_BACKEND, "", " is empty (0 bytes)");
}

Test(files, text)
{
    static const char text[] = "#!/bin/sh\necho not a library\n";
    expect_bytes_refused(text, strlen(text), NBL_E_BACKEND, "", " is not an ELF file");
    expect_bytes_refused("\x7f"
                         "E",
                         2, NBL_E_BACKEND, "", " is not an ELF file");
}

Test(files, cut_inside_the_header)
{
    const file_bytes bytes = read_mock("good", "mock");
    expect_bytes_refused(bytes.data, 40, NBL_E_BACKEND, "",
                         ": truncated (the ELF header ends at 64, file has 40 bytes)");
    free(bytes.data);
}

Test(files, cut_inside_the_segment_table)
{
    const file_bytes bytes = read_mock("good", "mock");
    Elf64_Ehdr header;
    memcpy(&header, bytes.data, sizeof header);
    char text[128];
    (void)snprintf(text, sizeof text, ": truncated (the segment table ends at %zu, file has 100 bytes)",
                   (size_t)header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr));
    expect_bytes_refused(bytes.data, 100, NBL_E_BACKEND, "", text);
    free(bytes.data);
}

/* Every length at which some loadable segment is incomplete would be a SIGBUS inside dlopen. */
Test(files, cut_inside_any_segment)
{
    const file_bytes bytes = read_mock("good", "mock");
    Elf64_Ehdr header;
    memcpy(&header, bytes.data, sizeof header);
    uint32_t cuts = 0;
    for (uint32_t i = 0; i < header.e_phnum; i++) {
        const Elf64_Phdr segment = segment_of(&bytes, i);
        if (segment.p_type != PT_LOAD || segment.p_filesz == 0)
            continue;
        const size_t end = segment.p_offset + segment.p_filesz;
        char text[128];
        (void)snprintf(text, sizeof text, ": truncated (segment %u ends at %zu, file has %zu bytes)", i, end, end - 1);
        expect_bytes_refused(bytes.data, end - 1, NBL_E_BACKEND, "", text);
        cuts++;
    }
    cr_assert_geq(cuts, 2, "only %u segments were cut", cuts);
    free(bytes.data);
}

Test(files, segment_beyond_all_numbers)
{
    file_bytes bytes = read_mock("good", "mock");
    Elf64_Ehdr header;
    memcpy(&header, bytes.data, sizeof header);
    Elf64_Phdr segment = segment_of(&bytes, 0);
    cr_assert_eq(segment.p_type, (uint32_t)PT_LOAD, "the first segment is of type %u", segment.p_type);
    segment.p_offset = 16;
    segment.p_filesz = UINT64_MAX - 8;
    memcpy(bytes.data + header.e_phoff, &segment, sizeof segment);
    char text[128];
    (void)snprintf(text, sizeof text, ": truncated (segment 0 ends at 7, file has %zu bytes)", bytes.count);
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "", text);
    free(bytes.data);
}

/* What lies behind the segments is not mapped, but a file that lacks it was not copied whole. */
Test(files, cut_inside_the_section_table)
{
    const file_bytes bytes = read_mock("good", "mock");
    Elf64_Ehdr header;
    memcpy(&header, bytes.data, sizeof header);
    char text[128];
    (void)snprintf(text, sizeof text, ": truncated (the section table ends at %zu, file has %zu bytes)",
                   (size_t)header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr), bytes.count - 1);
    expect_bytes_refused(bytes.data, bytes.count - 1, NBL_E_BACKEND, "", text);
    free(bytes.data);
}

/* A copy into a file of the full size that stopped on the way: zeros from some byte on. */
Test(files, zeros_from_any_page_on)
{
    const file_bytes bytes = read_mock("good", "mock");
    unsigned char *copy = malloc(bytes.count);
    cr_assert_not_null(copy, "no memory");
    char *folder = make_folder();
    const nbl_load_options options = options_of("mock", folder);
    for (size_t whole = 512; whole + 64 < bytes.count; whole += 512) {
        nbl_runtime *runtime = NULL;
        nbl_error err = NBL_INIT(nbl_error);
        memcpy(copy, bytes.data, bytes.count);
        memset(copy + whole, 0, bytes.count - whole);
        write_plugin(folder, "mock", copy, bytes.count);
        cr_assert_eq(api()->load(&options, &runtime, NULL, &err), NBL_E_BACKEND, "%zu bytes: %s", whole, err.message);
        cr_assert_not_null(strstr(err.message, ": damaged ("), "%zu bytes: %s", whole, err.message);
    }
    expect_usable();
    remove_folder(folder);
    free(copy);
    free(bytes.data);
}

Test(files, section_table_of_another_kind)
{
    const file_bytes bytes = read_mock("good", "mock");
    Elf64_Ehdr header;
    char text[160];
    memcpy(&header, bytes.data, sizeof header);
    (void)snprintf(text, sizeof text, ": damaged (%u sections of 7 bytes, names in section %u)", header.e_shnum,
                   header.e_shstrndx);
    expect_patched_refused(offsetof(Elf64_Ehdr, e_shentsize), 7, text);
    (void)snprintf(text, sizeof text, ": damaged (%u sections of 64 bytes, names in section 9999)", header.e_shnum);
    expect_patched_refused(offsetof(Elf64_Ehdr, e_shstrndx), 9999, text);
    (void)snprintf(text, sizeof text, ": damaged (the section table at %zu is not one; was the file copied in part?)",
                   (size_t)header.e_shoff);
    expect_patched_refused(offsetof(Elf64_Ehdr, e_shstrndx), 1, text);
    free(bytes.data);
}

static uint32_t index_of_segment(const file_bytes *bytes, uint32_t type)
{
    Elf64_Ehdr header;
    memcpy(&header, bytes->data, sizeof header);
    uint32_t i = 0;
    while (i < header.e_phnum && segment_of(bytes, i).p_type != type)
        i++;
    cr_assert_lt(i, header.e_phnum, "no segment of type %u", type);
    return i;
}

static void put_segment(file_bytes *bytes, uint32_t index, const Elf64_Phdr *segment)
{
    Elf64_Ehdr header;
    memcpy(&header, bytes->data, sizeof header);
    memcpy(bytes->data + header.e_phoff + index * sizeof *segment, segment, sizeof *segment);
}

Test(files, segment_smaller_in_memory_than_in_the_file)
{
    file_bytes bytes = read_mock("good", "mock");
    Elf64_Phdr segment = segment_of(&bytes, 0);
    char text[160];
    segment.p_memsz = segment.p_filesz - 1;
    put_segment(&bytes, 0, &segment);
    (void)snprintf(text, sizeof text, ": damaged (segment 0 has %zu bytes in the file and %zu in memory, from 0x0)",
                   (size_t)segment.p_filesz, (size_t)segment.p_memsz);
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "", text);
    free(bytes.data);
}

/* The dynamic loader would follow the pointer and crash. */
Test(files, dynamic_entry_that_points_nowhere)
{
    file_bytes bytes = read_mock("good", "mock");
    const Elf64_Phdr segment = segment_of(&bytes, index_of_segment(&bytes, PT_DYNAMIC));
    Elf64_Dyn entry;
    size_t at = segment.p_offset;
    for (memcpy(&entry, bytes.data + at, sizeof entry); entry.d_tag != DT_SYMTAB;
         memcpy(&entry, bytes.data + at, sizeof entry))
        at += sizeof entry;
    entry.d_un.d_ptr = 0x123456789abc;
    memcpy(bytes.data + at, &entry, sizeof entry);
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "",
                         ": damaged (dynamic entry 0x6 points to 0x123456789abc, outside every segment)");
    free(bytes.data);
}

Test(files, no_dynamic_section)
{
    file_bytes bytes = read_mock("good", "mock");
    const uint32_t index = index_of_segment(&bytes, PT_DYNAMIC);
    Elf64_Phdr segment = segment_of(&bytes, index);
    segment.p_filesz = segment.p_memsz = 16;
    put_segment(&bytes, index, &segment);
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "",
                         ": damaged (no dynamic section with strings, symbols and an end)");
    segment.p_type = PT_NULL;
    put_segment(&bytes, index, &segment);
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "",
                         ": damaged (no dynamic section with strings, symbols and an end)");
    free(bytes.data);
}

Test(files, other_machine)
{
    expect_patched_refused(offsetof(Elf64_Ehdr, e_machine), EM_AARCH64,
                           " is for machine aarch64 (183), this process is x86-64");
    expect_patched_refused(offsetof(Elf64_Ehdr, e_machine), 9999,
                           " is for machine unknown (9999), this process is x86-64");
}

Test(files, other_class_and_byte_order)
{
    expect_patched_refused(EI_CLASS, (ELFDATA2LSB << 8) | ELFCLASS32, " is a 32-bit file, this process is 64-bit");
    expect_patched_refused(EI_CLASS, (ELFDATA2MSB << 8) | ELFCLASS64,
                           " is a big-endian file, this process is little-endian");
}

Test(files, program_instead_of_library)
{
    expect_patched_refused(offsetof(Elf64_Ehdr, e_type), ET_EXEC, " is not a shared object (ELF type 2, needs 3)");
}

Test(files, damaged_segment_count)
{
    expect_patched_refused(offsetof(Elf64_Ehdr, e_phnum), 0, ": damaged (0 segments of 56 bytes)");
    expect_patched_refused(offsetof(Elf64_Ehdr, e_phnum), 60000, ": damaged (60000 segments of 56 bytes)");
}

/* ------------------------------------------------------------------------------------------------ note */

/* The payload of the note in the bytes. */
static unsigned char *find_payload(const file_bytes *bytes)
{
    static const uint32_t magic = NBL_NOTE_MAGIC;
    unsigned char *found = memmem(bytes->data, bytes->count, &magic, sizeof magic);
    cr_assert_not_null(found, "the mock has no note");
    return found;
}

static void expect_note_refused(size_t offset, uint32_t value, nbl_status status, const char *text_before,
                                const char *text_after)
{
    file_bytes bytes = read_mock("good", "mock");
    memcpy(find_payload(&bytes) + offset, &value, sizeof value);
    expect_bytes_refused(bytes.data, bytes.count, status, text_before, text_after);
    free(bytes.data);
}

Test(files, note_of_another_magic_or_version)
{
    expect_note_refused(offsetof(nbl_note_payload, magic), 7, NBL_E_BACKEND, "",
                        ": its nibble note has magic 0x00000007 version 1, needs 0x314c424e version 1");
    expect_note_refused(offsetof(nbl_note_payload, note_version), 2, NBL_E_BACKEND, "",
                        ": its nibble note has magic 0x314c424e version 2, needs 0x314c424e version 1");
}

Test(files, note_asks_for_unknown_instructions)
{
    expect_note_refused(offsetof(nbl_note_payload, isa_level), 77, NBL_E_BACKEND, "",
                        ": its note asks for instruction set level 77, which is not known");
}

Test(files, note_asks_for_instructions_this_cpu_lacks)
{
    const char *has = __builtin_cpu_supports("avx512vl") ? "x86-64-v4"
                      : __builtin_cpu_supports("avx2")   ? "x86-64-v3"
                                                         : "x86-64-v2";
    char text[64];
    (void)snprintf(text, sizeof text, " needs aarch64, this CPU has %s", has);
    expect_note_refused(offsetof(nbl_note_payload, isa_level), NBL_ISA_AARCH64, NBL_E_UNSUPPORTED, "", text);
}

/* A note that says it is longer than its segment, or shorter than ours, is none. */
Test(files, note_of_another_size_is_none)
{
    static const uint32_t sizes[] = {0xfffffff0u, 0x10000u, sizeof(nbl_note_payload) - 4u, 0u};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        file_bytes bytes = read_mock("good", "mock");
        unsigned char *head = find_payload(&bytes) - sizeof NBL_NOTE_OWNER - 1 - sizeof(Elf64_Nhdr);
        Elf64_Nhdr note;
        memcpy(&note, head, sizeof note);
        cr_assert(note.n_type == NBL_NOTE_TYPE && note.n_descsz == sizeof(nbl_note_payload), "the note is not there");
        note.n_descsz = sizes[i];
        memcpy(head, &note, sizeof note);
        expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "",
                             " has no nibble ABI note (not a nibble backend, or built without the SDK)");
        free(bytes.data);
    }
}

Test(files, note_of_another_owner_is_none)
{
    file_bytes bytes = read_mock("good", "mock");
    unsigned char *owner = find_payload(&bytes) - sizeof NBL_NOTE_OWNER - 1;
    cr_assert_eq(memcmp(owner, NBL_NOTE_OWNER, sizeof NBL_NOTE_OWNER), 0, "the owner is not where the test looks");
    owner[0] = 'N';
    expect_bytes_refused(bytes.data, bytes.count, NBL_E_BACKEND, "",
                         " has no nibble ABI note (not a nibble backend, or built without the SDK)");
    free(bytes.data);
}

/* ------------------------------------------------------------------------------------------------ no regular file */

Test(files, directory)
{
    char *folder = make_folder();
    cr_assert_eq(mkdir(file_in(folder, "mock"), 0700), 0, "mkdir");
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, NBL_E_BACKEND, "%s is a directory, not a regular file", file_in(folder, "mock"));
    remove_folder(folder);
}

Test(files, fifo_does_not_block)
{
    char *folder = make_folder();
    cr_assert_eq(mkfifo(file_in(folder, "mock"), 0600), 0, "mkfifo");
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, NBL_E_BACKEND, "%s is a FIFO or device, not a regular file", file_in(folder, "mock"));
    remove_folder(folder);
}

Test(files, link_to_nowhere)
{
    char *folder = make_folder();
    cr_assert_eq(symlink("/nowhere/at/all", file_in(folder, "mock")), 0, "symlink");
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, NBL_E_IO, "cannot open %s: No such file or directory", file_in(folder, "mock"));
    remove_folder(folder);
}

Test(files, link_is_the_same_instance)
{
    char *folder = make_folder();
    cr_assert_eq(symlink(PLUGINS "/good/libnibble-backend-mock.so.1", file_in(folder, "mock")), 0, "symlink");
    const nbl_load_options options = options_of("mock", folder);
    nbl_runtime *runtime = expect_load(&options);
    expect_usable();
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    remove_folder(folder);
}

Test(files, link_under_another_name)
{
    char *folder = make_folder();
    cr_assert_eq(symlink(PLUGINS "/good/libnibble-backend-mock.so.1", file_in(folder, "cuda")), 0, "symlink");
    const nbl_load_options options = options_of("cuda", folder);
    expect_refusal(&options, NBL_E_BACKEND, "%s calls itself \"mock\", its file is named for \"cuda\"",
                   file_in(folder, "cuda"));
    expect_refusal(&options, NBL_E_BACKEND, "%s is the backend \"mock\", not \"cuda\"", file_in(folder, "cuda"));
    remove_folder(folder);
}

/* ------------------------------------------------------------------------------------------------ places */

Test(files, directory_that_everyone_can_write)
{
    const file_bytes bytes = read_mock("good", "mock");
    char *folder = make_folder();
    write_plugin(folder, "mock", bytes.data, bytes.count);
    const nbl_load_options options = options_of("mock", folder);
    static const unsigned modes[] = {0777, 01777, 0702};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        cr_assert_eq(chmod(folder, modes[i]), 0, "chmod");
        expect_refusal(&options, NBL_E_BACKEND,
                       "%s is writable by everyone (mode %04o); backends are not loaded from there", folder, modes[i]);
    }
    cr_assert_eq(chmod(folder, 0755), 0, "chmod");
    nbl_runtime *runtime = expect_load(&options);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    remove_folder(folder);
    free(bytes.data);
}

Test(files, file_that_everyone_can_write)
{
    const file_bytes bytes = read_mock("good", "mock");
    char *folder = make_folder();
    write_plugin(folder, "mock", bytes.data, bytes.count);
    cr_assert_eq(chmod(file_in(folder, "mock"), 0666), 0, "chmod");
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, NBL_E_BACKEND,
                   "%s is writable by everyone (mode 0666); backends are not loaded from there",
                   file_in(folder, "mock"));
    remove_folder(folder);
    free(bytes.data);
}

Test(files, link_into_a_directory_that_everyone_can_write)
{
    const file_bytes bytes = read_mock("good", "mock");
    char *open_folder = make_folder();
    char *folder = make_folder();
    char target[2048];
    write_plugin(open_folder, "mock", bytes.data, bytes.count);
    (void)snprintf(target, sizeof target, "%s", file_in(open_folder, "mock"));
    cr_assert_eq(chmod(open_folder, 0777), 0, "chmod");
    cr_assert_eq(symlink(target, file_in(folder, "mock")), 0, "symlink");
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, NBL_E_BACKEND,
                   "%s is writable by everyone (mode 0777); backends are not loaded from there", open_folder);
    remove_folder(folder);
    remove_folder(open_folder);
    free(bytes.data);
}

/* A load after the file was exchanged on disk gets the file that is loaded. */
Test(files, replaced_file_stays_the_old_one)
{
    const file_bytes bytes = read_mock("good", "mock");
    char *folder = make_folder();
    write_plugin(folder, "mock", bytes.data, bytes.count);
    const nbl_load_options options = options_of("mock", folder);
    nbl_runtime *first = expect_load(&options);
    char aside[2100];
    (void)snprintf(aside, sizeof aside, "%s.old", file_in(folder, "mock"));
    cr_assert_eq(rename(file_in(folder, "mock"), aside), 0, "rename");
    write_plugin(folder, "mock", "junk", 4);

    nbl_runtime *second = NULL;
    nbl_report *report = NULL;
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    cr_assert_eq(api()->load(&options, &second, &report, NULL), NBL_OK, "load");
    cr_assert_eq(api()->report_get(report, 0, &attempt, NULL), NBL_OK, "report_get");
    cr_assert_str_eq(attempt.message,
                     "chosen by nbl_load_options.backend; the file was replaced on disk; the one loaded "
                     "earlier stays in use",
                     "the report says: %s", attempt.message);
    struct stat old;
    cr_assert_eq(stat(aside, &old), 0, "stat");
    cr_assert_eq(attempt.file_inode, old.st_ino, "the report names another inode");
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(first, NULL), NBL_OK, "runtime_destroy");
    cr_assert_eq(api()->runtime_destroy(second, NULL), NBL_OK, "runtime_destroy");
    remove_folder(folder);
    free(bytes.data);
}
