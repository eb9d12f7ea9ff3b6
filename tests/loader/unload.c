/* SPDX-License-Identifier: Apache-2.0 */
/* A plain program, for sanitizers of leaks too: closes and opens the runtime while the backend's threads are alive, and
 * leaves in the way its argument names: tidily, with a device open, with work on its stream, or from another thread.
 * Exits with 0 if all went well.
 *
 * unload LIBRARY tidy|leave|pending|thread|plugin PLUGIN
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "small_run.h"

static const char *library;
static small_result first;

static int fail(const char *what, const nbl_error *err)
{
    (void)fprintf(stderr, "unload: %s: %s\n", what, err->message);
    return 1;
}

/* Opens, runs and compares; closes if asked to. */
static int live(int close)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    small_result result;
    static int lives;
    if (nbl_client_open(&client, library, &err) != NBL_OK || nbl_client_device(&client, "sim", &err) != NBL_OK ||
        small_run(&client, &result, &err) != NBL_OK)
        return fail("life", &err);
    if (lives++ == 0)
        first = result;
    if (memcmp(&first, &result, sizeof result) != 0)
        return fail("other bits", &err);
    if (close && nbl_client_close(&client, &err) != NBL_OK)
        return fail("close", &err);
    return 0;
}

/* Closes the library under an open device: its handle stays valid, because the library stays. */
static int close_under_a_device(void)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    small_result result;
    if (nbl_client_open(&client, library, &err) != NBL_OK || nbl_client_device(&client, "sim", &err) != NBL_OK)
        return fail("open", &err);
    if (dlclose(client.library) != 0)
        return fail("dlclose", &err);
    client.library = NULL;
    if (small_run(&client, &result, &err) != NBL_OK || memcmp(&first, &result, sizeof result) != 0)
        return fail("run after dlclose", &err);
    return nbl_client_close(&client, &err) == NBL_OK ? 0 : fail("close", &err);
}

/* Leaves work on the stream. */
static int leave_pending(void)
{
    static nbl_client client;
    small_problem problem;
    nbl_error err = NBL_INIT(nbl_error);
    if (nbl_client_open(&client, library, &err) != NBL_OK || nbl_client_device(&client, "sim", &err) != NBL_OK ||
        small_open(&client, &problem, &err) != NBL_OK)
        return fail("open", &err);
    for (int i = 0; i < 200; i++)
        if (small_attend(&problem, &err) != NBL_OK)
            return fail("attend", &err);
    return 0;
}

static void *leave_from_thread(void *unused)
{
    (void)unused;
    exit(leave_pending());
}

/* The engine's own plugin brings its own copy of the client. */
static int run_plugin(const char *path)
{
    int (*entry)(const char *);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = plugin ? dlsym(plugin, "engine_plugin_run") : NULL;
    if (!symbol) {
        (void)fprintf(stderr, "unload: %s\n", dlerror());
        return 1;
    }
    memcpy(&entry, &symbol, sizeof entry);
    const int result = entry(library);
    return dlclose(plugin) == 0 ? result : 1;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 3)
        return 2;
    library = argv[1];
    for (int i = 0; i < 3; i++)
        if (live(1) != 0)
            return 1;
    if (close_under_a_device() != 0)
        return 1;
    if (strcmp(argv[2], "leave") == 0)
        return live(0);
    if (strcmp(argv[2], "pending") == 0)
        return leave_pending();
    if (strcmp(argv[2], "plugin") == 0)
        return argc == 4 ? run_plugin(argv[3]) || live(1) : 2;
    if (strcmp(argv[2], "thread") != 0)
        return 0;
    if (pthread_create(&thread, NULL, leave_from_thread, NULL) != 0)
        return 1;
    (void)pthread_join(thread, NULL);
    return 1;
}
