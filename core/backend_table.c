/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "loader.h"

/* Stands in for an optional slot that a backend has not. */
#define NBL_ABSENT(slot, args_type)                                                                 \
    static nbl_status slot##_absent(nbl_device *device, const args_type *args, nbl_error *err)      \
    {                                                                                               \
        (void)device;                                                                               \
        (void)args;                                                                                 \
        return nbl_fail(err, NBL_E_UNSUPPORTED, NBL_ORIGIN_LOADER, 0, "the backend has no " #slot); \
    }
NBL_ABSENT(append, nbl_append_args)
NBL_ABSENT(attend, nbl_attend_args)
NBL_ABSENT(gather, nbl_gather_args)
NBL_ABSENT(copy_pages, nbl_copy_pages_args)
NBL_ABSENT(transcode, nbl_transcode_args)
NBL_ABSENT(merge, nbl_merge_args)
NBL_ABSENT(append_coded, nbl_append_coded_args)

static nbl_status host_alloc_absent(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    (void)bytes;
    (void)out_memory;
    return nbl_fail(err, NBL_E_UNSUPPORTED, NBL_ORIGIN_LOADER, 0, "the backend has no host_alloc");
}

/* Never called: there is nothing to free without host_alloc. */
static void host_free_absent(nbl_device *device, void *memory)
{
    (void)device;
    (void)memory;
}

static const nbl_backend_v1 absent_slots = {
    .append = append_absent,
    .attend = attend_absent,
    .gather = gather_absent,
    .copy_pages = copy_pages_absent,
    .transcode = transcode_absent,
    .merge = merge_absent,
    .host_alloc = host_alloc_absent,
    .host_free = host_free_absent,
    .append_coded = append_coded_absent,
};

typedef void (*any_function)(void);

/* Every slot of nbl_backend_v1, in its order. */
static const struct slot {
    const char *name;
    size_t offset;
    int required;
} slots[] = {
#define NBL_REQUIRED(slot)                       \
    {                                            \
#slot, offsetof(nbl_backend_v1, slot), 1 \
    }
#define NBL_OPTIONAL(slot)                       \
    {                                            \
#slot, offsetof(nbl_backend_v1, slot), 0 \
    }
    NBL_REQUIRED(device_open),    NBL_REQUIRED(device_close), NBL_REQUIRED(caps),        NBL_REQUIRED(supports),
    NBL_REQUIRED(workspace_size), NBL_REQUIRED(memory_alloc), NBL_REQUIRED(memory_free), NBL_REQUIRED(memory_copy),
    NBL_REQUIRED(check),          NBL_OPTIONAL(append),       NBL_OPTIONAL(attend),      NBL_OPTIONAL(gather),
    NBL_OPTIONAL(copy_pages),     NBL_OPTIONAL(transcode),    NBL_OPTIONAL(merge),       NBL_OPTIONAL(host_alloc),
    NBL_OPTIONAL(host_free),      NBL_OPTIONAL(append_coded),
};
enum { SLOT_COUNT = sizeof slots / sizeof *slots };
_Static_assert(offsetof(nbl_backend_v1, device_open) + SLOT_COUNT * sizeof(any_function) == sizeof(nbl_backend_v1),
               "slots lists every slot");

/* The table as far as the backend knows it must reach past the last required slot. */
#define TABLE_BYTES_MIN (offsetof(nbl_backend_v1, check) + sizeof(any_function))

static nbl_status check_size(const nbl_backend_v1 *table, const char *path, nbl_error *err)
{
    if (table->struct_size < TABLE_BYTES_MIN || table->struct_size > NBL_STRUCT_BYTES_MAX)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_BACKEND, 0,
                        "%s: nbl_backend_v1.struct_size is %u, allowed are %zu to %u", path, table->struct_size,
                        TABLE_BYTES_MIN, NBL_STRUCT_BYTES_MAX);
    return NBL_OK;
}

static nbl_status check_strings(const nbl_backend_v1 *table, const char *name, const char *path, nbl_error *err)
{
    if (!table->name || !table->description)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0, "%s: nbl_backend_v1.%s is NULL", path,
                        table->name ? "description" : "name");
    if (strcmp(table->name, name) != 0)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0,
                        "%s calls itself \"%.40s\", its file is named for \"%s\"", path, table->name, name);
    return NBL_OK;
}

/* Fills one empty slot from absent_slots, or refuses. */
static nbl_status complete_slot(nbl_backend_v1 *table, const struct slot *slot, const char *path, nbl_error *err)
{
    any_function function;
    memcpy(&function, (const char *)table + slot->offset, sizeof function);
    if (function)
        return NBL_OK;
    if (slot->required)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0, "%s: required slot nbl_backend_v1.%s is NULL", path,
                        slot->name);
    memcpy((char *)table + slot->offset, (const char *)&absent_slots + slot->offset, sizeof function);
    return NBL_OK;
}

nbl_status nbl_backend_table_complete(nbl_backend_v1 *out_table, const nbl_backend_v1 *table, const char *name,
                                      const char *path, nbl_error *err)
{
    nbl_status status = check_size(table, path, err);
    if (status == NBL_OK)
        status = check_strings(table, name, path, err);
    if (status != NBL_OK)
        return status;
    memset(out_table, 0, sizeof *out_table);
    memcpy(out_table, table, table->struct_size < sizeof *out_table ? table->struct_size : sizeof *out_table);
    out_table->struct_size = (uint32_t)sizeof *out_table;
    for (size_t i = 0; status == NBL_OK && i < SLOT_COUNT; i++)
        status = complete_slot(out_table, &slots[i], path, err);
    return status;
}
