/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <criterion/criterion.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VARIABLES_MAX = 16, ARGUMENTS_MAX = 64 };

static char *read_stream(FILE *stream)
{
    cr_assert(fseek(stream, 0, SEEK_END) == 0, "cannot seek in the output");
    long size = ftell(stream);
    cr_assert(size >= 0, "cannot tell the size of the output");
    char *text = malloc((size_t)size + 1);
    cr_assert(text != NULL, "no memory for %ld bytes of output", size);
    rewind(stream);
    cr_assert(fread(text, 1, (size_t)size, stream) == (size_t)size, "cannot read the output");
    text[size] = '\0';
    fclose(stream);
    return text;
}

/* The tool sees only what a test gives it, so that no variable of the caller can change a result. */
static void make_environment(const char *const *variables, char **environment, char *directory, size_t directory_bytes)
{
    size_t count = 0;
    const char *backend_dir = getenv("NIBBLE_BACKEND_DIR");
    cr_assert(backend_dir != NULL, "NIBBLE_BACKEND_DIR must name the directory of the backends under test");
    snprintf(directory, directory_bytes, "NIBBLE_BACKEND_DIR=%s", backend_dir);
    environment[count++] = directory;
    environment[count++] = (char *)"OMP_NUM_THREADS=2";
    environment[count++] = (char *)"PATH=/usr/bin:/bin";
    for (size_t i = 0; variables && variables[i] && count + 1 < VARIABLES_MAX; i++)
        environment[count++] = (char *)variables[i];
    environment[count] = NULL;
}

tool_result tool_run(const char *const *variables, const char *const *arguments)
{
    char directory[4096];
    char *environment[VARIABLES_MAX];
    char *argv[ARGUMENTS_MAX] = {(char *)NIBBLE_TOOL};
    make_environment(variables, environment, directory, sizeof directory);
    for (size_t i = 0; arguments[i]; i++) {
        cr_assert(i + 2 < ARGUMENTS_MAX, "too many arguments");
        argv[i + 1] = (char *)arguments[i];
    }
    FILE *out = tmpfile(), *err = tmpfile();
    cr_assert(out != NULL && err != NULL, "cannot make temporary files");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(err), STDERR_FILENO);
    pid_t pid = -1;
    int status = 0;
    cr_assert(posix_spawn(&pid, NIBBLE_TOOL, &actions, NULL, argv, environment) == 0, "cannot start %s", NIBBLE_TOOL);
    cr_assert(waitpid(pid, &status, 0) == pid, "cannot wait for the tool");
    posix_spawn_file_actions_destroy(&actions);
    return (tool_result){WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_stream(out), read_stream(err)};
}

void tool_free(tool_result *result)
{
    free(result->out);
    free(result->err);
}

json_t *tool_json(tool_result result)
{
    json_error_t problem;
    cr_assert(result.exit_code == 0, "exit %d, stderr: %s", result.exit_code, result.err);
    cr_assert(result.err[0] == '\0', "stderr is not empty: %s", result.err);
    json_t *document = json_loads(result.out, JSON_REJECT_DUPLICATES, &problem);
    cr_assert(document != NULL, "stdout is not JSON (%s): %s", problem.text, result.out);
    tool_free(&result);
    return document;
}

void assert_keys(const json_t *object, const char *keys)
{
    char copy[1024];
    size_t count = 0;
    cr_assert(json_is_object(object), "not an object; wanted keys %s", keys);
    snprintf(copy, sizeof copy, "%s", keys);
    for (char *key = strtok(copy, " "); key; key = strtok(NULL, " ")) {
        cr_assert(json_object_get(object, key) != NULL, "key %s is missing", key);
        count++;
    }
    cr_assert(json_object_size(object) == count, "%zu keys, wanted %zu: %s", json_object_size(object), count, keys);
}

static const json_t *value_at(const json_t *document, const char *path)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", path);
    const json_t *value = document;
    for (char *key = strtok(copy, "."); key && value; key = strtok(NULL, "."))
        value = json_is_array(value) ? json_array_get(value, strtoul(key, NULL, 10)) : json_object_get(value, key);
    cr_assert(value != NULL, "nothing at %s", path);
    return value;
}

double number_at(const json_t *document, const char *path)
{
    const json_t *value = value_at(document, path);
    cr_assert(json_is_number(value), "%s is not a number", path);
    return json_number_value(value);
}

const char *text_at(const json_t *document, const char *path)
{
    const char *text = json_string_value(value_at(document, path));
    cr_assert(text != NULL, "%s is not a string", path);
    return text;
}

static char directory_made[64];

static void remove_directory(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory_made);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", directory_made);
}

const char *scratch(const char *name)
{
    static char paths[8][256];
    static size_t next;
    if (directory_made[0] == '\0') {
        snprintf(directory_made, sizeof directory_made, "/tmp/nibble-cli-XXXXXX");
        cr_assert(mkdtemp(directory_made) != NULL, "cannot make a directory");
        atexit(remove_directory);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory_made, name);
    return path;
}

void write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *stream = fopen(path, "wb");
    cr_assert(stream != NULL, "cannot create %s", path);
    cr_assert(size == 0 || fwrite(bytes, 1, size, stream) == size, "cannot write %s", path);
    cr_assert(fclose(stream) == 0, "cannot close %s", path);
}

uint8_t *read_bytes(const char *path, size_t *out_size)
{
    FILE *stream = fopen(path, "rb");
    cr_assert(stream != NULL, "cannot open %s", path);
    fseek(stream, 0, SEEK_END);
    *out_size = (size_t)ftell(stream);
    rewind(stream);
    uint8_t *bytes = malloc(*out_size + 1);
    cr_assert(bytes != NULL && fread(bytes, 1, *out_size, stream) == *out_size, "cannot read %s", path);
    fclose(stream);
    return bytes;
}

float sample(uint32_t seed, uint64_t index)
{
    uint64_t bits = (index + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)seed * 0xd1342543de82ef95u);
    bits ^= bits >> 29;
    bits *= 0xbf58476d1ce4e5b9u;
    return (float)(bits >> 57) / 64.0f - 1.0f; /* 7 bits */
}

void write_npy(const char *path, uint32_t a, uint32_t b, uint32_t c, uint32_t seed)
{
    char header[128];
    int length = snprintf(header, sizeof header,
                          "%cNUMPY%c%c%c%c{'descr': '<f4', 'fortran_order': False, "
                          "'shape': (%u, %u, %u), }",
                          0x93, 1, 0, 118, 0, a, b, c);
    memset(header + length, ' ', sizeof header - (size_t)length);
    header[sizeof header - 1] = '\n';
    size_t count = (size_t)a * b * c;
    uint8_t *bytes = malloc(sizeof header + count * sizeof(float));
    cr_assert(bytes != NULL, "no memory for an array");
    memcpy(bytes, header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        float value = sample(seed, i);
        memcpy(bytes + sizeof header + i * sizeof value, &value, sizeof value);
    }
    write_bytes(path, bytes, sizeof header + count * sizeof(float));
    free(bytes);
}

void write_safetensors(const char *path, const char *header, const void *data, size_t data_bytes)
{
    size_t length = strlen(header);
    uint8_t *bytes = malloc(8 + length + data_bytes);
    cr_assert(bytes != NULL, "no memory for a file");
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    if (data_bytes > 0)
        memcpy(bytes + 8 + length, data, data_bytes);
    write_bytes(path, bytes, 8 + length + data_bytes);
    free(bytes);
}
