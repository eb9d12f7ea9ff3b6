/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_PREFIX "libnibble-backend-"
#define FILE_SUFFIX ".so.1"
_Static_assert(NBL_BACKEND_ABI_MAJOR == 1, "FILE_SUFFIX carries the major");

static const char *const known_names[] = {"cuda", "sim"};
#define KNOWN_LIST "cuda, sim"

enum { DIRECTORIES_MAX = 3 };

/* The directories to look in, in order. */
typedef struct directories {
    uint32_t count;
    char *path[DIRECTORIES_MAX];
} directories;

static const char *const chooser_names[] = {"default", "nbl_load_options.backend", "NIBBLE_BACKEND"};

const char *nbl_chooser_name(uint32_t chooser)
{
    return chooser_names[chooser];
}

/* A bad choice is the caller's or the environment's fault. */
static nbl_status blame(uint32_t chooser)
{
    return chooser == NBL_CHOSEN_BY_ENV ? NBL_E_ENV : NBL_E_INVALID;
}

/* ------------------------------------------------------------------------------------------------ names */

static int is_name(const char *text, size_t length)
{
    if (length < 1 || length >= NBL_NAME_BYTES)
        return 0;
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") >= length;
}

static int is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_names / sizeof *known_names; i++)
        if (strcmp(name, known_names[i]) == 0)
            return 1;
    return 0;
}

/* The candidate of an absolute path: the file name gives the backend's name. */
static nbl_status add_path(nbl_search *search, const char *path, nbl_error *err)
{
    const char *file = strrchr(path, '/') + 1;
    const size_t length = strlen(file);
    const size_t fixed = strlen(FILE_PREFIX) + strlen(FILE_SUFFIX);
    const char *name = file + strlen(FILE_PREFIX);
    if (length <= fixed || strncmp(file, FILE_PREFIX, strlen(FILE_PREFIX)) != 0 ||
        strcmp(file + length - strlen(FILE_SUFFIX), FILE_SUFFIX) != 0 || !is_name(name, length - fixed))
        return nbl_fail(err, blame(search->chooser), NBL_ORIGIN_LOADER, 0,
                        "%s: the file is \"%s\"; a backend is named libnibble-backend-NAME.so.%u",
                        nbl_chooser_name(search->chooser), file, NBL_BACKEND_ABI_MAJOR);
    nbl_candidate *candidate = &search->candidate[search->count++];
    memcpy(candidate->name, name, length - fixed);
    candidate->path = strdup(path);
    if (!candidate->path)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for a path");
    return NBL_OK;
}

static nbl_status add_name(nbl_search *search, const char *name, size_t length, nbl_error *err)
{
    const char *who = nbl_chooser_name(search->chooser);
    if (memchr(name, '/', length))
        return nbl_fail(err, blame(search->chooser), NBL_ORIGIN_LOADER, 0,
                        "%s: \"%.*s\" is a relative path; give a name or one absolute path", who, (int)length, name);
    if (!is_name(name, length))
        return nbl_fail(err, blame(search->chooser), NBL_ORIGIN_LOADER, 0,
                        "%s: \"%.*s\" is not a backend name; 1 to 32 of a-z, 0-9 and _ are allowed", who, (int)length,
                        name);
    if (search->count == NBL_CANDIDATES_MAX)
        return nbl_fail(err, blame(search->chooser), NBL_ORIGIN_LOADER, 0, "%s: more than %u names", who,
                        NBL_CANDIDATES_MAX);
    memcpy(search->candidate[search->count++].name, name, length);
    return NBL_OK;
}

/* Splits a choice into candidates. */
static nbl_status parse_choice(nbl_search *search, const char *text, nbl_error *err)
{
    const char *who = nbl_chooser_name(search->chooser);
    if (text[0] == '\0')
        return nbl_fail(err, blame(search->chooser), NBL_ORIGIN_LOADER, 0,
                        "%s is set but empty; unset it or name a backend", who);
    const size_t length = strlen(text);
    if (length >= NBL_PATH_BYTES)
        return nbl_fail(err, blame(search->chooser), NBL_ORIGIN_LOADER, 0, "%s has %zu bytes, at most %u are allowed",
                        who, length, NBL_PATH_BYTES - 1);
    if (text[0] == '/')
        return add_path(search, text, err);
    for (const char *name = text;; name++) {
        const size_t name_length = strcspn(name, ",");
        const nbl_status status = add_name(search, name, name_length, err);
        name += name_length;
        if (status != NBL_OK || *name == '\0')
            return status;
    }
}

/* ------------------------------------------------------------------------------------------------ directories */

static nbl_status add_directory(directories *dirs, const char *path, const char *who, nbl_status blamed, nbl_error *err)
{
    if (path[0] != '/')
        return nbl_fail(err, blamed, NBL_ORIGIN_LOADER, 0, "%s is \"%s\"; an absolute directory is needed", who, path);
    if (strlen(path) >= NBL_PATH_BYTES)
        return nbl_fail(err, blamed, NBL_ORIGIN_LOADER, 0, "%s has %zu bytes, at most %u are allowed", who,
                        strlen(path), NBL_PATH_BYTES - 1);
    char *copy = strdup(path);
    if (!copy)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for a path");
    dirs->path[dirs->count++] = copy;
    return NBL_OK;
}

/* nibble/ beside the real file of this library; "" where the system cannot say. */
static void beside_runtime(char out[NBL_PATH_BYTES])
{
    Dl_info info;
    out[0] = '\0';
    if (!dladdr(chooser_names, &info) || !info.dli_fname)
        return;
    char *real = realpath(info.dli_fname, NULL);
    if (!real)
        return;
    const int length = snprintf(out, NBL_PATH_BYTES, "%.*s/nibble", (int)(strrchr(real, '/') - real), real);
    if (length < 0 || (unsigned)length >= NBL_PATH_BYTES)
        out[0] = '\0';
    free(real);
}

static nbl_status collect_directories(directories *dirs, const char *backend_dir, const nbl_env *env, nbl_error *err)
{
    nbl_status status = NBL_OK;
    if (backend_dir)
        status = add_directory(dirs, backend_dir, "nbl_load_options.backend_dir", NBL_E_INVALID, err);
    if (status != NBL_OK)
        return status;
    if (env && env->value[NBL_ENV_BACKEND_DIR])
        return add_directory(dirs, env->value[NBL_ENV_BACKEND_DIR], "NIBBLE_BACKEND_DIR", NBL_E_ENV, err);
    char beside[NBL_PATH_BYTES];
    beside_runtime(beside);
    if (beside[0])
        status = add_directory(dirs, beside, "the directory beside libnibble", NBL_E_INVALID, err);
    if (status == NBL_OK && strcmp(beside, NIBBLE_DEFAULT_BACKEND_DIR) != 0)
        status = add_directory(dirs, NIBBLE_DEFAULT_BACKEND_DIR, "the directory compiled in", NBL_E_INVALID, err);
    return status;
}

static void clear_directories(directories *dirs)
{
    for (uint32_t i = 0; i < dirs->count; i++)
        free(dirs->path[i]);
}

/* ------------------------------------------------------------------------------------------------ files */

static void say_not_found(nbl_candidate *candidate, const directories *dirs)
{
    char list[sizeof candidate->not_found.message] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < dirs->count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", dirs->path[i]);
    candidate->not_found.struct_size = (uint32_t)sizeof candidate->not_found;
    (void)nbl_fail(&candidate->not_found, NBL_E_NOT_FOUND, NBL_ORIGIN_LOADER, 0,
                   "backend \"%s\": no " FILE_PREFIX "%s" FILE_SUFFIX " in: %s%s", candidate->name, candidate->name,
                   list, strcmp(candidate->name, "cuda") == 0 ? "; set NIBBLE_BACKEND=sim for the CPU" : "");
}

/* The first directory that has the name decides, whatever is found there. */
static nbl_status find_file(nbl_candidate *candidate, const directories *dirs, const nbl_log_sink *sink, nbl_error *err)
{
    for (uint32_t i = 0; i < dirs->count; i++) {
        char *path = NULL;
        struct stat unused;
        if (asprintf(&path, "%s/" FILE_PREFIX "%s" FILE_SUFFIX, dirs->path[i], candidate->name) < 0)
            return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for a path");
        if (lstat(path, &unused) == 0 || (errno != ENOENT && errno != ENOTDIR)) {
            candidate->path = path;
            return NBL_OK;
        }
        nbl_log(sink, NBL_LOG_DEBUG, "no %s", path);
        free(path);
    }
    say_not_found(candidate, dirs);
    return NBL_OK;
}

/* A name that is neither known nor there is a misspelling, even where the list goes on. */
static nbl_status find_files(nbl_search *search, const directories *dirs, const nbl_log_sink *sink, nbl_error *err)
{
    for (uint32_t i = 0; i < search->count; i++) {
        nbl_candidate *candidate = &search->candidate[i];
        if (candidate->path)
            continue;
        const nbl_status status = find_file(candidate, dirs, sink, err);
        if (status != NBL_OK)
            return status;
        if (!candidate->path && !is_known(candidate->name))
            return nbl_fail(err, search->chooser == NBL_CHOSEN_BY_ENV ? NBL_E_ENV : NBL_E_NOT_FOUND, NBL_ORIGIN_LOADER,
                            0, "unknown backend \"%s\" in %s (known: " KNOWN_LIST ")", candidate->name,
                            nbl_chooser_name(search->chooser));
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ all together */

static const char *choose(nbl_search *search, const char *backend, const nbl_env *env, const nbl_log_sink *sink)
{
    const char *value = env ? env->value[NBL_ENV_BACKEND] : NULL;
    search->chooser = value ? NBL_CHOSEN_BY_ENV : backend ? NBL_CHOSEN_BY_API : NBL_CHOSEN_BY_DEFAULT;
    if (value && backend && strcmp(value, backend) != 0)
        nbl_log(sink, NBL_LOG_INFO, "NIBBLE_BACKEND \"%s\" goes before the caller's choice \"%s\"", value, backend);
    return value ? value : backend ? backend : "cuda";
}

nbl_status nbl_search_run(nbl_search *search, const char *backend, const char *backend_dir, const nbl_env *env,
                          const nbl_log_sink *sink, nbl_error *err)
{
    directories dirs = {0};
    nbl_status status = parse_choice(search, choose(search, backend, env, sink), err);
    if (status == NBL_OK)
        status = collect_directories(&dirs, backend_dir, env, err);
    if (status == NBL_OK)
        status = find_files(search, &dirs, sink, err);
    clear_directories(&dirs);
    return status;
}

void nbl_search_clear(nbl_search *search)
{
    for (uint32_t i = 0; i < search->count; i++)
        free(search->candidate[i].path);
    memset(search, 0, sizeof *search);
}
