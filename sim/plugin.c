/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plugin.c
 * @brief Entry of the simulator plugin, its table and its device.
 */
#include "sim.h"

#include "mma_model.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__aarch64__)
NBL_BACKEND_NOTE(NBL_ISA_AARCH64, 0u);
#else
NBL_BACKEND_NOTE(NBL_ISA_X86_64, 0u);
#endif

const nbl_host *sim_host;

nbl_status sim_fail(nbl_error *err, nbl_status status, const char *format, ...)
{
    char message[480];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return sim_host->fail(err, status, NBL_ORIGIN_BACKEND, 0, message);
}

uint32_t sim_fp_enter(void)
{
#if defined(__x86_64__)
    uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x1f80u); /* all exceptions masked, round to nearest, no flush to zero */
    return saved;
#elif defined(__aarch64__)
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)));
    return (uint32_t)saved;
#else
    return 0;
#endif
}

void sim_fp_leave(uint32_t saved)
{
#if defined(__x86_64__)
    _mm_setcsr(saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved));
#else
    (void)saved;
#endif
}

void *sim_alloc(uint64_t bytes)
{
    return sim_host->alloc(bytes, NBL_MEMORY_ALIGNMENT);
}

void sim_free(void *memory)
{
    sim_host->free(memory);
}

static uint32_t usable_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int count = CPU_COUNT(&set);
    return count < 1 ? 1u : (uint32_t)count;
}

/* Names of the tables that run here. */
static const char *list_isas(char *text, size_t size)
{
    size_t used = 0;
    for (const char *const *name = sim_isa_names; *name != NULL; ++name) {
        if (sim_isa_find(*name) != NULL) {
            int length = snprintf(text + used, size - used, "%s%s", used != 0 ? ", " : "", *name);
            used += length > 0 ? (size_t)length : 0;
        }
    }
    return text;
}

/* Profile of a name, that of NULL or "" being sm_90; NBL_MMA_PROFILES if there is none. */
static uint32_t profile_find(const char *name)
{
    if (name == NULL || name[0] == '\0') {
        return NBL_MMA_SM_90;
    }
    uint32_t profile = 0;
    while (profile < NBL_MMA_PROFILES && strcmp(name, nbl_mma_profile_name(profile)) != 0) {
        profile++;
    }
    return profile;
}

static nbl_status device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err)
{
    if (options->ordinal != 0) {
        return sim_fail(err, NBL_E_DEVICE, "sim: device ordinal %u does not exist (allowed: 0)", options->ordinal);
    }
    if (options->threads > SIM_THREADS_MAX) {
        return sim_fail(err, NBL_E_INVALID, "sim: threads is %u (allowed: 0 to %u)", options->threads, SIM_THREADS_MAX);
    }
    const sim_isa *isa = sim_isa_find(options->isa);
    if (isa == NULL) {
        char allowed[64];
        return sim_fail(err, NBL_E_INVALID, "sim: isa is \"%s\" (allowed on this CPU: %s)", options->isa,
                        list_isas(allowed, sizeof allowed));
    }
    uint32_t profile = profile_find(options->profile);
    if (profile == NBL_MMA_PROFILES) {
        return sim_fail(err, NBL_E_INVALID, "sim: profile is \"%s\" (allowed: sm_80, sm_89, sm_90, sm_100, sm_120)",
                        options->profile);
    }
    nbl_device *device = sim_alloc(sizeof *device);
    if (device == NULL) {
        return sim_fail(err, NBL_E_NO_MEMORY, "sim: no memory for the device");
    }
    uint32_t threads = options->threads != 0 ? options->threads : usable_cpus();
    device->isa = isa;
    device->profile = profile;
    device->scratch = sim_alloc(threads * sim_attend_scratch_bytes());
    device->team = device->scratch != NULL ? sim_team_open(threads) : NULL;
    if (device->team == NULL) {
        sim_free(device->scratch);
        sim_free(device);
        return sim_fail(err, NBL_E_NO_MEMORY, "sim: no memory for the scratch of %u threads", threads);
    }
    *out_device = device;
    return NBL_OK;
}

static void device_close(nbl_device *device)
{
    sim_team_close(device->team);
    sim_free(device->scratch);
    sim_free(device);
}

static nbl_status caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    (void)err;
    nbl_caps c = NBL_INIT(nbl_caps);
    c.formats = 1u << NBL_INT8 | 1u << NBL_MXFP4 | 1u << NBL_MXFP4_16 | 1u << NBL_INT4P | 1u << NBL_FORMAT_BF16 |
                1u << NBL_FORMAT_FP16 | 1u << NBL_FP8_E4M3 | 1u << NBL_NVFP4;
    c.k_dim_max = NBL_K_DIM_MAX;
    c.v_dim_max = NBL_V_DIM_MAX;
    c.page_tokens_max = NBL_PAGE_TOKENS_MAX;
    c.kv_tokens_max = NBL_KV_TOKENS_MAX;
    c.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    c.stream_kind = NBL_STREAM_HOST;
    c.threads = sim_team_size(device->team);
    c.deterministic = 1;
    snprintf(c.device_name, sizeof c.device_name, "CPU simulator");
    snprintf(c.isa, sizeof c.isa, "%s", device->isa->name);
    uint32_t size = out_caps->struct_size < sizeof c ? out_caps->struct_size : (uint32_t)sizeof c;
    c.struct_size = size;
    memcpy(out_caps, &c, size);
    return NBL_OK;
}

static nbl_status memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    void *memory = sim_alloc(bytes);
    if (memory == NULL) {
        return sim_fail(err, NBL_E_NO_MEMORY, "sim: no memory for %llu bytes", (unsigned long long)bytes);
    }
    *out_memory = memory;
    return NBL_OK;
}

static void memory_free(nbl_device *device, void *memory)
{
    (void)device;
    sim_free(memory);
}

static nbl_status memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                              nbl_stream stream, nbl_error *err)
{
    (void)device;
    (void)kind; /* host and device memory are the same here */
    nbl_status status = sim_check_stream(stream, err);
    if (status == NBL_OK && bytes > 0) {
        memmove(dst, src, bytes);
    }
    return status;
}

static nbl_status check(nbl_device *device, nbl_stream stream, nbl_error *err)
{
    (void)device; /* calls finish before they return, so there is never an error left to report */
    return sim_check_stream(stream, err);
}

static const nbl_backend_v1 table = {
    .struct_size = sizeof(nbl_backend_v1),
    .abi_minor = NBL_BACKEND_ABI_MINOR,
    .name = "sim",
    .description = "bit-exact CPU simulator",
    .device_open = device_open,
    .device_close = device_close,
    .caps = caps,
    .supports = sim_supports,
    .workspace_size = sim_workspace_size,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_copy = memory_copy,
    .check = check,
    .append = sim_append,
    .attend = sim_attend,
    .gather = sim_gather,
    .copy_pages = sim_copy_pages,
    .transcode = sim_transcode,
    .merge = sim_merge,
    .append_coded = sim_append_coded,
};

/** Entry of the plugin; see nbl_backend_entry_v1_fn. */
__attribute__((visibility("default"))) nbl_status nbl_backend_entry_v1(const nbl_host *host,
                                                                       nbl_backend_request *request,
                                                                       const nbl_backend_v1 **out_backend,
                                                                       nbl_error *err);

nbl_status nbl_backend_entry_v1(const nbl_host *host, nbl_backend_request *request, const nbl_backend_v1 **out_backend,
                                nbl_error *err)
{
    if (host == NULL || request == NULL || out_backend == NULL) {
        return NBL_E_INVALID;
    }
    sim_host = host;
    if (request->abi_major != NBL_BACKEND_ABI_MAJOR || request->abi_minor_min > NBL_BACKEND_ABI_MINOR) {
        return sim_fail(err, NBL_E_ABI, "sim speaks backend ABI %u.%u, the runtime asks for %u.%u or newer",
                        NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR, request->abi_major, request->abi_minor_min);
    }
    request->abi_minor = NBL_BACKEND_ABI_MINOR;
    request->numerics_version = NBL_NUMERICS_VERSION;
    request->layout_version = NBL_LAYOUT_VERSION;
    *out_backend = &table;
    return NBL_OK;
}
