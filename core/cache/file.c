/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file file.c
 * @brief Files that are there whole or not at all: written beside their place, synced, then renamed.
 */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTIAL ".partial"

static nbl_status os_fail(const char *what, const char *path, nbl_error *err)
{
    const int code = errno;
    return nbl_fail(err, NBL_E_IO, NBL_ORIGIN_OS, code, "%s: cannot %s: %s", path, what, strerror(code));
}

/* ------------------------------------------------------------------------------------------------ bytes */

nbl_status nbl_medium_write(nbl_medium *m, const void *data, uint64_t bytes, nbl_error *err)
{
    const uint8_t *p = data;
    if (m->memory != NULL) {
        memcpy(m->memory + m->at, p, bytes);
        m->at += bytes;
        return NBL_OK;
    }
    while (bytes > 0) {
        const ssize_t written = write(m->fd, p, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return os_fail("write", m->path, err);
        p += written;
        m->at += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return NBL_OK;
}

nbl_status nbl_medium_read(nbl_medium *m, void *data, uint64_t bytes, nbl_error *err)
{
    uint8_t *p = data;
    if (bytes > m->bytes - m->at)
        return NBL_REFUSE(err, NBL_E_INVALID, "snapshot ends at byte %" PRIu64 ", in the middle of a part", m->bytes);
    if (m->memory != NULL) {
        memcpy(p, m->memory + m->at, bytes);
        m->at += bytes;
        return NBL_OK;
    }
    while (bytes > 0) {
        const ssize_t got = pread(m->fd, p, bytes, (off_t)m->at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return os_fail("read", m->path, err);
        if (got == 0)
            return NBL_REFUSE(err, NBL_E_IO, "%s: became shorter while it was read", m->path);
        p += got;
        m->at += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ writing */

static nbl_status partial_name(char name[PATH_MAX], const char *path, nbl_error *err)
{
    const int length = snprintf(name, PATH_MAX, "%s" PARTIAL, path);
    if (path[0] == '\0' || length < 0 || length >= PATH_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID, "path has %zu bytes (allowed: 1 to %zu)", strlen(path),
                          (size_t)PATH_MAX - sizeof PARTIAL);
    return NBL_OK;
}

/* One writer at a time: the lock goes with the process, and the file must still be the one of that name. */
static nbl_status partial_lock(int fd, const char *name, nbl_error *err)
{
    struct stat mine, there;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return os_fail("lock", name, err);
    if (fstat(fd, &mine) != 0 || stat(name, &there) != 0)
        return os_fail("stat", name, err);
    if (mine.st_dev != there.st_dev || mine.st_ino != there.st_ino || !S_ISREG(mine.st_mode))
        return NBL_REFUSE(err, NBL_E_IO, "%s: is being written by someone else", name);
    return ftruncate(fd, 0) == 0 ? NBL_OK : os_fail("truncate", name, err);
}

nbl_status nbl_file_begin(nbl_medium *m, const char *path, nbl_error *err)
{
    char name[PATH_MAX];
    struct stat there;
    NBL_TRY(nbl_pointer_check("path", path, 1, 1, err));
    NBL_TRY(partial_name(name, path, err));
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) /* a device would be replaced */
        return NBL_REFUSE(err, NBL_E_IO, "%s: is not a regular file", path);
    *m = (nbl_medium){.path = path};
    m->fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (m->fd < 0)
        return os_fail("create", name, err);
    const nbl_status status = partial_lock(m->fd, name, err);
    if (status != NBL_OK)
        close(m->fd);
    return status;
}

/* The rename itself must reach the disk. */
static nbl_status folder_sync(const char *path, nbl_error *err)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    memcpy(folder, path, length);
    folder[length] = '\0';
    const int fd = open(length > 0 ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return os_fail("open the folder of", path, err);
    /* Some file systems cannot sync folders and say EINVAL. */
    const bool good = fsync(fd) == 0 || errno == EINVAL;
    close(fd);
    return good ? NBL_OK : os_fail("sync the folder of", path, err);
}

nbl_status nbl_file_commit(nbl_medium *m, nbl_error *err)
{
    char name[PATH_MAX];
    nbl_status status = partial_name(name, m->path, err);
    if (status == NBL_OK && fsync(m->fd) != 0)
        status = os_fail("sync", name, err);
    if (status == NBL_OK && rename(name, m->path) != 0)
        status = os_fail("rename", name, err);
    if (status != NBL_OK) {
        nbl_file_abandon(m);
        return status;
    }
    close(m->fd);
    return folder_sync(m->path, err);
}

void nbl_file_abandon(nbl_medium *m)
{
    char name[PATH_MAX];
    if (partial_name(name, m->path, NULL) == NBL_OK)
        unlink(name); /* still ours: we hold the lock */
    close(m->fd);
}

/* ------------------------------------------------------------------------------------------------ reading */

nbl_status nbl_file_open(nbl_medium *m, const char *path, nbl_error *err)
{
    struct stat info;
    NBL_TRY(nbl_pointer_check("path", path, 1, 1, err));
    *m = (nbl_medium){.path = path};
    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (m->fd < 0)
        return os_fail("open", path, err);
    if (fstat(m->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(m->fd);
        return NBL_REFUSE(err, NBL_E_IO, "%s: is not a regular file", path);
    }
    m->bytes = (uint64_t)info.st_size;
    return NBL_OK;
}

void nbl_file_close(nbl_medium *m)
{
    close(m->fd);
}
