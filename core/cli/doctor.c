/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"
#include "output.h"
#include "pipeline.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Values of the options. */
typedef struct doctor_values {
    const char *backend_dir;
    bool json;
} doctor_values;

static const nbl_option doctor_options[] = {
    {"backend-dir", NBL_OPTION_TEXT, offsetof(doctor_values, backend_dir), 0, 0, "DIR",
     "absolute directory searched first"},
    {"json", NBL_OPTION_FLAG, offsetof(doctor_values, json), 0, 0, NULL, "print JSON"},
};

static int doctor_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_doctor = {
    "doctor",
    "What this machine can run, what is missing, and how to get it.",
    "Lines are \"ok|warn|fail  topic: finding -> fix\". The exit status is 1 if a line says fail.\n",
    doctor_options,
    sizeof doctor_options / sizeof doctor_options[0],
    doctor_run,
};

enum verdict { VERDICT_OK, VERDICT_WARN, VERDICT_FAIL };

/* Findings so far. */
typedef struct findings {
    json_t *list;
    bool failed;
} findings;

static void find(findings *all, enum verdict verdict, const char *topic, const char *fix, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void find(findings *all, enum verdict verdict, const char *topic, const char *fix, const char *format, ...)
{
    static const char *const names[] = {"ok", "warn", "fail"};
    char text[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    all->failed = all->failed || verdict == VERDICT_FAIL;
    json_array_append_new(all->list, json_pack("{s:s, s:s, s:o, s:s}", "status", names[verdict], "topic", topic, "text",
                                               nbl_json_text(text), "fix", fix));
}

#if defined(__x86_64__)
static void check_cpu(findings *all)
{
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    if (avx2)
        find(all, VERDICT_OK, "cpu", "", "x86-64 with %s", avx512 ? "avx512 (vnni, vbmi)" : "avx2");
    else
        find(all, VERDICT_WARN, "cpu", "use a CPU with AVX2 for speed; results are the same", "x86-64 without avx2");
}
#else
static void check_cpu(findings *all)
{
    find(all, VERDICT_WARN, "cpu", "results are the same; only x86-64 has fast loops", "not x86-64");
}
#endif

static void check_threads(findings *all)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        find(all, VERDICT_WARN, "threads", "set NIBBLE_SIM_THREADS", "cannot read the CPU mask: %s", strerror(errno));
        return;
    }
    int usable = CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (usable < online)
        find(all, VERDICT_OK, "threads", "widen the CPU mask (taskset, cgroup) to use all", "%d of %ld CPUs usable",
             usable, online);
    else
        find(all, VERDICT_OK, "threads", "", "%d CPUs usable", usable);
}

/* A small problem through sim's cache, held against the fp64 reference. */
static void check_sim_result(findings *all, nbl_session *session)
{
    static const nbl_shape_options tiny = {
        .q_heads = 4, .kv_heads = 2, .k_dim = 64, .kv_tokens = 200, .q_tokens = 4, .seed = 1};
    static const double rel_l2_max = 0.05;
    const nbl_pipeline_options run = {.recipe = "kv8", .page_tokens = 16};
    nbl_problem problem = {0};
    nbl_pipeline_result result = {0};
    nbl_reference reference = {0};
    nbl_fault fault = {""};
    int code = nbl_problem_make(&tiny, "gaussian", &problem, &fault);
    if (code == NBL_EXIT_OK)
        code = nbl_pipeline_run(session, &problem, &run, &result, &fault);
    if (code == NBL_EXIT_OK)
        code = nbl_reference_compute(&problem, &reference, &fault);
    if (code == NBL_EXIT_OK) {
        nbl_accuracy accuracy = nbl_accuracy_measure(&problem, &reference, result.o, result.lse);
        bool good = accuracy.rel_l2 <= rel_l2_max;
        find(all, good ? VERDICT_OK : VERDICT_FAIL, "sim result",
             good ? "" : "reinstall; runtime and backend do not fit",
             "attention over 200 tokens in kv8: rel_l2 %.5f against fp64, at most %.2f allowed", accuracy.rel_l2,
             rel_l2_max);
    } else {
        find(all, VERDICT_FAIL, "sim result", "reinstall; runtime and backend do not fit", "%s", fault.text);
    }
    nbl_reference_free(&reference);
    nbl_pipeline_result_free(&result);
    nbl_problem_free(&problem);
}

/* How far the last backend tried got (enum nbl_load_phase). */
static uint32_t phase_reached(const nbl_session *session)
{
    nbl_load_attempt attempt;
    return nbl_session_last_attempt(session, &attempt) ? attempt.phase : NBL_PHASE_NAME;
}

/* A message about a device does not name the file. */
static void find_failure(findings *all, enum verdict verdict, const char *topic, const char *fix,
                         const nbl_session *session, const nbl_fault *fault)
{
    nbl_load_attempt attempt;
    bool device = nbl_session_last_attempt(session, &attempt) && attempt.phase == NBL_PHASE_DEVICE;
    find(all, verdict, topic, fix, "%s%s%s", device ? attempt.path : "", device ? ": " : "", fault->text);
}

/* What to do about a file that was found and cannot be loaded; the words are those of the runtime's messages. */
static const char *file_fix(const nbl_fault *fault)
{
    static const char *const fixes[][2] = {
        {"writable by everyone", "take that right away (chmod o-w), or install elsewhere and set NIBBLE_BACKEND_DIR"},
        {"truncated", "copy or install the file again: it is not whole"},
        {"damaged", "copy or install the file again: it is not whole"},
        {"is empty", "copy or install the file again: it is not whole"},
        {"its dependency", "install the library named, or put it where ld.so looks"},
        {"static TLS", "set GLIBC_TUNABLES as said, or build the simulator with -DNIBBLE_OPENMP=OFF"},
        {"is for machine", "install the package of this machine"},
        {"this CPU has", "install a backend built for this CPU"},
        {"backend ABI", "install runtime and backends of one version"},
        {"implements", "install runtime and backends of one version"},
    };
    for (size_t i = 0; i < sizeof fixes / sizeof fixes[0]; i++)
        if (strstr(fault->text, fixes[i][0]))
            return fixes[i][1];
    return "reinstall; runtime, backend and the libraries it needs do not fit";
}

static void check_sim(findings *all, const char *backend_dir)
{
    nbl_session session;
    nbl_fault fault = {""};
    if (nbl_session_probe(&session, "sim", backend_dir, &fault) == NBL_EXIT_OK) {
        find(all, VERDICT_OK, "sim", "", "%s: isa %s, %u threads", session.path, session.caps.isa,
             session.caps.threads);
        check_sim_result(all, &session);
    } else {
        const char *missing = secure_getenv("NIBBLE_BACKEND_DIR")
                                  ? "unset NIBBLE_BACKEND_DIR, or let it name the directory that has the file"
                                  : "install libnibble-backend-sim.so.1 in nibble/ beside libnibble, or set "
                                    "NIBBLE_BACKEND_DIR";
        const char *fix = phase_reached(&session) <= NBL_PHASE_FIND ? missing : file_fix(&fault);
        find_failure(all, VERDICT_FAIL, "sim", fix, &session, &fault);
    }
    nbl_session_close(&session);
}

static bool driver_version(char *text, int text_bytes)
{
    FILE *stream = fopen("/proc/driver/nvidia/version", "re");
    bool read = stream && fgets(text, text_bytes, stream);
    if (stream)
        fclose(stream);
    text[strcspn(text, "\n")] = '\0';
    return read;
}

static void check_driver(findings *all)
{
    char version[256] = "";
    if (!driver_version(version, (int)sizeof version))
        find(all, VERDICT_WARN, "nvidia driver", "install the NVIDIA driver to use cuda; sim needs none", "not loaded");
    else if (access("/dev/nvidiactl", R_OK | W_OK) != 0)
        find(all, VERDICT_WARN, "nvidia driver",
             "give this process /dev/nvidiactl and /dev/nvidia0 (container runtime, groups)",
             "%s, but /dev/nvidiactl: %s", version, strerror(errno));
    else
        find(all, VERDICT_OK, "nvidia driver", "", "%s", version);
}

/* What stands between here and a GPU: the file, what it needs, the driver, or the device. The backend's word on the
 * driver counts: in a container the kernel's half may be there without the library. */
static const char *cuda_fix(const nbl_session *session, const nbl_fault *fault)
{
    uint32_t phase = phase_reached(session);
    if (phase <= NBL_PHASE_FIND)
        return "build or install libnibble-backend-cuda.so.1, or use --backend sim";
    if (phase < NBL_PHASE_LOADED)
        return file_fix(fault);
    if (strstr(fault->text, "toolkit"))
        return "take the CUDA toolkit's stand-in for libcuda out of LD_LIBRARY_PATH, or use --backend sim";
    if (strstr(fault->text, "too old"))
        return "update the NVIDIA driver, or use --backend sim";
    if (strstr(fault->text, "driver"))
        return "install the NVIDIA driver, or use --backend sim";
    return "make a GPU visible (CUDA_VISIBLE_DEVICES, container runtime), or use --backend sim";
}

static void check_cuda(findings *all, const char *backend_dir)
{
    nbl_session session;
    nbl_fault fault = {""};
    if (nbl_session_probe(&session, "cuda", backend_dir, &fault) == NBL_EXIT_OK)
        find(all, VERDICT_OK, "cuda", "", "%s: %s, %s", session.path, session.caps.device_name, session.caps.isa);
    else
        find_failure(all, VERDICT_WARN, "cuda", cuda_fix(&session, &fault), &session, &fault);
    nbl_session_close(&session);
}

static void list_variables(findings *all)
{
    static const char *const known[] = {"NIBBLE_BACKEND",     "NIBBLE_BACKEND_DIR", "NIBBLE_LOG",
                                        "NIBBLE_SIM_THREADS", "NIBBLE_SIM_ISA",     "NIBBLE_SIM_PROFILE"};
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, "NIBBLE_", strlen("NIBBLE_")) != 0)
            continue;
        size_t length = strcspn(*entry, "=");
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            found = found || (strlen(known[i]) == length && strncmp(known[i], *entry, length) == 0);
        if (found)
            find(all, VERDICT_OK, "environment", "", "%.300s", *entry);
        else
            find(all, VERDICT_WARN, "environment", "unset it, or correct its name", "%.*s is not a variable of nibble",
                 (int)length, *entry);
    }
}

/* Loads and opens as any program would, so that the runtime itself judges the variables. */
static void check_environment(findings *all, const char *backend_dir)
{
    static const char sim_fix[] = "set NIBBLE_BACKEND=sim or use --backend sim";
    const nbl_session_options options = {.backend_dir = backend_dir};
    nbl_session session;
    nbl_fault fault = {""};
    bool asked = secure_getenv("NIBBLE_BACKEND") != NULL;
    list_variables(all);
    int code = nbl_session_try(&session, &options, &fault);
    nbl_load_attempt last;
    bool known = nbl_session_last_attempt(&session, &last);
    if (code == NBL_EXIT_OK)
        find(all, VERDICT_OK, "default backend", "", "%s opens%s", session.backend,
             asked ? ", as NIBBLE_BACKEND says" : "");
    else if (known && last.phase == NBL_PHASE_DEVICE)
        find(all, asked ? VERDICT_FAIL : VERDICT_WARN, "default backend", sim_fix, "%s loads but cannot be opened: %s",
             last.name, fault.text);
    else if (asked || (known && last.status == NBL_E_ENV))
        find(all, VERDICT_FAIL, "environment", "correct or unset the variable", "%s", fault.text);
    else
        find(all, VERDICT_WARN, "default backend", sim_fix, "%s", fault.text);
    nbl_session_close(&session);
}

static void print_findings(const json_t *list)
{
    size_t index;
    json_t *item;
    json_array_foreach (list, index, item) {
        const char *fix = json_string_value(json_object_get(item, "fix"));
        printf("%-4s  %s: %s%s%s\n", json_string_value(json_object_get(item, "status")),
               json_string_value(json_object_get(item, "topic")), json_string_value(json_object_get(item, "text")),
               fix[0] ? " -> " : "", fix);
    }
}

static int doctor_run(int argc, char **argv, nbl_fault *fault)
{
    doctor_values values = {0};
    const nbl_api_v1 *api = NULL;
    int code = nbl_options_parse(&nbl_command_doctor, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_check(&(nbl_session_options){.backend_dir = values.backend_dir}, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_api(&api, fault);
    if (code != NBL_EXIT_OK)
        return code;
    findings all = {.list = json_array()};
    find(&all, VERDICT_OK, "runtime", "", "nibble %s: %s", NIBBLE_VERSION, api->build_info());
    check_cpu(&all);
    check_threads(&all);
    check_environment(&all, values.backend_dir);
    check_sim(&all, values.backend_dir);
    check_driver(&all);
    check_cuda(&all, values.backend_dir);
    if (values.json) {
        code = nbl_json_print(all.list, fault);
    } else {
        print_findings(all.list);
        json_decref(all.list);
    }
    if (code == NBL_EXIT_OK && all.failed)
        code = NBL_EXIT_FAILED;
    return code;
}
