/* SPDX-License-Identifier: Apache-2.0 */
#include "file_trust.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env.h"

/* What one file or directory of the path must not be. */
static nbl_status check_node(const char *path, const struct stat *node, int secure, nbl_error *err)
{
    const unsigned mode = node->st_mode & 07777u;
    if (node->st_mode & S_IWOTH)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s is writable by everyone (mode %04o); backends are not loaded from there", path, mode);
    if (secure && (node->st_mode & S_IWGRP))
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s is writable by its group (mode %04o) and this process runs with raised privileges", path,
                        mode);
    if (secure && node->st_uid != 0 && node->st_uid != geteuid())
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s belongs to user %u and this process runs with raised privileges", path,
                        (unsigned)node->st_uid);
    return NBL_OK;
}

static nbl_status check_path(const char *path, int secure, nbl_error *err)
{
    struct stat node;
    if (stat(path, &node) != 0)
        return nbl_fail(err, NBL_E_IO, NBL_ORIGIN_OS, errno, "cannot look at %s: error %d", path, errno);
    return check_node(path, &node, secure, err);
}

/* The directory of path, and with secure every one above it. */
static nbl_status check_parents(const char *path, int secure, nbl_error *err)
{
    char *parent = strdup(path);
    if (!parent)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for a path");
    nbl_status status = NBL_OK;
    char *slash = strrchr(parent, '/');
    do {
        slash[slash == parent] = '\0';
        status = check_path(parent, secure, err);
        slash = strrchr(parent, '/');
    } while (status == NBL_OK && secure && parent[1] != '\0');
    free(parent);
    return status;
}

nbl_status nbl_file_trust(const char *path, const struct stat *file, nbl_error *err)
{
    const int secure = nbl_env_is_secure();
    nbl_status status = check_parents(path, secure, err);
    if (status != NBL_OK)
        return status;
    char *real = realpath(path, NULL);
    if (!real)
        return nbl_fail(err, NBL_E_IO, NBL_ORIGIN_OS, errno, "cannot resolve %s: error %d", path, errno);
    if (strcmp(real, path) != 0)
        status = check_parents(real, secure, err);
    if (status == NBL_OK)
        status = check_node(real, file, secure, err);
    free(real);
    return status;
}
