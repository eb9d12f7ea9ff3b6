/* SPDX-License-Identifier: Apache-2.0 */
#include "timer.h"

#include "progress.h"

#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEVEL2_BYTES_ATTRIBUTE = 38 }; /* CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE */

/* What the timer needs of the CUDA driver API. Handles are pointers, results 0 for success. */
typedef struct driver {
    void *library;
    int (*device_get)(int *out_device, int ordinal);
    int (*attribute_get)(int *out_value, int attribute, int device);
    int (*context_retain)(void **out_context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **out_context);
    int (*event_create)(void **out_event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed)(float *out_ms, void *start, void *end);
    int (*event_destroy)(void *event);
    int (*host_function)(void *stream, void (*function)(void *), void *user);
} driver;

struct nbl_timer {
    bool on_device;
    nbl_stream stream;
    double start_s;
    uint64_t cache_bytes;
    driver api;
    int device;
    void *context;
    void *events[2];
    sem_t gate; /* holds the stream while calls are enqueued */
};

/* ------------------------------------------------------------------------------------------------ driver */

static bool find_functions(driver *api)
{
    const struct {
        const char *name;
        void *to; /* a function pointer of the struct */
    } symbols[] = {{"cuDeviceGet", &api->device_get},
                   {"cuDeviceGetAttribute", &api->attribute_get},
                   {"cuDevicePrimaryCtxRetain", &api->context_retain},
                   {"cuDevicePrimaryCtxRelease_v2", &api->context_release},
                   {"cuCtxPushCurrent_v2", &api->context_push},
                   {"cuCtxPopCurrent_v2", &api->context_pop},
                   {"cuEventCreate", &api->event_create},
                   {"cuEventRecord", &api->event_record},
                   {"cuEventSynchronize", &api->event_wait},
                   {"cuEventElapsedTime", &api->event_elapsed},
                   {"cuEventDestroy_v2", &api->event_destroy},
                   {"cuLaunchHostFunc", &api->host_function}};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(api->library, symbols[i].name);
        if (!symbol)
            return false;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

static int driver_result(int result, const char *what, nbl_fault *fault)
{
    if (result == 0)
        return NBL_EXIT_OK;
    return nbl_fault_set(fault, NBL_EXIT_FAILED, "timing: %s: CUDA driver error %d", what, result);
}

static int open_events(nbl_timer *timer, nbl_fault *fault)
{
    driver *api = &timer->api;
    void *popped;
    int bytes = 0;
    int result = api->device_get(&timer->device, timer->stream.device);
    if (result == 0)
        result = api->context_retain(&timer->context, timer->device);
    if (result == 0)
        result = api->context_push(timer->context);
    if (result != 0)
        return driver_result(result, "context", fault);
    result = api->attribute_get(&bytes, LEVEL2_BYTES_ATTRIBUTE, timer->device);
    for (int i = 0; i < 2 && result == 0; i++)
        result = api->event_create(&timer->events[i], 0);
    timer->cache_bytes = (uint64_t)bytes;
    (void)api->context_pop(&popped);
    return driver_result(result, "events", fault);
}

static int open_driver(nbl_timer *timer, nbl_fault *fault)
{
    timer->api.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!timer->api.library || !find_functions(&timer->api))
        return nbl_fault_set(fault, NBL_EXIT_BACKEND, "timing: the CUDA driver lacks events (%s)", dlerror());
    return open_events(timer, fault);
}

/* ------------------------------------------------------------------------------------------------ timer */

int nbl_timer_open(const nbl_session *session, nbl_timer **out_timer, nbl_fault *fault)
{
    static const long level3_bytes_default = 64l << 20;
    nbl_timer *timer = nbl_alloc(1, sizeof *timer, fault);
    if (!timer)
        return NBL_EXIT_FAILED;
    memset(timer, 0, sizeof *timer);
    timer->stream = session->stream;
    timer->on_device = session->stream.kind == NBL_STREAM_CUDA;
    sem_init(&timer->gate, 0, 0);
    *out_timer = timer;
    if (timer->on_device)
        return open_driver(timer, fault);
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    timer->cache_bytes = (uint64_t)(bytes > 0 ? bytes : level3_bytes_default);
    return NBL_EXIT_OK;
}

/* Not for ever: under a profiler, which runs launches one by one, what follows is only enqueued when this is over. */
static void wait_at_gate(void *gate)
{
    static const int longest_s = 2;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += longest_s;
    while (sem_timedwait(gate, &until) != 0 && errno == EINTR) {
    }
}

int nbl_timer_start(nbl_timer *timer, nbl_fault *fault)
{
    driver *api = &timer->api;
    void *popped;
    timer->start_s = nbl_clock_s();
    if (!timer->on_device)
        return NBL_EXIT_OK;
    int result = api->context_push(timer->context);
    if (result != 0)
        return driver_result(result, "context", fault);
    while (sem_trywait(&timer->gate) == 0) { /* a gate that was given up */
    }
    result = api->host_function(timer->stream.handle, wait_at_gate, &timer->gate);
    if (result == 0 && (result = api->event_record(timer->events[0], timer->stream.handle)) != 0)
        sem_post(&timer->gate);
    if (result != 0)
        (void)api->context_pop(&popped);
    return driver_result(result, "start", fault);
}

int nbl_timer_stop(nbl_timer *timer, double *out_s, nbl_fault *fault)
{
    static const double s_per_ms = 1e-3;
    driver *api = &timer->api;
    float ms = 0.0f;
    void *popped;
    *out_s = nbl_clock_s() - timer->start_s;
    if (!timer->on_device)
        return NBL_EXIT_OK;
    int result = api->event_record(timer->events[1], timer->stream.handle);
    sem_post(&timer->gate);
    if (result == 0)
        result = api->event_wait(timer->events[1]);
    if (result == 0)
        result = api->event_elapsed(&ms, timer->events[0], timer->events[1]);
    (void)api->context_pop(&popped);
    *out_s = (double)ms * s_per_ms;
    return driver_result(result, "end", fault);
}

uint64_t nbl_timer_cache_bytes(const nbl_timer *timer)
{
    return timer->cache_bytes;
}

void nbl_timer_close(nbl_timer *timer)
{
    void *popped;
    if (!timer)
        return;
    if (timer->context && timer->api.context_push(timer->context) == 0) {
        for (int i = 0; i < 2; i++) {
            if (timer->events[i])
                (void)timer->api.event_destroy(timer->events[i]);
        }
        (void)timer->api.context_pop(&popped);
        (void)timer->api.context_release(timer->device);
    }
    if (timer->api.library)
        dlclose(timer->api.library);
    sem_destroy(&timer->gate);
    free(timer);
}
