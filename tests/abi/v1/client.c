/* SPDX-License-Identifier: Apache-2.0 */
/* An engine of version 1.0, for ever: its binary is stored beside this file and run with every later runtime.
 *
 * client LIBRARY DIRECTORY BACKEND: loads, opens, and prints what it gets. With "sim" it also attends and prints bits.
 */
#include <dlfcn.h>
#include <nibble/nibble.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 100, DIM = 64 };

static const nbl_api_v1 *api;
static nbl_error err = NBL_INIT(nbl_error);

static void must(const char *what, nbl_status status)
{
    printf("%s: %s\n", what, api ? api->status_name(status) : "no table");
    if (status != NBL_OK) {
        puts(err.message);
        exit(1);
    }
}

static nbl_tensor tensor(void *data, uint64_t tokens)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = 3, .shape = {tokens, 1, DIM}};
}

static void attend(nbl_device *device)
{
    static float k[TOKENS][1][DIM], v[TOKENS][1][DIM], q[1][1][DIM], o[1][1][DIM];
    const int32_t kv_cut[] = {0, TOKENS}, q_cut[] = {0, 1};
    nbl_recipe recipe = NBL_INIT(nbl_recipe);
    nbl_cache *cache = NULL;
    uint64_t sequence = 0;
    uint32_t tokens = 0;
    for (int i = 0; i < TOKENS * DIM; i++) {
        k[i / DIM][0][i % DIM] = (float)(i * 7 % 31 - 15) / 16.0f;
        v[i / DIM][0][i % DIM] = (float)(i * 5 % 23 - 11) / 8.0f;
        q[0][0][i % DIM] = (float)(i % 9 - 4) / 4.0f;
    }
    must("recipe_parse", api->recipe_parse("kv8", DIM, DIM, &recipe, &err));
    nbl_cache_config config = NBL_INIT(nbl_cache_config);
    config.shape.struct_size = sizeof config.shape;
    config.shape.layers = config.shape.kv_heads = 1;
    config.shape.k_dim = config.shape.v_dim = DIM;
    config.shape.page_tokens = 16;
    config.shape.k_hadamard = recipe.k_hadamard;
    config.shape.v_hadamard = recipe.v_hadamard;
    config.shape.centering = recipe.centering;
    config.k_format = recipe.k_format;
    config.v_format = recipe.v_format;
    config.sequences_max = 1;
    config.tokens_max = TOKENS;
    must("cache_create", api->cache_create(device, &config, &cache, &err));
    must("seq_create", api->seq_create(cache, &sequence, &err));
    nbl_cache_append_args append = NBL_INIT(nbl_cache_append_args);
    append.sequences = &sequence;
    append.seq_indptr = kv_cut;
    append.batch = 1;
    append.k = tensor(k, TOKENS);
    append.v = tensor(v, TOKENS);
    must("cache_append", api->cache_append(cache, &append, &err));
    nbl_cache_attend_args args = NBL_INIT(nbl_cache_attend_args);
    args.sequences = &sequence;
    args.q_indptr = q_cut;
    args.batch = args.q_heads = 1;
    args.q = tensor(q, 1);
    args.o = tensor(o, 1);
    must("cache_attend", api->cache_attend(cache, &args, &err));
    must("seq_length", api->seq_length(cache, sequence, 0, &tokens, &err));
    printf("%u tokens, o = %a %a\n", tokens, (double)o[0][0][0], (double)o[0][0][DIM - 1]);
    must("cache_destroy", api->cache_destroy(cache, &err));
}

int main(int argc, char **argv)
{
    void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = library ? dlsym(library, "nbl_get_api") : NULL;
    nbl_get_api_fn get_api;
    if (!symbol)
        return 2;
    memcpy(&get_api, &symbol, sizeof get_api);
    nbl_api_request request = NBL_INIT(nbl_api_request);
    request.abi_major = 1;
    must("nbl_get_api", get_api(&request, &api, &err));
    nbl_load_options options = NBL_INIT(nbl_load_options);
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    nbl_caps caps = NBL_INIT(nbl_caps);
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    nbl_device *device = NULL;
    void *memory = NULL;
    const nbl_stream stream = {NBL_STREAM_HOST, 0, NULL};
    char text[8] = "";
    options.flags = NBL_LOAD_IGNORE_ENV;
    options.backend_dir = argv[2];
    options.backend = argv[3];
    must("load", api->load(&options, &runtime, &report, &err));
    must("report_get", api->report_get(report, 0, &attempt, &err));
    printf("%s, phase %u\n", attempt.name, attempt.phase);
    api->report_free(report);
    must("open", api->open(runtime, NULL, &device, &err));
    must("caps", api->caps(device, &caps, &err));
    must("memory_alloc", api->memory_alloc(device, 8, &memory, &err));
    must("memory_copy", api->memory_copy(device, memory, "version", 8, NBL_COPY_TO_DEVICE, stream, &err));
    must("memory_copy", api->memory_copy(device, text, memory, 8, NBL_COPY_TO_HOST, stream, &err));
    puts(text);
    must("memory_free", api->memory_free(device, memory, &err));
    must("check", api->check(device, stream, &err));
    if (strcmp(argv[3], "sim") == 0)
        attend(device);
    must("close", api->close(device, &err));
    must("runtime_destroy", api->runtime_destroy(runtime, &err));
    return 0;
}
