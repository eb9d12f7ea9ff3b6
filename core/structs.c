/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "internal.h"

/* What every argument struct starts with. */
typedef struct header {
    NBL_HEADER;
} header;

/* Version 1.0 knows no extension, so every node is unknown: skipped, or refused if required. */
static nbl_status check_extensions(const nbl_ext *node, const char *type_name, nbl_error *err)
{
    for (uint32_t count = 0; node; node = node->next, count++) {
        if (count == NBL_EXT_CHAIN_MAX)
            return nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0,
                            "%s: more than %u extensions, or a chain that never ends", type_name, NBL_EXT_CHAIN_MAX);
        if (node->struct_size < NBL_V1_BYTES(nbl_ext))
            return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_HOST, 0,
                            "%s: extension %u has struct_size %u, needs at least %u", type_name, count,
                            node->struct_size, NBL_V1_BYTES(nbl_ext));
        if (node->flags & NBL_EXT_REQUIRED)
            return nbl_fail(err, NBL_E_UNKNOWN_FIELD, NBL_ORIGIN_HOST, 0,
                            "%s: extension type %u is marked required but not known", type_name, node->type);
    }
    return NBL_OK;
}

static nbl_status check_header(const header *src, uint32_t min_bytes, const char *type_name, nbl_error *err)
{
    if (!src)
        return nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0, "%s is NULL", type_name);
    if (src->struct_size < min_bytes || src->struct_size > NBL_STRUCT_BYTES_MAX)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_HOST, 0, "%s.struct_size is %u, allowed are %u to %u", type_name,
                        src->struct_size, min_bytes, NBL_STRUCT_BYTES_MAX);
    return check_extensions(src->next, type_name, err);
}

nbl_status nbl_tail_check(const void *src, uint32_t src_bytes, uint32_t known_bytes, const char *type_name,
                          nbl_error *err)
{
    const unsigned char *bytes = src;
    for (uint32_t i = known_bytes; i < src_bytes; i++)
        if (bytes[i] != 0)
            return nbl_fail(err, NBL_E_UNKNOWN_FIELD, NBL_ORIGIN_HOST, 0,
                            "%s has %u bytes, of which %u are known; byte %u is not zero", type_name, src_bytes,
                            known_bytes, i);
    return NBL_OK;
}

nbl_status nbl_struct_in(void *dst, uint32_t dst_bytes, uint32_t min_bytes, const void *src, const char *type_name,
                         nbl_error *err)
{
    nbl_status status = check_header(src, min_bytes, type_name, err);
    if (status != NBL_OK)
        return status;
    const uint32_t src_bytes = ((const header *)src)->struct_size;
    status = nbl_tail_check(src, src_bytes, dst_bytes, type_name, err);
    if (status != NBL_OK)
        return status;
    memset(dst, 0, dst_bytes);
    memcpy(dst, src, src_bytes < dst_bytes ? src_bytes : dst_bytes);
    ((header *)dst)->struct_size = dst_bytes;
    ((header *)dst)->next = NULL;
    return NBL_OK;
}

nbl_status nbl_struct_out_check(const void *dst, uint32_t min_bytes, const char *type_name, nbl_error *err)
{
    return check_header(dst, min_bytes, type_name, err);
}

void nbl_struct_out(void *dst, const void *src, uint32_t src_bytes)
{
    header *head = dst;
    const uint32_t bytes = head->struct_size < src_bytes ? head->struct_size : src_bytes;
    memcpy((char *)dst + sizeof(header), (const char *)src + sizeof(header), bytes - sizeof(header));
    head->struct_size = src_bytes;
}

nbl_status nbl_flags_check(uint32_t flags, uint32_t allowed, const char *type_name, nbl_error *err)
{
    if (flags & ~allowed)
        return nbl_fail(err, NBL_E_UNKNOWN_FIELD, NBL_ORIGIN_HOST, 0,
                        "%s.flags has unknown bits 0x%x, allowed are 0x%x", type_name, flags & ~allowed, allowed);
    return NBL_OK;
}
