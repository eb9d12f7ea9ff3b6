/* SPDX-License-Identifier: Apache-2.0 */
/* The tool from outside: exit codes, messages, JSON, files. */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

TestSuite(tool, .timeout = 120);

#define SHAPE_SMALL "--hq", "4", "--hkv", "2", "--d", "32", "--kv", "300", "--nq", "20"
#define SHAPE_PLAN "--hq", "4", "--hkv", "2", "--d", "64", "--dv", "80", "--kv", "777", "--page", "48"
#define KV8_PLAIN "kv8,center=0" /* no centre: it depends on the first append, and forbids a cap */
#define ACCURACY_KEYS "rel_l2 gain cos_mean cos_min lse_err"

static void assert_run(tool_result result, int exit_code, const char *err)
{
    cr_assert(result.exit_code == exit_code, "exit %d, wanted %d; stderr: %s", result.exit_code, exit_code, result.err);
    cr_assert(strcmp(result.err, err) == 0, "stderr: %s\nwanted: %s", result.err, err);
    tool_free(&result);
}

/* stderr is one line that starts as given; stdout is empty. */
static void assert_refused(tool_result result, int exit_code, const char *err_start)
{
    cr_assert(result.exit_code == exit_code, "exit %d, wanted %d; stderr: %s", result.exit_code, exit_code, result.err);
    cr_assert(strncmp(result.err, err_start, strlen(err_start)) == 0, "stderr: %s\nwanted: %s", result.err, err_start);
    const char *line_end = strchr(result.err, '\n');
    cr_assert(line_end != NULL && line_end[1] == '\0', "not one line: %s", result.err);
    cr_assert(result.out[0] == '\0', "stdout is not empty: %s", result.out);
    tool_free(&result);
}

/* ------------------------------------------------------------------------------------------------ usage */

Test(tool, help_and_version)
{
    static const char *const commands[] = {"info", "doctor", "plan", "attend", "compare", "tune", "bench", "serve-sim"};
    tool_result top = TOOL("--help");
    cr_assert(top.exit_code == 0 && top.err[0] == '\0', "exit %d: %s", top.exit_code, top.err);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        cr_assert(strstr(top.out, commands[i]) != NULL, "%s is not listed", commands[i]);
        tool_result help = TOOL(commands[i], "--help");
        cr_assert(help.exit_code == 0 && help.err[0] == '\0', "%s --help: exit %d: %s", commands[i], help.exit_code,
                  help.err);
        cr_assert(strstr(help.out, "--json") != NULL, "%s --help lacks --json", commands[i]);
        cr_assert(strstr(help.out, "Exit status: 0 ok, 1 ") != NULL, "%s --help lacks the exit codes", commands[i]);
        tool_free(&help);
    }
    tool_free(&top);
    tool_result option = TOOL("plan", "--help"), word = TOOL("help", "plan");
    cr_assert(word.exit_code == 0 && strcmp(word.out, option.out) == 0, "help plan: %s%s", word.out, word.err);
    tool_free(&option);
    tool_free(&word);
    assert_run(TOOL("help", "frobnicate"), 2, "nibble: unknown command \"frobnicate\" (see nibble --help)\n");
    tool_result version = TOOL("--version");
    cr_assert(version.exit_code == 0 && strncmp(version.out, "nibble ", 7) == 0, "version: %s", version.out);
    tool_free(&version);
    tool_result nothing = tool_run(NULL, (const char *const[]){NULL});
    cr_assert(nothing.exit_code == 2 && strncmp(nothing.err, "usage: nibble", 13) == 0, "no command: %s", nothing.err);
    tool_free(&nothing);
}

Test(tool, usage_errors_name_the_option)
{
    assert_run(TOOL("frobnicate"), 2, "nibble: unknown command \"frobnicate\" (see nibble --help)\n");
    assert_run(TOOL("plan", "--bogus"), 2, "nibble: --bogus: unknown or ambiguous option (see nibble plan --help)\n");
    assert_run(TOOL("plan", "extra"), 2, "nibble: \"extra\": not an option (see nibble plan --help)\n");
    assert_run(TOOL("plan", "--kv"), 2, "nibble: --kv: a value is missing\n");
    assert_run(TOOL("plan", "--json=1"), 2, "nibble: --json: takes no value\n");
    assert_run(TOOL("plan", "--kv", "12x"), 2, "nibble: --kv: \"12x\" is not a whole number from 1 to 16777216\n");
    assert_run(TOOL("plan", "--kv", "0"), 2, "nibble: --kv: \"0\" is not a whole number from 1 to 16777216\n");
    assert_run(TOOL("plan", "--kv", "-1"), 2, "nibble: --kv: \"-1\" is not a whole number from 1 to 16777216\n");
    assert_run(TOOL("plan", "--kv", "99999999999999999999"), 2,
               "nibble: --kv: \"99999999999999999999\" is not a whole number from 1 to 16777216\n");
    assert_run(TOOL("plan", "--batch", "65537"), 2,
               "nibble: --batch: \"65537\" is not a whole number from 1 to 65536\n");
    assert_run(TOOL("plan", "--page", "1025"), 2, "nibble: --page: \"1025\" is not a whole number from 1 to 1024\n");
    assert_run(TOOL("plan", "--recipe", ""), 2, "nibble: --recipe: the value is empty\n");
    assert_run(TOOL("plan", "--d", "17"), 2,
               "nibble: --d: head dimension 17 of Q and K; multiples of 8 from 16 to 576 are allowed\n");
    assert_run(TOOL("plan", "--hq", "7", "--hkv", "2"), 2,
               "nibble: --hq: 7 query heads are not a multiple of 2 kv heads\n");
    assert_run(TOOL("attend", "--sm-scale", "nan"), 2,
               "nibble: --sm-scale: \"nan\" is not a number from 5.96046e-08 to 65536\n");
    assert_run(
        TOOL("attend", "--generate", "cauchy"), 2,
        "nibble: --generate: unknown distribution \"cauchy\" (known: gaussian, outliers, sinks, student-t, outlier-30, "
        "outlier-100, log-normal)\n");
    assert_run(TOOL("attend"), 2, "nibble: --input, --q --k --v, --generate: exactly one source is needed, 0 given\n");
    assert_run(TOOL("attend", "--generate", "gaussian", "--input", "x"), 2,
               "nibble: --input, --q --k --v, --generate: exactly one source is needed, 2 given\n");
    assert_run(TOOL("attend", "--q", "x", "--v", "y"), 2, "nibble: --k: missing; --q, --k and --v go together\n");
    assert_run(TOOL("attend", "--generate", "gaussian", "--layer", "1"), 2, "nibble: --layer: needs --input\n");
    assert_run(TOOL("attend", "--generate", "gaussian", "--out", "x.bin"), 2,
               "nibble: --out: \"x.bin\" ends neither in .npy nor in .safetensors\n");
    assert_run(TOOL("attend", "--generate", "gaussian", "--nq", "9", "--kv", "8"), 2,
               "nibble: --nq: 9 query tokens; 1 to 8 (the number of keys) are allowed\n");
    assert_run(TOOL("bench", "--dv", "20"), 2,
               "nibble: --dv: head dimension 20 of V; multiples of 8 from 16 to 512 are allowed\n");
    assert_run(TOOL("compare"), 2, "nibble: --input, --generate: exactly one source is needed, none given\n");
    assert_run(TOOL("compare", "--generate", "all", "--csv", "--json"), 2, "nibble: --csv: excludes --json\n");
    assert_run(TOOL("compare", "--generate", "gaussian", "--lengths", "1,,2"), 2,
               "nibble: --lengths: \"1,,2\" has an empty item\n");
    assert_run(TOOL("bench", "--op", "multiply"), 2,
               "nibble: --op: unknown operation \"multiply\" (known: attend, append, append_coded, prefill, "
               "gather, copy_pages, transcode)\n");
}

Test(tool, errors_found_with_a_backend_name_the_option_too)
{
    assert_refused(TOOL("attend", "--generate", "gaussian", "--recipe", "kv5"), 2, "nibble: --recipe: ");
    assert_refused(TOOL("plan", "--recipe", "kv4,kv5"), 2, "nibble: --recipe: ");
    assert_refused(TOOL("bench", "--recipe", "kv5"), 2, "nibble: --recipe: ");
    assert_refused(TOOL("bench", "--predict", "h200", "--recipe", "kv5"), 2, "nibble: --recipe: ");
    assert_refused(TOOL("compare", "--generate", "gaussian", "--recipes", "kv4,kv5"), 2,
                   "nibble: --recipes: recipe \"kv5\"");
    assert_run(TOOL("compare", "--generate", "gaussian", "--kv", "64", "--lengths", "65"), 2,
               "nibble: --lengths: \"65\" is not a whole number from 1 to 64\n");
    assert_refused(TOOL("attend", "--generate", "gaussian", "--isa", "mmx"), 2, "nibble: --isa: ");
    assert_run(TOOL("attend", "--generate", "gaussian", "--soft-cap", "5"), 2,
               "nibble: --soft-cap: recipe kv4 centres K, which a cap forbids (NUM 4.3); add center=0 to --recipe\n");
}

/* The list in the help texts is the runtime's, less its spaces. */
Test(tool, help_lists_the_recipes_there_are)
{
    static const char *const commands[] = {"attend", "compare", "plan", "tune", "bench"};
    tool_result refused = TOOL("bench", "--predict", "h200", "--recipe", "kv5");
    const char *begin = strstr(refused.err, "(known: ");
    char list[256] = "";
    cr_assert(begin != NULL && strchr(begin, ';') != NULL, "%s", refused.err);
    for (const char *at = begin + strlen("(known: "); *at != ';' && strlen(list) + 1 < sizeof list; at++) {
        if (*at != ' ')
            list[strlen(list)] = *at;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        tool_result help = TOOL(commands[i], "--help");
        cr_assert(strstr(help.out, list) != NULL, "%s: %s is not in: %s", commands[i], list, help.out);
        tool_free(&help);
    }
    tool_free(&refused);
}

Test(tool, sizes_of_generated_problems_need_generate)
{
    static const char *const options[][2] = {{"--hq", "8"},  {"--hkv", "2"}, {"--d", "128"}, {"--dv", "128"},
                                             {"--kv", "64"}, {"--nq", "16"}, {"--seed", "1"}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const char *name = options[i][0], *value = options[i][1];
        char text[64];
        snprintf(text, sizeof text, "nibble: %s: needs --generate\n", name);
        assert_run(TOOL("attend", "--input", "x", name, value), 2, text);
        assert_run(TOOL("attend", "--q", "x", "--k", "y", "--v", "z", name, value), 2, text);
        assert_run(TOOL("compare", "--input", "x", name, value), 2, text);
    }
}

Test(tool, query_tokens_are_as_many_as_there_are_keys)
{
    static const struct {
        const char *kv;
        double nq;
    } cases[] = {{"1", 1}, {"5", 5}, {"16", 16}, {"17", 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *document = tool_json(TOOL("attend", "--json", "--generate", "gaussian", "--kv", cases[i].kv));
        cr_assert(number_at(document, "shape.nq") == cases[i].nq, "kv %s: nq %g", cases[i].kv,
                  number_at(document, "shape.nq"));
        json_decref(document);
        json_decref(tool_json(TOOL("compare", "--json", "--generate", "sinks", "--kv", cases[i].kv)));
    }
    json_t *list = tool_json(TOOL("bench", "--json", "--kv", "20", "--runs", "1"));
    cr_assert(number_at(list, "0.nq") == 1.0, "bench: nq %g", number_at(list, "0.nq"));
    json_decref(list);
}

Test(tool, output_that_cannot_be_written_is_a_failure)
{
    char command[1024];
    snprintf(command, sizeof command, "%s plan > /dev/full 2> %s", NIBBLE_TOOL, scratch("err"));
    int status = system(command);
    size_t size = 0;
    uint8_t *text = read_bytes(scratch("err"), &size);
    cr_assert(status == 1 << 8, "status %d", status);
    cr_assert(size == 40 && memcmp(text, "nibble: cannot write to standard output\n", 40) == 0, "%.*s", (int)size,
              (const char *)text);
    free(text);
}

/* ------------------------------------------------------------------------------------------------ backends */

Test(tool, info_lists_every_backend_and_the_choice)
{
    json_t *document = tool_json(TOOL("info", "--json"));
    assert_keys(document, "runtime backends chosen chosen_reason");
    assert_keys(json_object_get(document, "runtime"), "version abi numerics layout build");
    assert_keys(json_array_get(json_object_get(document, "backends"), 0),
                "name path status phase reason description versions");
    cr_assert(strcmp(text_at(document, "backends.0.name"), "cuda") == 0, "cuda comes first");
    cr_assert(strcmp(text_at(document, "backends.1.name"), "sim") == 0, "sim comes second");
    cr_assert(strcmp(text_at(document, "backends.1.status"), "NBL_OK") == 0, "sim: %s",
              text_at(document, "backends.1.reason"));
    cr_assert(strstr(text_at(document, "backends.1.path"), "libnibble-backend-sim.so.1") != NULL, "path of sim");
    cr_assert(strcmp(text_at(document, "chosen.name"), "sim") == 0, "chosen: %s", text_at(document, "chosen.name"));
    assert_keys(json_object_get(json_object_get(document, "chosen"), "caps"),
                "device_name isa formats k_dim_max v_dim_max page_tokens_max kv_tokens_max memory_bytes threads stream "
                "deterministic graph_capture");
    json_decref(document);
}

/* Who chose sim, for all the ways to choose it; the other backend was not. */
Test(tool, info_says_who_chose)
{
    static const struct {
        const char *variable, *option;
        const char *reason;
    } cases[] = {
        {"NIBBLE_BACKEND=sim", NULL, "chosen by NIBBLE_BACKEND"},
        {"NIBBLE_BACKEND=nope", "--backend=sim", "chosen by --backend"},
        {"NIBBLE_LOG=error", "--backend=sim", "chosen by --backend"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *document = tool_json(tool_run((const char *const[]){cases[i].variable, NULL},
                                              (const char *const[]){"info", "--json", cases[i].option, NULL}));
        cr_assert(strcmp(text_at(document, "chosen_reason"), cases[i].reason) == 0, "case %zu: %s", i,
                  text_at(document, "chosen_reason"));
        cr_assert(strcmp(text_at(document, "backends.1.reason"), cases[i].reason) == 0, "case %zu: sim: %s", i,
                  text_at(document, "backends.1.reason"));
        cr_assert(strstr(text_at(document, "backends.0.reason"), "chosen by") == NULL, "case %zu: cuda: %s", i,
                  text_at(document, "backends.0.reason"));
        cr_assert(json_array_size(json_object_get(document, "backends")) == 2, "case %zu", i);
        json_decref(document);
    }
    json_t *none = tool_json(
        tool_run((const char *const[]){"NIBBLE_BACKEND=nope", NULL}, (const char *const[]){"info", "--json", NULL}));
    cr_assert(strcmp(text_at(none, "backends.1.reason"), "not chosen") == 0, "%s", text_at(none, "backends.1.reason"));
    cr_assert(strcmp(text_at(none, "backends.2.name"), "nope") == 0, "an entry has no name");
    json_decref(none);
}

Test(tool, wrong_session_options_are_wrong_usage)
{
    static const char *const commands[][5] = {
        {"info"}, {"attend", "--generate", "gaussian"}, {"compare", "--generate", "gaussian"}, {"bench"}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        static const char *const cases[][3] = {
            {"--isa", "foo", "nibble: --isa: sim: isa is \"foo\""},
            {"--device", "1", "nibble: --device: sim: device ordinal 1"},
            {"--backend-dir", "rel", "nibble: --backend-dir: \"rel\" is not an absolute directory\n"},
            {"--backend-dir", "/nowhere", "nibble: --backend-dir: \"/nowhere\": No such file"},
            {"--backend-dir", "/dev/null", "nibble: --backend-dir: \"/dev/null\" is not a directory\n"}};
        for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++) {
            const char *arguments[8] = {cases[j][0]};
            size_t count = 0;
            for (; commands[i][count]; count++)
                arguments[count] = commands[i][count];
            arguments[count++] = cases[j][0];
            arguments[count++] = cases[j][1];
            assert_refused(tool_run((const char *const[]){"NIBBLE_BACKEND=sim", NULL}, arguments), 2, cases[j][2]);
        }
    }
}

Test(tool, info_without_a_usable_backend)
{
    static const char *const variables[] = {"NIBBLE_BACKEND=nope", NULL};
    json_t *document = tool_json(tool_run(variables, (const char *const[]){"info", "--json", NULL}));
    cr_assert(json_is_null(json_object_get(document, "chosen")), "something was chosen");
    cr_assert(strstr(text_at(document, "chosen_reason"), "nope") != NULL, "%s", text_at(document, "chosen_reason"));
    cr_assert(json_array_size(json_object_get(document, "backends")) == 3, "cuda, sim and nope are to be listed");
    json_decref(document);
    tool_result asked = TOOL("info", "--backend", "nope");
    cr_assert(asked.exit_code == 3, "exit %d", asked.exit_code);
    cr_assert(strncmp(asked.err, "nibble: --backend: ", 19) == 0, "%s", asked.err);
    tool_free(&asked);
    assert_refused(TOOL("attend", "--generate", "gaussian", "--backend", "nope"), 3, "nibble: --backend: ");
    assert_refused(tool_run(variables, (const char *const[]){"attend", "--generate", "gaussian", NULL}), 3, "nibble: ");
}

Test(tool, options_go_before_the_environment)
{
    static const char *const variables[] = {"NIBBLE_BACKEND=nope", "NIBBLE_SIM_THREADS=2", "NIBBLE_SIM_ISA=avx2", NULL};
    json_t *document = tool_json(tool_run(variables, (const char *const[]){"info", "--json", "--backend", "sim",
                                                                           "--threads", "1", "--isa", "scalar", NULL}));
    cr_assert(strcmp(text_at(document, "chosen.name"), "sim") == 0, "backend");
    cr_assert(number_at(document, "chosen.caps.threads") == 1.0, "threads");
    cr_assert(strcmp(text_at(document, "chosen.caps.isa"), "scalar") == 0, "isa");
    json_decref(document);
}

Test(tool, doctor_finds_a_working_sim)
{
    json_t *list = tool_json(TOOL("doctor", "--json"));
    size_t index;
    json_t *item;
    int sim = 0, result = 0;
    json_array_foreach (list, index, item) {
        assert_keys(item, "status topic text fix");
        const char *status = text_at(item, "status"), *topic = text_at(item, "topic");
        cr_assert(strcmp(status, "ok") == 0 || strcmp(status, "warn") == 0, "%s: %s", topic, text_at(item, "text"));
        cr_assert(strcmp(status, "ok") == 0 || text_at(item, "fix")[0] != '\0', "%s: a warning without a fix", topic);
        sim += strcmp(topic, "sim") == 0 && strcmp(status, "ok") == 0;
        result += strcmp(topic, "sim result") == 0 && strcmp(status, "ok") == 0;
    }
    cr_assert(sim == 1 && result == 1, "sim was not tried");
    json_decref(list);
}

Test(tool, doctor_judges_variables)
{
    static const struct {
        const char *variable;
        int exit_code;
        const char *line; /* part of the output */
    } cases[] = {
        {"NIBBLE_LOG=loud", 1, "fail  environment: NIBBLE_LOG is \"loud\""},
        {"NIBBLE_SIM_THREADS=0", 1, "fail  environment: NIBBLE_SIM_THREADS is \"0\""},
        {"NIBBLE_BACKEND=", 1, "fail  environment: "},
        {"NIBBLE_BACKEND=nope", 1, "fail  environment: "},
        {"NIBBLE_BAKEND=sim", 0, "warn  environment: NIBBLE_BAKEND is not a variable of nibble -> "},
        {"NIBBLE_BACKEND=sim", 0, "ok    environment: NIBBLE_BACKEND=sim"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const variables[] = {cases[i].variable, NULL};
        tool_result result = tool_run(variables, (const char *const[]){"doctor", NULL});
        cr_assert(result.exit_code == cases[i].exit_code, "%s: exit %d: %s%s", cases[i].variable, result.exit_code,
                  result.out, result.err);
        cr_assert(strstr(result.out, cases[i].line) != NULL, "%s: %s", cases[i].variable, result.out);
        tool_free(&result);
    }
}

/* The text of the one line of a topic. */
static const char *doctor_text(const json_t *list, const char *topic)
{
    size_t index;
    json_t *item;
    const char *text = NULL;
    json_array_foreach (list, index, item) {
        if (strcmp(text_at(item, "topic"), topic) != 0)
            continue;
        cr_assert(text == NULL, "%s twice", topic);
        text = text_at(item, "text");
    }
    cr_assert(text != NULL, "no line %s", topic);
    return text;
}

Test(tool, doctor_tries_each_backend_itself)
{
    static const char *const variables[] = {"NIBBLE_BACKEND=sim", "NIBBLE_BACKEND=cuda", "NIBBLE_BACKEND=bogus",
                                            "NIBBLE_BACKEND="};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        tool_result result =
            tool_run((const char *const[]){variables[i], NULL}, (const char *const[]){"doctor", "--json", NULL});
        json_t *list = json_loads(result.out, 0, NULL);
        cr_assert(list != NULL && result.err[0] == '\0', "%s: %s%s", variables[i], result.out, result.err);
        const char *sim = doctor_text(list, "sim"), *cuda = doctor_text(list, "cuda");
        cr_assert(strstr(sim, "libnibble-backend-sim.so.1: isa ") != NULL, "%s: sim: %s", variables[i], sim);
        cr_assert(strstr(cuda, "libnibble-backend-cuda.so.1") != NULL, "%s: cuda: %s", variables[i], cuda);
        cr_assert(strstr(cuda, "backend-sim") == NULL, "%s: cuda: %s", variables[i], cuda);
        if (i == 0)
            cr_assert(strncmp(doctor_text(list, "default backend"), "sim opens", 9) == 0, "the default was not opened");
        json_decref(list);
        tool_free(&result);
    }
    assert_run(TOOL("doctor", "--backend-dir", "rel"), 2,
               "nibble: --backend-dir: \"rel\" is not an absolute directory\n");
}

Test(tool, doctor_tells_a_missing_file_from_a_bad_one)
{
    static const char *const lines[] = {"warn  cuda: backend \"cuda\": no libnibble-backend-cuda.so.1 in: ",
                                        "-> build or install libnibble-backend-cuda.so.1, or use --backend sim\n"};
    char directory[256];
    snprintf(directory, sizeof directory, "%s", scratch("libnibble-backend-cuda.so.1"));
    *strrchr(directory, '/') = '\0';
    tool_result missing = TOOL("doctor", "--backend-dir", directory);
    if (strstr(missing.out, lines[0])) /* a plugin beside the runtime under test is found as well */
        cr_assert(strstr(missing.out, lines[1]) != NULL, "%s", missing.out);
    tool_free(&missing);
    write_bytes(scratch("libnibble-backend-cuda.so.1"), "no ELF", 6);
    tool_result bad = TOOL("doctor", "--backend-dir", directory);
    cr_assert(strstr(bad.out, "warn  cuda: ") != NULL, "%s", bad.out);
    cr_assert(strstr(bad.out, "-> reinstall; runtime, backend and the libraries it needs do not fit\n") != NULL, "%s",
              bad.out);
    tool_free(&bad);
}

/* ------------------------------------------------------------------------------------------------ plan */

Test(tool, plan_adds_up)
{
    json_t *document = tool_json(TOOL("plan", "--json", "--layers", "3", "--hkv", "2", "--hq", "2", "--d", "64", "--kv",
                                      "1000", "--batch", "5"));
    assert_keys(document, "shape bf16_bytes rows");
    assert_keys(json_object_get(document, "shape"), "layers hq hkv d dv kv batch page");
    cr_assert(number_at(document, "bf16_bytes") == 2.0 * 3 * 5 * 1000 * 2 * 128, "bf16_bytes");
    size_t index;
    json_t *row;
    json_array_foreach (json_object_get(document, "rows"), index, row) {
        assert_keys(row, "recipe code_bytes scale_bytes center_bytes metadata_bytes workspace_bytes total_bytes "
                         "bits_per_element of_bf16");
        double sum = number_at(row, "code_bytes") + number_at(row, "scale_bytes") + number_at(row, "center_bytes") +
                     number_at(row, "metadata_bytes") + number_at(row, "workspace_bytes");
        cr_assert(number_at(row, "total_bytes") == sum, "%s: parts sum to %.0f", text_at(row, "recipe"), sum);
    }
    cr_assert(index == 6, "%zu recipes and policies", index);
    json_decref(document);
}

Test(tool, plan_grows_with_layers_batch_and_length)
{
    static const char *const dimensions[][3] = {
        {"--layers", "1", "3"}, {"--batch", "1", "3"}, {"--kv", "1024", "3072"}};
    for (size_t i = 0; i < sizeof dimensions / sizeof dimensions[0]; i++) {
        json_t *one =
            tool_json(TOOL("plan", "--json", "--layers", "1", "--kv", "1024", dimensions[i][0], dimensions[i][1]));
        json_t *three =
            tool_json(TOOL("plan", "--json", "--layers", "1", "--kv", "1024", dimensions[i][0], dimensions[i][2]));
        double ratio = number_at(three, "rows.4.code_bytes") / number_at(one, "rows.4.code_bytes");
        cr_assert(number_at(three, "bf16_bytes") == 3.0 * number_at(one, "bf16_bytes"), "%s: bf16", dimensions[i][0]);
        cr_assert(fabs(ratio - 3.0) < 0.2, "%s: codes grow by %g, not 3", dimensions[i][0], ratio);
        json_decref(one);
        json_decref(three);
    }
}

Test(tool, plan_equals_what_attend_allocates)
{
    static const char *const recipes[] = {"qk4v8", "mxkv4", "kv4", "k4v8", "kv8", "kv4,center=0,sinks=0"};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        json_t *plan = tool_json(TOOL("plan", "--json", "--layers", "1", SHAPE_PLAN, "--recipe", recipes[i]));
        json_t *real = tool_json(
            TOOL("attend", "--json", "--generate", "gaussian", "--nq", "1", SHAPE_PLAN, "--recipe", recipes[i]));
        cr_assert(number_at(plan, "rows.0.total_bytes") == number_at(real, "memory.total_bytes"), "%s: %.0f and %.0f",
                  recipes[i], number_at(plan, "rows.0.total_bytes"), number_at(real, "memory.total_bytes"));
        cr_assert(number_at(plan, "bf16_bytes") == number_at(real, "memory.bf16_bytes"), "%s: bf16", recipes[i]);
        json_decref(plan);
        json_decref(real);
    }
}

/* ------------------------------------------------------------------------------------------------ attend */

Test(tool, attend_reports_accuracy_memory_and_time)
{
    static const struct {
        const char *recipe;
        double rel_l2_max; /* twice what this seed gives */
        double bits_max;
    } cases[] = {
        {"kv8", 0.04, 9.0}, {"k4v8", 0.2, 7.5}, {"kv4", 0.25, 6.0}, {"mxkv4", 0.35, 6.0}, {"qk4v8", 0.35, 7.5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *document =
            tool_json(TOOL("attend", "--json", "--generate", "gaussian", "--kv", "1024", "--recipe", cases[i].recipe));
        assert_keys(document, "backend recipe source layer shape input accuracy memory time decode");
        assert_keys(json_object_get(document, "shape"), "nq hq hkv d dv kv window");
        assert_keys(json_object_get(document, "accuracy"), ACCURACY_KEYS);
        assert_keys(json_object_get(document, "memory"), "used_bytes total_bytes bf16_bytes bits_per_element");
        assert_keys(json_object_get(document, "time"), "append_ms attend_ms");
        cr_assert(json_is_null(json_object_get(document, "decode")), "nothing was decoded");
        double rel_l2 = number_at(document, "accuracy.rel_l2"), bits = number_at(document, "memory.bits_per_element");
        cr_assert(rel_l2 > 0.0 && rel_l2 < cases[i].rel_l2_max, "%s: rel_l2 %g", cases[i].recipe, rel_l2);
        cr_assert(bits > 4.0 && bits < cases[i].bits_max, "%s: %g bits", cases[i].recipe, bits);
        cr_assert(fabs(number_at(document, "accuracy.gain") - 1.0) < 0.1, "%s: gain", cases[i].recipe);
        json_decref(document);
    }
}

/* Runs attend with extra arguments on the small problem and returns the bytes of --out. */
static uint8_t *attend_out(const char *const *extra, size_t *out_size)
{
    const char *arguments[48] = {"attend", "--generate", "gaussian", SHAPE_SMALL, "--out", scratch("o.npy")};
    size_t count = 15;
    for (size_t i = 0; extra[i]; i++)
        arguments[count++] = extra[i];
    arguments[count] = NULL;
    tool_result result = tool_run((const char *const[]){"NIBBLE_BACKEND=sim", NULL}, arguments);
    cr_assert(result.exit_code == 0, "exit %d: %s", result.exit_code, result.err);
    tool_free(&result);
    return read_bytes(scratch("o.npy"), out_size);
}

static int same_output(const char *const *one, const char *const *two)
{
    size_t one_size = 0, two_size = 0;
    uint8_t *one_bytes = attend_out(one, &one_size), *two_bytes = attend_out(two, &two_size);
    int same = one_size == two_size && memcmp(one_bytes, two_bytes, one_size) == 0;
    free(one_bytes);
    free(two_bytes);
    return same;
}

#define EXTRA(...) ((const char *const[]){__VA_ARGS__, NULL})
#define PLAIN ((const char *const[]){NULL})

Test(tool, output_does_not_depend_on_how_the_work_is_cut)
{
    cr_assert(same_output(PLAIN, EXTRA("--threads", "1")), "threads change bytes");
    cr_assert(same_output(PLAIN, EXTRA("--isa", "scalar")), "isa changes bytes");
    cr_assert(same_output(EXTRA("--recipe", KV8_PLAIN), EXTRA("--recipe", KV8_PLAIN, "--prefill-chunk", "7")),
              "chunks change bytes");
    cr_assert(same_output(EXTRA("--recipe", KV8_PLAIN), EXTRA("--recipe", KV8_PLAIN, "--page", "5")),
              "pages change bytes");
    cr_assert(same_output(PLAIN, EXTRA("--seed", "1")), "seed 1 is the default");
}

Test(tool, options_reach_the_computation)
{
    cr_assert(!same_output(PLAIN, EXTRA("--seed", "2")), "seed");
    cr_assert(!same_output(PLAIN, EXTRA("--recipe", KV8_PLAIN)), "recipe");
    cr_assert(!same_output(PLAIN, EXTRA("--window", "17")), "window");
    cr_assert(!same_output(PLAIN, EXTRA("--sm-scale", "0.5")), "sm-scale");
    cr_assert(!same_output(PLAIN, EXTRA("--sink", "1.5")), "sink");
    cr_assert(!same_output(EXTRA("--recipe", KV8_PLAIN), EXTRA("--recipe", KV8_PLAIN, "--soft-cap", "0.5")),
              "soft-cap");
    cr_assert(same_output(PLAIN, EXTRA("--window", "300")), "a window as long as the sequence hides nothing");
    cr_assert(!same_output(PLAIN, EXTRA("--window", "299")), "a window shorter by one hides key 0 from the last row");
}

Test(tool, options_reach_reference_and_cache_alike)
{
    static const char *const cases[][2] = {
        {"--window", "17"}, {"--sm-scale", "0.5"}, {"--sink", "3"}, {"--soft-cap", "2"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *document = tool_json(TOOL("attend", "--json", "--generate", "gaussian", SHAPE_SMALL, "--recipe",
                                          KV8_PLAIN, cases[i][0], cases[i][1]));
        cr_assert(number_at(document, "accuracy.rel_l2") < 0.06, "%s: rel_l2 %g", cases[i][0],
                  number_at(document, "accuracy.rel_l2"));
        cr_assert(number_at(document, "accuracy.lse_err") < 0.1, "%s: lse_err %g", cases[i][0],
                  number_at(document, "accuracy.lse_err"));
        json_decref(document);
    }
}

Test(tool, decode_equals_prefill)
{
    static const char *const recipes[] = {"qk4v8", "mxkv4", "kv4", "k4v8", "kv8", "bf16", "fp8", "nvfp4", "mpfa"};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        json_t *document =
            tool_json(TOOL("attend", "--json", "--generate", "gaussian", SHAPE_SMALL, "--nq", "300", "--recipe",
                           recipes[i], "--prefill-chunk", "100", "--decode", "40", "--window", "128"));
        cr_assert(number_at(document, "decode.rows") == 40.0, "%s: rows", recipes[i]);
        cr_assert(number_at(document, "decode.differ") == 0.0, "%s: %g rows differ", recipes[i],
                  number_at(document, "decode.differ"));
        json_decref(document);
    }
}

Test(tool, a_missed_bound_fails)
{
    tool_result result = TOOL("attend", "--generate", "gaussian", SHAPE_SMALL, "--max-error", "0.0001");
    cr_assert(result.exit_code == 1, "exit %d", result.exit_code);
    cr_assert(strncmp(result.err, "nibble: --max-error: rel_l2 ", 28) == 0, "%s", result.err);
    tool_free(&result);
    tool_result kept = TOOL("attend", "--generate", "gaussian", SHAPE_SMALL, "--max-error", "0.5");
    assert_run(kept, 0, "");
    tool_result compared = TOOL("compare", "--generate", "gaussian", SHAPE_SMALL, "--max-error", "0.0001");
    cr_assert(compared.exit_code == 1, "exit %d", compared.exit_code);
    tool_free(&compared);
}

/* ------------------------------------------------------------------------------------------------ files */

/* A capture of two layers: 4 query rows of 2 heads, 40 keys of 1 head, dimension 16, in one dtype. */
static void write_capture(const char *path, const char *dtype, const char *metadata)
{
    enum { Q = 4 * 2 * 16, K = 40 * 16 };
    char header[2048];
    static uint8_t data[4 * (2 * (Q + 2 * K))];
    size_t width = strcmp(dtype, "F32") == 0 ? 4 : 2, at = 0;
    int length = snprintf(header, sizeof header, "{\"__metadata__\":{%s}", metadata);
    for (unsigned layer = 3; layer <= 7; layer += 4) {
        for (int part = 0; part < 3; part++) {
            size_t count = part == 0 ? Q : K;
            length +=
                snprintf(header + length, sizeof header - (size_t)length,
                         ",\"layers.%u.%c\":{\"dtype\":\"%s\",\"shape\":[%d,%d,16],\"data_offsets\":[%zu,%zu]}", layer,
                         "qkv"[part], dtype, part == 0 ? 4 : 40, part == 0 ? 2 : 1, at, at + count * width);
            for (size_t i = 0; i < count; i++, at += width) {
                float value = sample(layer * 3 + (unsigned)part, i);
                uint32_t bits;
                memcpy(&bits, &value, sizeof bits);
                uint16_t bf16 = (uint16_t)(bits >> 16);
                uint32_t exponent = (bits >> 23 & 0xffu);
                uint16_t half = (uint16_t)(value == 0.0f ? 0
                                                         : (bits >> 16 & 0x8000u) | (exponent - 112u) << 10 |
                                                               (bits >> 13 & 0x3ffu));
                memcpy(data + at,
                       width == 4        ? (const void *)&value
                       : dtype[0] == 'B' ? (const void *)&bf16
                                         : &half,
                       width);
            }
        }
    }
    snprintf(header + length, sizeof header - (size_t)length, "}");
    write_safetensors(path, header, data, at);
}

static uint8_t *capture_out(const char *path, const char *const *extra, size_t *out_size)
{
    const char *arguments[24] = {"attend", "--input", path, "--layer", "7", "--page", "16", "--out", scratch("c.npy")};
    size_t count = 9;
    for (size_t i = 0; extra[i]; i++)
        arguments[count++] = extra[i];
    arguments[count] = NULL;
    tool_result result = tool_run((const char *const[]){"NIBBLE_BACKEND=sim", NULL}, arguments);
    cr_assert(result.exit_code == 0, "exit %d: %s", result.exit_code, result.err);
    tool_free(&result);
    return read_bytes(scratch("c.npy"), out_size);
}

Test(tool, input_types_with_equal_values_give_equal_bytes)
{
    static const char *const types[] = {"F32", "F16", "BF16"};
    uint8_t *outputs[3];
    size_t sizes[3];
    for (size_t i = 0; i < 3; i++) {
        write_capture(scratch("t.safetensors"), types[i], "");
        outputs[i] = capture_out(scratch("t.safetensors"), PLAIN, &sizes[i]);
        cr_assert(sizes[i] == sizes[0] && memcmp(outputs[i], outputs[0], sizes[0]) == 0, "%s differs", types[i]);
    }
    for (size_t i = 0; i < 3; i++)
        free(outputs[i]);
}

Test(tool, metadata_sets_scale_and_window_unless_overridden)
{
    size_t plain_size, meta_size, given_size;
    write_capture(scratch("plain.safetensors"), "BF16", "");
    write_capture(scratch("meta.safetensors"), "BF16",
                  "\"sm_scale\":\"0.5\",\"layers.7.window\":\"9\",\"layers.3.window\":\"2\"");
    uint8_t *plain = capture_out(scratch("plain.safetensors"), PLAIN, &plain_size);
    uint8_t *meta = capture_out(scratch("meta.safetensors"), PLAIN, &meta_size);
    cr_assert(plain_size == meta_size && memcmp(plain, meta, plain_size) != 0, "metadata has no effect");
    uint8_t *given =
        capture_out(scratch("plain.safetensors"), EXTRA("--sm-scale", "0.5", "--window", "9"), &given_size);
    cr_assert(memcmp(meta, given, meta_size) == 0, "metadata and options differ");
    free(given);
    given = capture_out(scratch("meta.safetensors"), EXTRA("--sm-scale", "0.25", "--window", "0"), &given_size);
    cr_assert(memcmp(plain, given, plain_size) == 0, "options do not override metadata");
    free(plain);
    free(meta);
    free(given);
}

Test(tool, layers_must_be_named_and_exist)
{
    write_capture(scratch("two.safetensors"), "F32", "");
    assert_run(TOOL("attend", "--input", scratch("two.safetensors")), 2,
               "nibble: --layer: missing; the file holds layers 3, 7\n");
    assert_run(TOOL("attend", "--input", scratch("two.safetensors"), "--layer", "4"), 2,
               "nibble: --layer: no layer 4; the file holds layers 3, 7\n");
    assert_run(TOOL("compare", "--input", scratch("two.safetensors"), "--layers", "3,6"), 2,
               "nibble: --layers: no layer 6; the file holds layers 3, 7\n");
}

Test(tool, npy_inputs_and_both_outputs_agree)
{
    write_npy(scratch("q.npy"), 6, 4, 24, 1);
    write_npy(scratch("k.npy"), 50, 2, 24, 2);
    write_npy(scratch("v.npy"), 50, 2, 40, 3);
    for (int i = 0; i < 2; i++) {
        json_t *document =
            tool_json(TOOL("attend", "--json", "--recipe", "kv8", "--q", scratch("q.npy"), "--k", scratch("k.npy"),
                           "--v", scratch("v.npy"), "--out", scratch(i ? "out.safetensors" : "out.npy")));
        cr_assert(number_at(document, "shape.nq") == 6.0 && number_at(document, "shape.dv") == 40.0, "shape");
        cr_assert(number_at(document, "accuracy.rel_l2") < 0.05, "rel_l2");
        json_decref(document);
    }
    size_t npy_size, st_size, o_bytes = 6 * 4 * 40 * sizeof(float), lse_bytes = 6 * 4 * sizeof(float);
    uint8_t *npy = read_bytes(scratch("out.npy"), &npy_size), *st = read_bytes(scratch("out.safetensors"), &st_size);
    cr_assert(npy_size % 64 == o_bytes % 64 && npy_size > o_bytes, ".npy has %zu bytes", npy_size);
    cr_assert(memcmp(npy, "\x93NUMPY\x01\x00", 8) == 0, "not a .npy");
    cr_assert(memcmp(npy + npy_size - o_bytes, st + st_size - o_bytes - lse_bytes, o_bytes) == 0, "outputs differ");
    cr_assert(strstr((const char *)st + 8, "\"lse\"") != NULL, "no lse in the header");
    for (size_t i = 0; i < 24; i++) {
        float lse;
        memcpy(&lse, st + st_size - lse_bytes + i * sizeof lse, sizeof lse);
        /* 45 to 50 keys and logits below 24/sqrt(24): far from 0 and from garbage */
        cr_assert(lse > -1.0f && lse < 9.0f && lse != 0.0f, "lse %zu is %g", i, (double)lse);
    }
    free(npy);
    free(st);
}

/* Overwrites four bytes of a file, counted from its end. */
static void patch_float(const char *path, size_t from_end, float value)
{
    size_t size = 0;
    uint8_t *bytes = read_bytes(path, &size);
    memcpy(bytes + size - from_end, &value, sizeof value);
    write_bytes(path, bytes, size);
    free(bytes);
}

#define WARNING "nibble: warning: K and V hold 2 NaN, stored as 0, and 1 infinite elements, clamped\n"

Test(tool, attend_counts_input_that_is_not_finite)
{
    write_npy(scratch("q.npy"), 4, 2, 16, 1);
    write_npy(scratch("k.npy"), 20, 1, 16, 2);
    write_npy(scratch("v.npy"), 20, 1, 16, 3);
    patch_float(scratch("k.npy"), 4 * 16 * 8, NAN);
    patch_float(scratch("k.npy"), 4 * 16 * 9, NAN);
    patch_float(scratch("v.npy"), 4 * 16 * 7, INFINITY);
    tool_result json = TOOL("attend", "--json", "--q", scratch("q.npy"), "--k", scratch("k.npy"), "--v",
                            scratch("v.npy"), "--recipe", "kv8");
    cr_assert(json.exit_code == 0 && strcmp(json.err, WARNING) == 0, "exit %d: %s", json.exit_code, json.err);
    json_t *document = json_loads(json.out, 0, NULL);
    assert_keys(json_object_get(document, "input"), "nan_inputs inf_inputs saturated flushed");
    cr_assert(number_at(document, "input.nan_inputs") == 2.0 && number_at(document, "input.inf_inputs") == 1.0,
              "counters: %s", json.out);
    cr_assert(json_is_null(json_object_get(json_object_get(document, "accuracy"), "rel_l2")), "%s", json.out);
    json_decref(document);
    tool_free(&json);
    tool_result text = TOOL("attend", "--q", scratch("q.npy"), "--k", scratch("k.npy"), "--v", scratch("v.npy"),
                            "--recipe", "kv8", "--max-error", "1");
    cr_assert(text.exit_code == 1, "exit %d", text.exit_code);
    cr_assert(strstr(text.out, "\ninput     2 NaN, 1 infinite, ") != NULL, "%s", text.out);
    cr_assert(strstr(text.out, "rel_l2 n/a  gain n/a  cos_mean n/a") != NULL, "%s", text.out);
    cr_assert(strstr(text.out, "nan") == NULL, "%s", text.out);
    cr_assert(strcmp(text.err, WARNING "nibble: --max-error: rel_l2 is not defined: the input is not finite, or the "
                                       "reference is zero\n") == 0,
              "%s", text.err);
    tool_free(&text);
}

Test(tool, compare_counts_input_that_is_not_finite)
{
    write_capture(scratch("nan.safetensors"), "F32", "");
    patch_float(scratch("nan.safetensors"), 4, NAN); /* V of layer 7, last token */
    tool_result result = TOOL("compare", "--json", "--input", scratch("nan.safetensors"), "--recipes", "kv8",
                              "--lengths", "39,40", "--layers", "7,3", "--max-error", "1");
    cr_assert(result.exit_code == 1, "exit %d", result.exit_code);
    cr_assert(strstr(result.err, "hold 1 NaN") && strstr(result.err, "--max-error: rel_l2 is not defined"), "%s",
              result.err);
    json_t *document = json_loads(result.out, 0, NULL);
    cr_assert(number_at(document, "rows.0.input.nan_inputs") == 0.0 && number_at(document, "rows.0.rel_l2") < 0.1,
              "length 39: %s", result.out);
    cr_assert(number_at(document, "rows.1.input.nan_inputs") == 1.0, "length 40: %s", result.out);
    cr_assert(json_is_null(json_object_get(json_array_get(json_object_get(document, "rows"), 1), "rel_l2")),
              "length 40: %s", result.out);
    json_decref(document);
    tool_free(&result);
    tool_result text = TOOL("compare", "--input", scratch("nan.safetensors"), "--recipes", "kv8");
    cr_assert(text.exit_code == 0, "exit %d", text.exit_code);
    cr_assert(strstr(text.out, "  n/a") && !strstr(text.out, "nan"), "%s", text.out);
    cr_assert(strstr(text.out, "\ninput of a row, at most: 1 NaN, 0 infinite, ") != NULL, "%s", text.out);
    tool_free(&text);
}

Test(tool, zero_values_are_met_exactly)
{
    write_npy(scratch("q.npy"), 4, 2, 16, 1);
    write_npy(scratch("k.npy"), 20, 1, 16, 2);
    write_npy(scratch("v.npy"), 20, 1, 16, 3);
    for (size_t i = 1; i <= 20 * 16; i++)
        patch_float(scratch("v.npy"), 4 * i, 0.0f);
    json_t *document = tool_json(TOOL("attend", "--json", "--q", scratch("q.npy"), "--k", scratch("k.npy"), "--v",
                                      scratch("v.npy"), "--max-error", "0"));
    cr_assert(number_at(document, "accuracy.rel_l2") == 0.0 && number_at(document, "accuracy.gain") == 1.0, "figures");
    cr_assert(number_at(document, "accuracy.cos_min") == 1.0, "cosine");
    json_decref(document);
}

Test(tool, outputs_are_whole_or_absent)
{
    write_capture(scratch("tune.safetensors"), "BF16", "");
    char folder[300];
    snprintf(folder, sizeof folder, "%s", scratch("dir.npy"));
    cr_assert(mkdir(folder, 0700) == 0, "mkdir %s", folder);
    const char *const places[][2] = {{"/proc/nibble/o.npy", "nibble: --out: cannot create /proc/nibble/o.npy"},
                                     {"/dev/null/o.npy", "nibble: --out: cannot create /dev/null/o.npy"},
                                     {folder, "nibble: --out: "}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int code = i == 2 ? 2 : 1;
        assert_refused(TOOL("attend", "--generate", "gaussian", SHAPE_SMALL, "--out", places[i][0]), code,
                       places[i][1]);
        assert_refused(TOOL("tune", "--input", scratch("tune.safetensors"), "--bits", "9", "--out", places[i][0]), code,
                       places[i][1]);
    }
    rmdir(folder);
}

/* A pipe, a device or a link such as /dev/stdout is not replaced by a file. */
Test(tool, outputs_replace_regular_files_only)
{
    char names[2][300];
    struct stat status;
    write_capture(scratch("tune.safetensors"), "BF16", "");
    snprintf(names[0], sizeof names[0], "%s", scratch("pipe.npy"));
    snprintf(names[1], sizeof names[1], "%s", scratch("link.npy"));
    cr_assert(mkfifo(names[0], 0600) == 0 && symlink("/dev/null", names[1]) == 0, "pipe and link");
    for (size_t i = 0; i < 2; i++) {
        char text[700];
        snprintf(text, sizeof text, "nibble: --out: %s is no regular file", names[i]);
        assert_refused(TOOL("attend", "--generate", "gaussian", SHAPE_SMALL, "--out", names[i]), 2, text);
        assert_refused(TOOL("tune", "--input", scratch("tune.safetensors"), "--bits", "9", "--out", names[i]), 2, text);
        cr_assert(lstat(names[i], &status) == 0 && !S_ISREG(status.st_mode), "%s was replaced", names[i]);
        unlink(names[i]);
    }
}

/* A file that cannot be written is found before the work; what a failure leaves behind is nothing. */
Test(tool, a_refused_run_leaves_no_file)
{
    tool_result missed = TOOL("attend", "--generate", "gaussian", "--recipe", "kv5", "--out", scratch("left.npy"));
    cr_assert(missed.exit_code == 2, "exit %d", missed.exit_code);
    tool_free(&missed);
    char pattern[300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s*", scratch("left.npy"));
    cr_assert(glob(pattern, 0, NULL, &found) == GLOB_NOMATCH, "something is left of %s", pattern);
}

Test(tool, hostile_files_are_refused_by_name)
{
    static const char *const safetensors[] = {"length-huge",       "length-over-file", "not-json",       "deep",
                                              "duplicate-names",   "offset-past-end",  "shape-overflow", "empty",
                                              "offset-over-int64", "invalid-utf8"};
    static const char *const npy[] = {"empty",      "length-huge-v2", "shape-overflow",
                                      "data-short", "data-long",      "descr-0"};
    char path[512], start[600];
    for (size_t i = 0; i < sizeof safetensors / sizeof safetensors[0]; i++) {
        snprintf(path, sizeof path, "%s/safetensors/%s.safetensors", NIBBLE_CORPUS, safetensors[i]);
        snprintf(start, sizeof start, "nibble: %s: ", path);
        assert_refused(TOOL("attend", "--input", path), 4, start);
        assert_refused(TOOL("compare", "--input", path), 4, start);
    }
    for (size_t i = 0; i < sizeof npy / sizeof npy[0]; i++) {
        snprintf(path, sizeof path, "%s/npy/%s.npy", NIBBLE_CORPUS, npy[i]);
        snprintf(start, sizeof start, "nibble: %s: ", path);
        assert_refused(TOOL("attend", "--q", path, "--k", path, "--v", path), 4, start);
    }
    assert_refused(TOOL("attend", "--input", "/"), 4, "nibble: /: not a regular file\n");
    assert_refused(TOOL("attend", "--input", "/nonexistent"), 4, "nibble: /nonexistent: cannot open: No such file");
}

Test(tool, files_whose_shapes_do_not_fit_are_refused)
{
    static const struct {
        uint32_t q[3], k[3], v[3];
        const char *text;
    } cases[] = {
        {{4, 2, 16}, {8, 1, 24}, {8, 1, 16}, "q and k differ in their head dimension"},
        {{4, 2, 16}, {8, 1, 16}, {9, 1, 16}, "k and v differ in tokens or heads"},
        {{4, 2, 16}, {8, 1, 16}, {8, 2, 16}, "k and v differ in tokens or heads"},
        {{4, 3, 16}, {8, 2, 16}, {8, 2, 16}, "3 query heads are not a multiple of 2 kv heads"},
        {{9, 2, 16}, {8, 1, 16}, {8, 1, 16}, "9 query tokens; 1 to 8 (the number of keys) are allowed"},
        {{4, 2, 20}, {8, 1, 20}, {8, 1, 16}, "head dimension 20 of Q and K"},
        {{4, 2, 16}, {8, 1, 16}, {8, 1, 520}, "head dimension 520 of V"},
        {{0, 2, 16}, {8, 1, 16}, {8, 1, 16}, "0 query tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_npy(scratch("q.npy"), cases[i].q[0], cases[i].q[1], cases[i].q[2], 1);
        write_npy(scratch("k.npy"), cases[i].k[0], cases[i].k[1], cases[i].k[2], 2);
        write_npy(scratch("v.npy"), cases[i].v[0], cases[i].v[1], cases[i].v[2], 3);
        tool_result result = TOOL("attend", "--q", scratch("q.npy"), "--k", scratch("k.npy"), "--v", scratch("v.npy"));
        cr_assert(result.exit_code == 4, "case %zu: exit %d: %s", i, result.exit_code, result.err);
        cr_assert(strstr(result.err, cases[i].text) != NULL, "case %zu: %s", i, result.err);
        tool_free(&result);
    }
}

Test(tool, metadata_that_is_no_number_is_refused)
{
    static const char *const cases[] = {"\"sm_scale\":\"x\"", "\"sm_scale\":\"0\"", "\"sm_scale\":\"-1\"",
                                        "\"layers.7.window\":\"-1\"", "\"layers.7.window\":\"1.5\""};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_capture(scratch("bad.safetensors"), "F32", cases[i]);
        tool_result result = TOOL("attend", "--input", scratch("bad.safetensors"), "--layer", "7");
        cr_assert(result.exit_code == 4 && strstr(result.err, "metadata") != NULL, "%s: exit %d: %s", cases[i],
                  result.exit_code, result.err);
        tool_free(&result);
    }
}

/* ------------------------------------------------------------------------------------------------ compare */

Test(tool, compare_crosses_recipes_sources_and_lengths)
{
    json_t *document = tool_json(TOOL("compare", "--json", "--generate", "gaussian,sinks", SHAPE_SMALL, "--recipes",
                                      "kv4,center=0,kv8", "--lengths", "10,300"));
    assert_keys(document, "backend rows");
    const json_t *rows = json_object_get(document, "rows");
    cr_assert(json_array_size(rows) == 8, "%zu rows", json_array_size(rows));
    size_t index;
    json_t *row;
    json_array_foreach (rows, index, row)
        assert_keys(row, "recipe source layer length input " ACCURACY_KEYS);
    cr_assert(strcmp(text_at(rows, "0.recipe"), "kv4,center=0") == 0, "recipe");
    cr_assert(number_at(rows, "0.length") == 10.0 && number_at(rows, "2.length") == 300.0, "lengths");
    cr_assert(number_at(rows, "0.rel_l2") != number_at(rows, "2.rel_l2"), "both lengths give the same figure");
    cr_assert(strcmp(text_at(rows, "7.source"), "sinks") == 0 && number_at(rows, "7.length") == 300.0, "last row");
    json_decref(document);
}

Test(tool, compare_agrees_with_attend)
{
    json_t *compared = tool_json(
        TOOL("compare", "--json", "--generate", "student-t", SHAPE_SMALL, "--recipes", "kv4", "--lengths", "300"));
    json_t *attended = tool_json(TOOL("attend", "--json", "--generate", "student-t", SHAPE_SMALL, "--recipe", "kv4"));
    cr_assert(number_at(compared, "rows.0.rel_l2") == number_at(attended, "accuracy.rel_l2"), "rel_l2 differs");
    cr_assert(number_at(compared, "rows.0.lse_err") == number_at(attended, "accuracy.lse_err"), "lse_err differs");
    json_decref(compared);
    json_decref(attended);
}

/* Queries have a centre from 32 rows on (NUM 7.5): fewer give the bytes of a recipe without one. */
Test(tool, compare_centres_enough_queries)
{
    static const struct {
        const char *rows;
        bool is_centred;
    } cases[] = {{"31", false}, {"32", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *document =
            tool_json(TOOL("compare", "--json", "--generate", "sinks", "--hq", "2", "--hkv", "1", "--d", "32", "--kv",
                           "300", "--nq", cases[i].rows, "--recipes", "mpfa,mpfa,qcenter=0", "--lengths", "300"));
        double with = number_at(document, "rows.0.rel_l2"), without = number_at(document, "rows.1.rel_l2");
        cr_assert((with != without) == cases[i].is_centred, "%s rows: %g and %g", cases[i].rows, with, without);
        json_decref(document);
    }
}

Test(tool, compare_writes_csv_of_a_capture)
{
    write_capture(scratch("csv.safetensors"), "BF16", "");
    tool_result result = TOOL("compare", "--csv", "--input", scratch("csv.safetensors"), "--recipes", "kv4,center=0");
    cr_assert(result.exit_code == 0, "exit %d: %s", result.exit_code, result.err);
    cr_assert(strncmp(result.out, "recipe,source,layer,length,rel_l2,gain,cos_mean,cos_min,lse_err\n", 64) == 0, "%s",
              result.out);
    cr_assert(strstr(result.out, "\n\"kv4,center=0\",capture,3,40,") != NULL, "%s", result.out);
    cr_assert(strstr(result.out, "\n\"kv4,center=0\",capture,7,40,") != NULL, "%s", result.out);
    tool_free(&result);
}

/* ------------------------------------------------------------------------------------------------ tune */

Test(tool, tune_refuses_what_it_cannot_use)
{
    write_capture(scratch("tune.safetensors"), "BF16", "");
    const char *capture = scratch("tune.safetensors");
    assert_run(TOOL("tune", "--bits", "5"), 2, "nibble: --input: missing\n");
    assert_run(TOOL("tune", "--input", capture), 2,
               "nibble: --bits, --max-error: exactly one budget is needed, none given\n");
    assert_run(TOOL("tune", "--input", capture, "--bits", "5", "--max-error", "1"), 2,
               "nibble: --bits, --max-error: exactly one budget is needed, both given\n");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "4"), 2, "nibble: --bits: 4 is less than kv4 takes, ");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "9", "--layers", "7"), 2,
                   "nibble: --layers: 7, but the capture holds layer 7");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "9", "--recipes", "kv4,kv5"), 2, "nibble: ");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "9", "--recipes", "kv4/int8"), 2, "nibble: --recipes: ");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "9", "--recipes", "kv4,default"), 2,
                   "nibble: --recipes: recipe \"default\" is unknown (known: qk4v8, ");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "9", "--recipes", "kv4,kv8,sinks=9"), 2,
                   "nibble: --recipes: \"kv8,sinks=9\" has modifiers, which tune finds itself\n");
    assert_refused(TOOL("tune", "--input", capture, "--bits", "9", "--recipes", "kv4,recent=64"), 2,
                   "nibble: --recipes: recipe modifier \"recent=64\" is unknown");
    assert_refused(TOOL("tune", "--input", "/nowhere", "--bits", "9"), 4, "nibble: ");
    static const char unreached[] = "nibble: --max-error: 0 is not reached; the best policy found has ";
    tool_result result = TOOL("tune", "--input", capture, "--max-error", "0");
    cr_assert(result.exit_code == 1, "exit %d", result.exit_code);
    cr_assert(strncmp(result.err, unreached, sizeof unreached - 1) == 0, "%s", result.err);
    tool_free(&result);
}

/* Error of the policy found for a budget, its bits checked against it. */
static double tuned_error(const char *bits)
{
    json_t *document = tool_json(TOOL("tune", "--json", "--input", scratch("tune.safetensors"), "--page", "8", "--kv",
                                      "4096", "--bits", bits, "--out", scratch("policy.txt")));
    assert_keys(document, "policy bits error model_layers kv layers steps");
    double sum = 0.0;
    for (int i = 0; i < 2; i++) {
        char path[32];
        snprintf(path, sizeof path, "layers.%d.rel_l2", i);
        sum += number_at(document, path) * number_at(document, path);
    }
    const double error = number_at(document, "error");
    cr_assert(fabs(error - sqrt(sum / 2)) < 1e-9, "error %g of layers %g", error, sqrt(sum / 2));
    cr_assert(number_at(document, "bits") <= strtod(bits, NULL), "over the budget of %s", bits);
    cr_assert(number_at(document, "model_layers") == 8.0 && number_at(document, "kv") == 4096.0, "sizes");
    json_decref(document);
    return error;
}

Test(tool, tune_spends_its_budget_and_its_file_is_a_policy)
{
    write_capture(scratch("tune.safetensors"), "BF16", "");
    const double low = tuned_error("9.02");
    char at[300];
    snprintf(at, sizeof at, "@%s", scratch("policy.txt"));
    json_t *plan = tool_json(TOOL("plan", "--json", "--layers", "8", "--hkv", "1", "--hq", "2", "--d", "16", "--kv",
                                  "4096", "--page", "8", "--recipe", at));
    const double bytes = number_at(plan, "rows.0.code_bytes") + number_at(plan, "rows.0.scale_bytes");
    cr_assert(bytes * 8 / (8.0 * 4096 * 32) <= 9.02, "the file's policy takes %g bytes", bytes);
    json_decref(plan);
    for (int layer = 3; layer <= 7; layer += 4) { /* the tool that measured it takes it, too */
        char name[8];
        snprintf(name, sizeof name, "%d", layer);
        json_decref(tool_json(TOOL("compare", "--json", "--input", scratch("tune.safetensors"), "--layers", name,
                                   "--lengths", "40", "--recipes", "kv4,recent=16,kv8")));
    }
    cr_assert(tuned_error("12") < low, "more bits do not help");
}

/* Without the first tokens, other transforms are best for what is left of the error: the last step. */
Test(tool, tune_tries_the_transforms_again_after_the_window)
{
    write_capture(scratch("tune.safetensors"), "BF16", "");
    json_t *document = tool_json(
        TOOL("tune", "--json", "--input", scratch("tune.safetensors"), "--page", "8", "--kv", "4096", "--bits", "12"));
    const json_t *steps = json_object_get(document, "steps");
    const json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    const json_t *before = json_array_get(steps, json_array_size(steps) - 2);
    cr_assert(strcmp(text_at(before, "change"), "sinks=64") == 0, "%s", text_at(before, "change"));
    cr_assert(strcmp(text_at(last, "change"), "hadamard=0") == 0, "%s", text_at(last, "change"));
    cr_assert(number_at(last, "bits") == number_at(before, "bits"), "a transform costs bits");
    cr_assert(number_at(last, "error") < number_at(before, "error"), "no better");
    cr_assert(number_at(document, "error") == number_at(last, "error"), "error of another step");
    cr_assert(strstr(text_at(document, "policy"), "hadamard=0") != NULL, "%s", text_at(document, "policy"));
    json_decref(document);
}

Test(tool, policies_come_from_files)
{
    static const struct {
        const char *content, *message;
        int exit_code;
    } rows[] = {{"", "is no policy file", 4},
                {"# only a comment\n", "is no policy file", 4},
                {"kv4\nkv8\n", "is no policy file", 4},
                {"kv4,now=1\n", "policy modifier \"now=1\" is unknown", 2}};
    char at[300];
    snprintf(at, sizeof at, "@%s", scratch("policy.txt"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_bytes(at + 1, rows[i].content, strlen(rows[i].content));
        tool_result result = TOOL("plan", "--recipe", at);
        cr_assert(result.exit_code == rows[i].exit_code && strstr(result.err, rows[i].message), "row %zu: %d %s", i,
                  result.exit_code, result.err);
        tool_free(&result);
    }
    write_bytes(at + 1, "# a\n\nkv4,layers=last4:kv8\n", 26);
    json_t *from_file = tool_json(TOOL("plan", "--json", "--recipe", at));
    json_t *from_text = tool_json(TOOL("plan", "--json", "--recipe", "kv4,layers=last4:kv8"));
    cr_assert(number_at(from_file, "rows.0.total_bytes") == number_at(from_text, "rows.0.total_bytes"), "bytes");
    json_decref(from_file);
    json_decref(from_text);
    assert_refused(TOOL("plan", "--recipe", "@/nowhere"), 4, "nibble: /nowhere");
    assert_refused(TOOL("bench", "--recipe", "kv4,recent=64"), 2, "nibble: --recipe: ");
}

/* ------------------------------------------------------------------------------------------------ bench */

Test(tool, bench_appends_codes)
{
    json_t *list =
        tool_json(TOOL("bench", "--json", "--op", "append_coded", "--batch", "3", "--hq", "4", "--hkv", "2", "--d",
                       "64", "--kv", "200", "--nq", "5", "--page", "20", "--runs", "1", "--recipe", "fp8,nvfp4"));
    double vectors = 3 * 5 * 2 * 2; /* tokens, heads, K and V */
    cr_assert(number_at(list, "0.kv_bytes") == vectors * 64, "%g bytes", number_at(list, "0.kv_bytes"));
    cr_assert(number_at(list, "1.kv_bytes") == vectors * 36, "%g bytes", number_at(list, "1.kv_bytes"));
    cr_assert(number_at(list, "1.moved_bytes") == 2 * vectors * 36, "%g bytes", number_at(list, "1.moved_bytes"));
    json_decref(list);
    assert_refused(TOOL("bench", "--op", "append_coded", "--kv", "64", "--nq", "2", "--recipe", "kv4"), 1,
                   "nibble: append_coded: ");
}

Test(tool, bench_reports_each_recipe)
{
    static const char *const operations[] = {"attend", "append", "prefill", "gather", "copy_pages", "transcode"};
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        json_t *list =
            tool_json(TOOL("bench", "--json", "--op", operations[i], "--batch", "3", "--hq", "4", "--hkv", "2", "--d",
                           "64", "--kv", "200", "--nq", "2", "--page", "20", "--runs", "3", "--recipe", "kv8,qk4v8"));
        cr_assert(json_array_size(list) == 2, "%zu rows", json_array_size(list));
        assert_keys(json_array_get(list, 0),
                    "backend op recipe batch hq hkv d dv kv nq page threads isa runs calls full cache_copies "
                    "median_ms min_ms tokens_per_s gb_per_s kv_bytes moved_bytes moved_gb_per_s");
        /* Pages of 20: 20*64 code bytes and 20 scale bytes padded to 32, per vector kind and head. */
        double tokens = strcmp(operations[i], "append") == 0 ? 3 * 2 : 3 * 200;
        double kv_bytes = floor(tokens * (2 * 2 * (20 * 64 + 32)) / 20.0);
        cr_assert(number_at(list, "0.kv_bytes") == kv_bytes, "%s: %g bytes, wanted %g", operations[i],
                  number_at(list, "0.kv_bytes"), kv_bytes);
        double median_ms = number_at(list, "0.median_ms");
        cr_assert(median_ms >= number_at(list, "0.min_ms") && number_at(list, "0.min_ms") > 0.0, "times");
        cr_assert(fabs(number_at(list, "0.tokens_per_s") * median_ms / (1e3 * tokens) - 1.0) < 1e-6, "tokens_per_s");
        cr_assert(fabs(number_at(list, "0.gb_per_s") * median_ms * 1e6 / kv_bytes - 1.0) < 1e-6, "gb_per_s");
        json_decref(list);
    }
}

Test(tool, bench_predicts_without_a_backend)
{
    json_t *all = tool_json(TOOL("bench", "--json", "--predict", "b200", "--hq", "32", "--hkv", "8", "--kv", "32768",
                                 "--batch", "16", "--recipe", "kv4,bf16"));
    cr_assert(json_is_false(json_object_get(all, "measured")), "a B200 was measured");
    const json_t *row = json_array_get(json_object_get(all, "rows"), 1);
    assert_keys(row, "op recipe kernel bound predicted_ms memory_ms issue_ms tensor_ms ex2_ms other_ms filled");
    cr_assert(number_at(row, "predicted_ms") >= number_at(row, "memory_ms"), "faster than memory");
    json_decref(all);
    assert_run(TOOL("bench", "--predict", "v100"), 2,
               "nibble: --predict: unknown GPU \"v100\" (known: h200, b200, b300, rtx5090)\n");
    static const char *const runs[][2] = {{"--runs", "3"}, {"--calls", "3"}, {"--page", "16"}, {"--backend", "sim"}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "nibble: %s: excludes --predict\n", runs[i][0]);
        assert_run(TOOL("bench", "--predict", "h200", runs[i][0], runs[i][1]), 2, text);
    }
    assert_run(TOOL("bench", "--predict", "h200", "--op", "gather"), 2,
               "nibble: --predict: op gather has no model (known: attend, append, prefill)\n");
    assert_run(TOOL("bench", "--predict", "h200", "--recipe", "mpfa"), 2,
               "nibble: --predict: recipe mpfa has no counts (known: kv4, mxkv4, k4v8, qk4v8, kv8, bf16, fp16)\n");
}

Test(tool, bench_cold_goes_round_copies)
{
    json_t *list = tool_json(
        TOOL("bench", "--json", "--cold", "--kv", "64", "--d", "16", "--hq", "1", "--hkv", "1", "--runs", "1"));
    cr_assert(number_at(list, "0.cache_copies") > 1.0, "one copy");
    cr_assert(number_at(list, "0.median_ms") == number_at(list, "0.min_ms"), "the median of one run is that run");
    json_decref(list);
}

/* ------------------------------------------------------------------------------------------------ serve-sim */

static json_int_t serve_number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    cr_assert(json_is_integer(value), "%s is missing", key);
    return json_integer_value(value);
}

#define SERVE "serve-sim", "--backend", "sim", "--threads", "1", "--json"

/* Every attend equals a recomputation, under pressure, with windows, tiers, forks and drafts. */
Test(tool, serve_sim_never_differs_from_a_recomputation)
{
    static const struct {
        const char *policy, *tokens, *host, *key;
    } rows[] = {{"kv4,sinks=16", "700", "0", "pages_evicted"},
                {"kv4,recent=40,layers=last1:kv8", "1500", "0", "pages_demoted"},
                {"mxkv4,sinks=0", "500", "400", "pages_restored"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tool_result result = TOOL(SERVE, "--requests", "40", "--policy", rows[i].policy, "--tokens", rows[i].tokens,
                                  "--host-kib", rows[i].host, "--prefixes", "10");
        cr_assert_eq(result.exit_code, 0, "exit %d: %s", result.exit_code, result.err);
        json_t *json = json_loads(result.out, 0, NULL);
        cr_assert_not_null(json, "no JSON: %s", result.out);
        cr_assert_eq(serve_number(json, "attends_wrong"), 0, "wrong attends");
        cr_assert_gt(serve_number(json, "attends_checked"), 1000, "attends");
        cr_assert_eq(serve_number(json, "requests"), 40, "requests");
        cr_assert_gt(serve_number(json, rows[i].key), 0, "%s", rows[i].key);
        cr_assert_gt(serve_number(json, "rolled_back_tokens"), 0, "drafts");
        cr_assert(json_real_value(json_object_get(json, "hit_rate")) > 0.3, "hit rate");
        json_decref(json);
        tool_free(&result);
    }
}

Test(tool, serve_sim_reads_a_trace)
{
    char path[] = "/tmp/nibble-trace-XXXXXX";
    const int file = mkstemp(path);
    cr_assert_geq(file, 0, "no temporary file");
    static const char text[] =
        "# arrival prefix prefix-tokens prompt-tokens output-tokens\n0 0 64 80 5\n\n3 0 64 90 6\n";
    cr_assert_eq(write(file, text, sizeof text - 1), (ssize_t)sizeof text - 1, "write");
    tool_result result = TOOL(SERVE, "--trace", path);
    cr_assert_eq(result.exit_code, 0, "exit %d: %s", result.exit_code, result.err);
    cr_assert(strstr(result.out, "\"requests\": 2") != NULL, "%s", result.out);
    tool_free(&result);
    static const char *const bad[] = {"4 0 64 63 5",
                                      "4 0 64 80",
                                      "4 0 64 80 5 6",
                                      "2 0 64 80 5",
                                      "4 0 64 -80 5",
                                      "4294967299 0 64 80 5",
                                      "x 0 64 80 5",
                                      "4 0 0 0 5",
                                      "4 0 64 1048577 5",
                                      "4 4294967296 64 80 5",
                                      "4 0 64 80 99999999999999999999999"};
    char start[128];
    snprintf(start, sizeof start, "nibble: %s:5: needed are five numbers", path);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(ftruncate(file, sizeof text - 1), 0, "ftruncate");
        cr_assert_eq(pwrite(file, bad[i], strlen(bad[i]), sizeof text - 1), (ssize_t)strlen(bad[i]), "pwrite");
        assert_refused(TOOL(SERVE, "--trace", path), 4, start);
    }
    for (int zero = 0; zero < 2; zero++) { /* a line too long to be one, and a byte that ends it early */
        char line[400];
        memset(line, ' ', sizeof line);
        memcpy(line, zero ? "4 0 64 80 5\0 6" : "4 0 64 80 5", zero ? 14 : 11);
        cr_assert_eq(ftruncate(file, sizeof text - 1), 0, "ftruncate");
        cr_assert_eq(pwrite(file, line, zero ? 20 : sizeof line, sizeof text - 1), zero ? 20 : (ssize_t)sizeof line,
                     "");
        snprintf(start, sizeof start, "nibble: %s:5: a line of over 255 bytes, or a zero byte in it\n", path);
        assert_refused(TOOL(SERVE, "--trace", path), 4, start);
    }
    close(file);
    remove(path);
    assert_refused(TOOL(SERVE, "--trace", path), 4, "nibble: ");
    assert_refused(TOOL(SERVE, "--trace", "/"), 4, "nibble: /: not a regular file\n");
    assert_refused(TOOL(SERVE, "--trace", "/dev/zero"), 4, "nibble: /dev/zero: not a regular file\n");
    assert_refused(TOOL(SERVE, "--tokens", "50"), 2, "nibble: --tokens: 50 is less than the longest request");
    assert_refused(TOOL(SERVE, "--policy", "kv4,x=1"), 2, "nibble: --policy: policy modifier \"x=1\" is unknown");
    assert_run(TOOL(SERVE, "--trace", path, "--requests", "5"), 2, "nibble: --requests: excludes --trace\n");
    assert_run(TOOL(SERVE, "--trace", path, "--rate", "1"), 2, "nibble: --rate: excludes --trace\n");
    assert_run(TOOL(SERVE, "--file-folder", "/tmp"), 2, "nibble: --file-folder: needs --file-kib\n");
    assert_refused(TOOL(SERVE, "--file-folder", "/nowhere", "--file-kib", "100", "--host-kib", "100"), 2,
                   "nibble: cache: ");
    assert_run(TOOL(SERVE, "--d", "17"), 2,
               "nibble: --d: head dimension 17; multiples of 8 from 16 to 512 are allowed\n");
    assert_refused(TOOL(SERVE, "--hq", "3"), 2, "nibble: --hq: 3 is not a multiple of --hkv 2");
}
