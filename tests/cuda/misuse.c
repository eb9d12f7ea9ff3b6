/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file misuse.c
 * @brief Wrong use on a GPU: each gets a clear status, and nothing crashes, hangs or leaks.
 *
 *     misuse          runs every case in a process of its own; exits with 77 and the reason without a GPU
 *     misuse CASE     runs one
 */
#include "operations.h"

#include <cuda_runtime_api.h>
#include <dirent.h>
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define OPENINGS 40

extern char **environ;
cudaError_t launch_trap(cudaStream_t stream);

static world w;
static problem p;

/* ------------------------------------------------------------------------------------------------ expectations */

static const side *cuda(void)
{
    return &w.sides[CUDA];
}

/* A call must fail with a status and a message that holds the words, and leave no error behind. */
static void expect_refused(nbl_status got, nbl_status wanted, const nbl_error *err, const char *words)
{
    if (got != wanted) {
        world_fail(&w, "status %d (%s), wanted %d", got, err->message, wanted);
    } else if (strstr(err->message, words) == NULL) {
        world_fail(&w, "\"%s\" does not hold \"%s\"", err->message, words);
    }
    if (wanted != NBL_E_DEVICE && cudaPeekAtLastError() != cudaSuccess) {
        world_fail(&w, "%s: left the error %s in the runtime", words, cudaGetErrorString(cudaGetLastError()));
    }
}

static void expect_good(nbl_status status, const nbl_error *err, const char *what)
{
    world_expect(&w, cuda(), status, err, what);
}

static void expect_cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        world_fail(&w, "%s: %s", what, cudaGetErrorString(error));
    }
}

static nbl_status check(nbl_error *err)
{
    return w.api->check(cuda()->device, cuda()->stream, err);
}

static size_t free_bytes(void)
{
    size_t bytes = 0, total;
    expect_cuda(cudaMemGetInfo(&bytes, &total), "cudaMemGetInfo");
    return bytes;
}

static void make_problem(void)
{
    static const uint32_t formats[] = {NBL_INT4P, NBL_INT4P, NBL_Q8};
    problem_make(&p, &w, formats, 16, 64, 1);
    for (uint32_t b = 0; b < BATCH; ++b) {
        p.kv_len[b] = 40u + b;
    }
    problem_make_tables(&p);
    problem_fill(&p);
}

/* ------------------------------------------------------------------------------------------------ cases */

/* Takes memory until there is none, then gives it back. */
static void exhaust(void)
{
    enum { BLOCKS_MAX = 256 };
    const uint64_t block_bytes = UINT64_C(2) << 30;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_status status = NBL_OK;
    void *blocks[BLOCKS_MAX];
    uint32_t count = 0;
    while (count < BLOCKS_MAX &&
           (status = w.api->memory_alloc(cuda()->device, block_bytes, &blocks[count], &err)) == NBL_OK) {
        count++;
    }
    expect_refused(status, NBL_E_NO_MEMORY, &err, "no memory for 2147483648 bytes");
    while (count > 0) {
        expect_good(w.api->memory_free(cuda()->device, blocks[--count], &err), &err, "memory_free");
    }
}

static void case_memory(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    void *memory = NULL;
    nbl_status status = w.api->memory_alloc(cuda()->device, UINT64_C(1) << 46, &memory, &err);
    expect_refused(status, NBL_E_NO_MEMORY, &err, "no memory for 70368744177664 bytes");
    exhaust(); /* the driver keeps some memory for itself after the first time */
    size_t before = free_bytes();
    exhaust();
    if (free_bytes() != before) {
        world_fail(&w, "%zu bytes free before, %zu after", before, free_bytes());
    }
    make_problem();
    problem_step(&p, CUDA);
    expect_good(check(&err), &err, "check after running out of memory");
    problem_free(&p);
}

/* One argument that must be device memory. */
typedef struct argument {
    const char *name;
    void *place; /* of the pointer in the argument struct */
} argument;

/* Calls with host memory in one argument after the other. A device that reads all host memory may take it. */
static void try_host_pointers(const argument *list, uint32_t count, nbl_status (*call)(void *, nbl_error *), void *args)
{
    int device = 0, reads_host = 0;
    void *host = aligned_alloc(256, 1u << 20), *kept;
    expect_cuda(cudaGetDevice(&device), "cudaGetDevice");
    expect_cuda(cudaDeviceGetAttribute(&reads_host, cudaDevAttrPageableMemoryAccess, device), "attribute");
    for (uint32_t i = 0; i < count; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        memcpy(&kept, list[i].place, sizeof kept);
        memcpy(list[i].place, &host, sizeof host);
        w.case_text = (char *)(uintptr_t)list[i].name;
        nbl_status status = call(args, &err);
        if (!reads_host) {
            expect_refused(status, NBL_E_INVALID, &err, list[i].name);
        }
        memcpy(list[i].place, &kept, sizeof kept);
        expect_good(check(&err), &err, "check after host memory");
    }
    nbl_error err = NBL_INIT(nbl_error);
    expect_good(call(args, &err), &err, "the call with all arguments right");
    expect_good(check(&err), &err, "check");
    free(host);
    w.case_text = NULL;
}

static nbl_status call_append(void *args, nbl_error *err)
{
    return w.api->append(cuda()->device, args, err);
}

static nbl_status call_attend(void *args, nbl_error *err)
{
    return w.api->attend(cuda()->device, args, err);
}

static nbl_status call_gather(void *args, nbl_error *err)
{
    return w.api->gather(cuda()->device, args, err);
}

static nbl_status call_copy_pages(void *args, nbl_error *err)
{
    return w.api->copy_pages(cuda()->device, args, err);
}

static void host_pointers_append(void)
{
    nbl_append_args a = problem_append_args(&p, CUDA);
    array *stats = world_array(&w, sizeof(nbl_quant_stats));
    a.stats = (nbl_quant_stats *)(void *)stats->memory[CUDA];
    const argument list[] = {{"k", &a.k.data},
                             {"v", &a.v.data},
                             {"slots", &a.slots},
                             {"seq_indptr", &a.seq_indptr},
                             {"stats", &a.stats},
                             {"centers.codes", &a.centers.codes},
                             {"centers.exponents", &a.centers.exponents},
                             {"centers.shifts", &a.centers.shifts},
                             {"pool.regions[0].codes", &p.region[CUDA].codes},
                             {"pool.regions[0].scales", &p.region[CUDA].scales}};
    try_host_pointers(list, COUNT(list), call_append, &a);
}

static void host_pointers_attend(void)
{
    nbl_attend_args a = problem_attend_args(&p, CUDA);
    array *sinks = world_array(&w, Q_HEADS * sizeof(float));
    memset(sinks->host, 0, sinks->bytes);
    world_send(&w, sinks);
    a.sinks = (const float *)(const void *)sinks->memory[CUDA];
    const argument list[] = {{"q", &a.q.data},
                             {"o", &a.o.data},
                             {"lse", &a.lse.data},
                             {"q_indptr", &a.q_indptr},
                             {"kv_len", &a.kv_len},
                             {"page_table", &a.page_table},
                             {"sinks", &a.sinks},
                             {"workspace", &a.workspace},
                             {"centers.codes", &a.centers.codes},
                             {"centers.exponents", &a.centers.exponents},
                             {"centers.shifts", &a.centers.shifts},
                             {"pool.regions[0].codes", &p.region[CUDA].codes},
                             {"pool.regions[0].scales", &p.region[CUDA].scales}};
    try_host_pointers(list, COUNT(list), call_attend, &a);
}

static void host_pointers_others(void)
{
    nbl_gather_args g = problem_gather_args(&p, CUDA);
    nbl_copy_pages_args c = problem_copy_args(&p, CUDA);
    const argument gather[] = {{"k", &g.k.data}, {"v", &g.v.data}, {"slots", &g.slots}, {"seq_indptr", &g.seq_indptr}};
    const argument copy[] = {{"src_pages", &c.src_pages}, {"dst_pages", &c.dst_pages}};
    try_host_pointers(gather, COUNT(gather), call_gather, &g);
    try_host_pointers(copy, COUNT(copy), call_copy_pages, &c);
}

static void case_host_pointers(void)
{
    make_problem();
    host_pointers_append();
    host_pointers_attend();
    host_pointers_others();
    problem_free(&p);
}

/* Whether there is a second device; without one the reason is printed. */
static nbl_status call_supports(void *desc, nbl_error *err)
{
    return w.api->supports(cuda()->device, desc, err);
}

/* A pool of one page of one token, of as many layers as an axis of a grid has not. */
static void try_layers(void)
{
    enum { LAYERS = 65536 };
    nbl_error err = NBL_INIT(nbl_error);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    nbl_kv_shape shape = p.shape;
    shape.layers = LAYERS;
    shape.kv_heads = shape.page_tokens = 1;
    expect_good(w.api->kv_layout(&shape, NBL_INT8, NBL_INT8, &layout, &err), &err, "kv_layout");
    const nbl_region region = {.k_format = NBL_INT8,
                               .v_format = NBL_INT8,
                               .page_count = 1,
                               .codes = world_array(&w, layout.code_page_bytes * LAYERS)->memory[CUDA],
                               .scales = world_array(&w, layout.scale_page_bytes * LAYERS)->memory[CUDA],
                               .code_page_stride = layout.code_page_bytes,
                               .code_layer_stride = layout.code_page_bytes,
                               .scale_page_stride = layout.scale_page_bytes,
                               .scale_layer_stride = layout.scale_page_bytes};
    nbl_pool pool = p.pool[CUDA];
    pool.shape = &shape;
    pool.regions = &region;
    nbl_copy_pages_args c = problem_copy_args(&p, CUDA);
    c.src_pool = c.dst_pool = &pool;
    expect_refused(call_copy_pages(&c, &err), NBL_E_UNSUPPORTED, &err,
                   "cuda: shape.layers is 65536 (this backend: up to 65535)");
}

/* Shapes beyond what the axes of a grid hold: supports says so, and so does a call. */
static void case_shapes(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    make_problem();
    nbl_kv_shape shape = p.shape;
    nbl_op_desc op = NBL_INIT(nbl_op_desc);
    op.shape = &shape;
    op.op = NBL_OP_TRANSCODE;
    op.k_format = op.v_format = op.dst_k_format = op.dst_v_format = NBL_INT8;
    shape.layers = 65536;
    expect_refused(call_supports(&op, &err), NBL_E_UNSUPPORTED, &err, "cuda: shape.layers is 65536");
    shape.layers = 65535;
    expect_good(call_supports(&op, &err), &err, "supports 65535 layers");
    shape.kv_heads = 32768;
    expect_refused(call_supports(&op, &err), NBL_E_UNSUPPORTED, &err,
                   "cuda: shape.kv_heads is 32768 (this backend: up to 32767)");
    try_layers();
    problem_free(&p);
}

static int has_second_device(const char *untried)
{
    int count = 0;
    expect_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (count < 2) {
        printf("misuse: one GPU only, %s was not tried\n", untried);
    }
    return count >= 2;
}

/* The device that is current in this thread must be what it was. */
static void expect_current(int device, const char *after)
{
    int current = -1;
    expect_cuda(cudaGetDevice(&current), "cudaGetDevice");
    if (current != device) {
        world_fail(&w, "after %s: the current device was %d and is %d", after, device, current);
        expect_cuda(cudaSetDevice(device), "cudaSetDevice");
    }
}

/* A stream of the second device, where there is one. */
static void try_other_device(nbl_append_args *a)
{
    cudaStream_t other = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    if (!has_second_device("a stream of another device")) {
        return;
    }
    expect_cuda(cudaSetDevice(1), "cudaSetDevice");
    expect_cuda(cudaStreamCreate(&other), "cudaStreamCreate");
    a->stream.handle = other;
    expect_refused(call_append(a, &err), NBL_E_INVALID, &err, "stream.handle belongs to device 1");
    expect_current(1, "a refused append");
    a->stream = cuda()->stream;
    expect_good(call_append(a, &err), &err, "append while another device is current");
    expect_good(check(&err), &err, "check");
    expect_current(1, "append and check");
    expect_cuda(cudaStreamDestroy(other), "cudaStreamDestroy");
    expect_cuda(cudaSetDevice(0), "cudaSetDevice");
}

static void case_streams(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    make_problem();
    nbl_append_args a = problem_append_args(&p, CUDA);
    a.stream.kind = NBL_STREAM_HOST;
    expect_refused(call_append(&a, &err), NBL_E_INVALID, &err, "stream.kind is");
    a.stream = cuda()->stream;
    a.stream.device = 1;
    expect_refused(call_append(&a, &err), NBL_E_INVALID, &err, "stream.device is 1, the device is 0");
    a.stream = cuda()->stream;
    a.stream.handle = NULL;
    expect_refused(call_append(&a, &err), NBL_E_INVALID, &err, "stream.handle is NULL");
    a.stream = cuda()->stream;
    errno = 77;
    expect_good(call_append(&a, &err), &err, "append");
    if (errno != 77) {
        world_fail(&w, "errno was 77 and is %d", errno);
    }
    try_other_device(&a);
    problem_free(&p);
}

/* Opens the device of an ordinal in place of the one at hand. */
static void reopen(uint32_t ordinal)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device_options options = NBL_INIT(nbl_device_options);
    side *s = &w.sides[CUDA];
    expect_good(w.api->close(s->device, &err), &err, "close");
    options.ordinal = ordinal;
    expect_good(w.api->open(s->runtime, &options, &s->device, &err), &err, "open");
    s->stream.device = (int32_t)ordinal;
}

/* The small calls on a device that is not current. */
static void small_calls(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_caps caps = NBL_INIT(nbl_caps);
    const nbl_stream host = {.kind = NBL_STREAM_HOST};
    uint8_t bytes[64] = {0};
    void *memory = NULL;
    expect_good(w.api->caps(cuda()->device, &caps, &err), &err, "caps");
    expect_current(0, "caps");
    expect_good(w.api->memory_alloc(cuda()->device, sizeof bytes, &memory, &err), &err, "memory_alloc");
    expect_current(0, "memory_alloc");
    expect_good(w.api->memory_copy(cuda()->device, memory, bytes, sizeof bytes, NBL_COPY_TO_DEVICE, host, &err), &err,
                "memory_copy");
    expect_current(0, "memory_copy");
    expect_good(w.api->memory_free(cuda()->device, memory, &err), &err, "memory_free");
    expect_current(0, "memory_free");
    expect_good(check(&err), &err, "check");
    expect_current(0, "check");
}

/* Memory of the first device in a call for the second. */
static void try_other_memory(nbl_append_args *a)
{
    nbl_error err = NBL_INIT(nbl_error);
    void *memory = NULL, *kept = a->k.data;
    expect_cuda(cudaMalloc(&memory, p.k->bytes), "cudaMalloc");
    a->k.data = memory;
    expect_refused(call_append(a, &err), NBL_E_INVALID, &err, "k is memory of device 0, which device 1 cannot read");
    expect_current(0, "memory of another device");
    a->k.data = kept;
    expect_good(check(&err), &err, "check");
    expect_cuda(cudaFree(memory), "cudaFree");
}

static void expect_first(const char *after)
{
    expect_current(0, after);
}

/* Work on one device while another one is current: the bytes are those of the simulator, and the engine's
 * device stays current. */
static void case_devices(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (!has_second_device("work on a device that is not current")) {
        return;
    }
    expect_cuda(cudaSetDevice(0), "cudaSetDevice");
    reopen(1);
    expect_current(0, "open");
    small_calls();
    make_problem();
    expect_current(0, "allocations and appends");
    operations all = operations_make(&p);
    nbl_append_args append = problem_append_args(&p, CUDA);
    operations_run(&all, CUDA, expect_first);
    try_other_memory(&append);
    append.stream.device = 0;
    expect_refused(call_append(&append, &err), NBL_E_INVALID, &err, "stream.device is 0, the device is 1");
    expect_current(0, "a refused append");
    operations_run(&all, SIM, NULL);
    operations_compare(&all);
    problem_free(&p);
    reopen(0);
    expect_current(0, "close");
}

/* The same operations on the one device that there always is. */
static void case_operations(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    make_problem();
    operations all = operations_make(&p);
    operations_run(&all, CUDA, expect_first);
    operations_run(&all, SIM, NULL);
    expect_good(check(&err), &err, "check");
    operations_compare(&all);
    problem_free(&p);
}

/* A kernel of somebody else fails: the context is lost, and every later call says so. */
static void case_fault(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    make_problem();
    nbl_append_args a = problem_append_args(&p, CUDA);
    nbl_attend_args t = problem_attend_args(&p, CUDA);
    void *memory = NULL;
    expect_good(check(&err), &err, "check before the fault");
    expect_cuda(launch_trap((cudaStream_t)cuda()->stream.handle), "launch_trap");
    expect_refused(check(&err), NBL_E_DEVICE, &err, "the device failed");
    expect_refused(check(&err), NBL_E_DEVICE, &err, "cuda: ");
    expect_refused(call_append(&a, &err), NBL_E_DEVICE, &err, "cuda: ");
    expect_refused(call_attend(&t, &err), NBL_E_DEVICE, &err, "cuda: ");
    expect_refused(w.api->memory_alloc(cuda()->device, 64, &memory, &err), NBL_E_DEVICE, &err, "cuda: ");
    problem_free(&p); /* must not crash */
}

/* What the device alone can see is reported once, by check, and the device goes on. */
static void case_bad_data(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    make_problem();
    ((int64_t *)(void *)p.slots->host)[2] = INT64_C(1) << 40;
    world_send(&w, p.slots);
    nbl_append_args a = problem_append_args(&p, CUDA);
    expect_good(call_append(&a, &err), &err, "append with a bad slot");
    expect_refused(check(&err), NBL_E_RANGE, &err, "slots[2] is 1099511627776");
    expect_good(check(&err), &err, "check after the report");
    problem_make_tables(&p);
    problem_fill(&p);
    problem_step(&p, CUDA);
    problem_step(&p, SIM);
    world_compare(&w, p.o, "o after a bad slot");
    problem_free(&p);
}

static int open_files(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory != NULL && readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

static void case_leaks(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    size_t before = 0;
    int files = 0;
    for (int i = 0; i < OPENINGS; ++i) {
        nbl_device *device = NULL;
        expect_good(w.api->open(cuda()->runtime, NULL, &device, &err), &err, "open");
        expect_good(w.api->close(device, &err), &err, "close");
        make_problem();
        problem_step(&p, CUDA);
        expect_good(check(&err), &err, "check");
        problem_free(&p);
        if (i == OPENINGS / 2) { /* by then kernels are loaded and the driver's own pools are full */
            before = free_bytes();
            files = open_files();
        }
    }
    if (free_bytes() != before || open_files() != files) {
        world_fail(&w, "%zu bytes free and %d files open early on, %zu and %d later", before, files, free_bytes(),
                   open_files());
    }
}

/* ------------------------------------------------------------------------------------------------ processes */

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"memory", case_memory},
             {"host_pointers", case_host_pointers},
             {"streams", case_streams},
             {"devices", case_devices},
             {"operations", case_operations},
             {"bad_data", case_bad_data},
             {"shapes", case_shapes},
             {"leaks", case_leaks},
             {"fault", case_fault}};

static int run_case(const char *name)
{
    if (world_open(&w, "sim", "cuda") != 0) {
        printf("misuse: skipped: %s\n", w.text);
        return EXIT_SKIPPED;
    }
    for (uint32_t i = 0; i < COUNT(cases); ++i) {
        if (strcmp(cases[i].name, name) == 0) {
            cases[i].run();
        }
    }
    world_close(&w);
    printf("misuse: %s: %s\n", name, w.failures > 0 ? w.text : "ok");
    return w.failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Exit status of one case in a process of its own; a signal is a failure. */
static int spawn_case(const char *program, const char *name)
{
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)name, NULL};
    pid_t pid = 0;
    int status = 0;
    if (posix_spawn(&pid, program, NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) != pid) {
        return EXIT_FAILURE;
    }
    if (!WIFEXITED(status)) {
        printf("misuse: %s: ended by signal %d\n", name, WTERMSIG(status));
        return EXIT_FAILURE;
    }
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    int worst = EXIT_SUCCESS;
    if (argc > 1) {
        return run_case(argv[1]);
    }
    for (uint32_t i = 0; i < COUNT(cases); ++i) {
        fflush(stdout);
        int code = spawn_case("/proc/self/exe", cases[i].name);
        if (code == EXIT_SKIPPED) {
            return EXIT_SKIPPED;
        }
        worst = code != EXIT_SUCCESS ? EXIT_FAILURE : worst;
    }
    return worst;
}
