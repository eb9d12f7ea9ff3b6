/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf_note.h"
#include "file_trust.h"
#include "host_state.h"
#include "lock.h"
#include "log.h"

static nbl_instance *instances;

/* ------------------------------------------------------------------------------------------------ host table */

static void *host_alloc(uint64_t bytes, uint64_t alignment)
{
    void *memory = NULL;
    return posix_memalign(&memory, (size_t)alignment, (size_t)bytes) == 0 ? memory : NULL;
}

static nbl_status host_fail(nbl_error *err, nbl_status status, uint32_t origin, int32_t native, const char *message)
{
    return nbl_fail(err, status, origin, native, "%s", message ? message : "(no text)");
}

static const nbl_host host = {
    .struct_size = (uint32_t)sizeof(nbl_host),
    .log = nbl_log_plugin,
    .alloc = host_alloc,
    .free = free,
    .fail = host_fail,
};

/* ------------------------------------------------------------------------------------------------ probing */

/* Opens without waiting for a writer, should the file be a FIFO. */
static nbl_status open_file(const char *path, int *out_fd, struct stat *out_stat, nbl_error *err)
{
    char text[128];
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, out_stat) != 0) {
        const int error = errno;
        if (fd >= 0)
            (void)close(fd);
        return nbl_fail(err, NBL_E_IO, NBL_ORIGIN_OS, error, "cannot open %s: %s", path,
                        strerror_r(error, text, sizeof text));
    }
    if (!S_ISREG(out_stat->st_mode)) {
        (void)close(fd);
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s is %s, not a regular file", path,
                        S_ISDIR(out_stat->st_mode) ? "a directory" : "a FIFO or device");
    }
    *out_fd = fd;
    return NBL_OK;
}

static nbl_instance *find_instance(const char *path, const struct stat *file)
{
    for (nbl_instance *i = instances; i; i = i->next)
        if ((i->file_device == file->st_dev && i->file_inode == file->st_ino) || strcmp(i->path, path) == 0)
            return i;
    return NULL;
}

/* Second load of a file: the first one stays, even where another file has taken its path. */
static nbl_status reuse(const nbl_instance *instance, const char *name, const struct stat *file, nbl_attempt *attempt,
                        nbl_error *err)
{
    if (strcmp(instance->table.name, name) != 0)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s is the backend \"%s\", not \"%s\"", attempt->path,
                        instance->table.name, name);
    if (instance->file_device != file->st_dev || instance->file_inode != file->st_ino)
        attempt->message = "the file was replaced on disk; the one loaded earlier stays in use";
    return NBL_OK;
}

static void describe(nbl_attempt *attempt, const nbl_instance *instance)
{
    attempt->phase = NBL_PHASE_LOADED;
    attempt->description = instance->table.description;
    attempt->file_device = instance->file_device;
    attempt->file_inode = instance->file_inode;
    attempt->abi_minor = instance->table.abi_minor;
    attempt->numerics_version = NBL_NUMERICS_VERSION;
    attempt->layout_version = NBL_LAYOUT_VERSION;
}

/* Everything that can be said about the file without running it. */
static nbl_status probe(int fd, const char *path, const struct stat *file, nbl_attempt *attempt, nbl_error *err)
{
    nbl_note_payload note;
    nbl_status status = nbl_file_trust(path, file, err);
    if (status == NBL_OK)
        status = nbl_elf_note_read(fd, (uint64_t)file->st_size, path, &note, err);
    if (status != NBL_OK)
        return status;
    attempt->abi_minor = note.abi_minor;
    attempt->numerics_version = note.numerics_version;
    attempt->layout_version = note.layout_version;
    return nbl_elf_note_check(&note, path, err);
}

/* ------------------------------------------------------------------------------------------------ opening */

/* dlerror names the file at fault first; where that is not the plugin, it is something the plugin needs. */
static nbl_status explain_dlopen(const char *path, nbl_error *err)
{
    const char *text = dlerror();
    if (!text)
        text = "no reason given";
    const char *colon = strstr(text, ": ");
    const int culprit = colon ? (int)(colon - text) : 0;
    if (strstr(text, "static TLS"))
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s: no static TLS left for %.*s; load it before other TLS-heavy libraries or set "
                        "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=2048",
                        path, culprit, text);
    if (strstr(text, "cannot open shared object file") && strncmp(text, path, strlen(path)) != 0)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s found, but its dependency %.*s was not: %s", path,
                        culprit, text, text);
    if (strncmp(text, path, strlen(path)) == 0)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s", text);
    return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s: %s", path, text);
}

/* The object just opened must be the file that was probed. */
static nbl_status check_same_file(const struct link_map *map, const struct stat *file, const char *path, nbl_error *err)
{
    struct stat now;
    if (stat(map->l_name, &now) != 0 || now.st_dev != file->st_dev || now.st_ino != file->st_ino)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s was replaced while it was being loaded", path);
    return NBL_OK;
}

/* dlsym also finds the entry of a library that the plugin depends on. */
static nbl_status find_entry(void *library, const struct link_map *map, const char *path,
                             nbl_backend_entry_v1_fn *out_entry, nbl_error *err)
{
    void *symbol = dlsym(library, NBL_BACKEND_ENTRY_SYMBOL);
    if (!symbol)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s does not export " NBL_BACKEND_ENTRY_SYMBOL, path);
    Dl_info info;
    struct link_map *owner = NULL;
    if (!dladdr1(symbol, &info, (void **)&owner, RTLD_DL_LINKMAP) || owner != map)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0,
                        "%s does not export " NBL_BACKEND_ENTRY_SYMBOL " itself; it comes from %s", path,
                        owner ? owner->l_name : "elsewhere");
    memcpy(out_entry, &symbol, sizeof *out_entry);
    return NBL_OK;
}

static nbl_status open_library(const char *path, const struct stat *file, nbl_backend_entry_v1_fn *out_entry,
                               nbl_error *err)
{
    struct link_map *map = NULL;
    nbl_lock(NBL_LOCK_OPENING);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    nbl_unlock(NBL_LOCK_OPENING);
    if (!library)
        return explain_dlopen(path, err);
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_LOADER, 0, "%s: the system does not know what it opened", path);
    const nbl_status status = check_same_file(map, file, path, err);
    return status == NBL_OK ? find_entry(library, map, path, out_entry, err) : status;
}

/* ------------------------------------------------------------------------------------------------ negotiation */

static nbl_status explain_refusal(const char *path, nbl_status status, const nbl_error *said, nbl_error *err)
{
    const size_t prefix_bytes = strlen(NBL_MESSAGE_PREFIX);
    const int prefixed = strncmp(said->message, NBL_MESSAGE_PREFIX, prefix_bytes) == 0;
    const char *text = said->message[0] ? said->message + (prefixed ? prefix_bytes : 0) : "no reason given";
    const int expected = status == NBL_E_ABI || status == NBL_E_UNSUPPORTED || status == NBL_E_NO_MEMORY;
    return nbl_fail(err, expected ? status : NBL_E_BACKEND, NBL_ORIGIN_BACKEND, said->native_code,
                    "%s refuses to work (%s): %s", path, nbl_api_status_name(status), text);
}

static nbl_status negotiate(nbl_backend_entry_v1_fn entry, const char *name, const char *path,
                            nbl_backend_v1 *out_table, nbl_error *err)
{
    nbl_error said = NBL_INIT(nbl_error);
    const nbl_backend_v1 *table = NULL;
    nbl_backend_request request = {
        .struct_size = (uint32_t)sizeof request,
        .abi_major = NBL_BACKEND_ABI_MAJOR,
        .abi_minor_min = NBL_BACKEND_ABI_MINOR_MIN,
        .abi_minor = NBL_BACKEND_ABI_MINOR,
        .numerics_version = NBL_NUMERICS_VERSION,
        .layout_version = NBL_LAYOUT_VERSION,
    };
    const nbl_status answer = entry(&host, &request, &table, &said);
    if (answer != NBL_OK)
        return explain_refusal(path, answer, &said, err);
    nbl_status status = nbl_backend_versions_check(request.abi_major, request.abi_minor, request.abi_minor,
                                                   request.numerics_version, request.layout_version, path, err);
    if (status != NBL_OK)
        return status;
    if (!table)
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0, "%s answers NBL_OK without a table", path);
    status = nbl_backend_table_complete(out_table, table, name, path, err);
    if (status == NBL_OK && out_table->abi_minor != request.abi_minor)
        status = nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0,
                          "%s agrees on minor %u, but its table says abi_minor %u", path, request.abi_minor,
                          out_table->abi_minor);
    return status;
}

static nbl_status open_and_negotiate(const char *name, const char *path, const struct stat *file, nbl_backend_v1 *table,
                                     nbl_attempt *attempt, nbl_error *err)
{
    nbl_backend_entry_v1_fn entry = NULL;
    nbl_host_state state;
    nbl_host_state_save(&state);
    attempt->phase = NBL_PHASE_OPEN;
    nbl_status status = open_library(path, file, &entry, err);
    if (status == NBL_OK) {
        attempt->phase = NBL_PHASE_NEGOTIATE;
        status = negotiate(entry, name, path, table, err);
    }
    nbl_host_state_restore(&state);
    return status;
}

/* ------------------------------------------------------------------------------------------------ instances */

/* The instance is made ready before any code of the file runs, so that lack of memory leaves nothing half done. */
static nbl_status load_new(const char *name, const char *path, const struct stat *file, nbl_instance **out_instance,
                           nbl_attempt *attempt, nbl_error *err)
{
    nbl_instance *instance = calloc(1, sizeof *instance);
    char *copy = strdup(path);
    nbl_status status;
    if (!instance || !copy)
        status = nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for backend \"%s\"", name);
    else
        status = open_and_negotiate(name, path, file, &instance->table, attempt, err);
    if (status != NBL_OK) {
        free(copy);
        free(instance);
        return status;
    }
    instance->path = copy;
    instance->file_device = file->st_dev;
    instance->file_inode = file->st_ino;
    instance->next = instances;
    instances = instance;
    *out_instance = instance;
    return NBL_OK;
}

nbl_status nbl_instance_load(const char *name, const char *path, nbl_instance **out_instance, nbl_attempt *attempt,
                             nbl_error *err)
{
    int fd = -1;
    struct stat file;
    attempt->phase = NBL_PHASE_PROBE;
    attempt->path = path;
    nbl_status status = open_file(path, &fd, &file, err);
    if (status != NBL_OK)
        return status;
    attempt->file_device = file.st_dev;
    attempt->file_inode = file.st_ino;
    *out_instance = find_instance(path, &file);
    if (*out_instance)
        status = reuse(*out_instance, name, &file, attempt, err);
    else if ((status = probe(fd, path, &file, attempt, err)) == NBL_OK)
        status = load_new(name, path, &file, out_instance, attempt, err);
    (void)close(fd);
    if (status == NBL_OK)
        describe(attempt, *out_instance);
    return status;
}
