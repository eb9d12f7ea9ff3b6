/* SPDX-License-Identifier: Apache-2.0 */
/* A small engine that keeps its KV cache in nibble, which it opens with dlopen: continues a text, greedily.
 *
 *   engine [-l LIBRARY] [-r RECIPE] [-n TOKENS] [-i] MODEL.gguf PROMPT
 *
 * -i prints token ids instead of text. The backend is that of NIBBLE_BACKEND, "sim" without it; the tokens are the same
 * on every one.
 */
#include <stdlib.h>
#include <unistd.h>

#include "model.h"
#include "tokenizer.h"

enum { PROMPT_TOKENS_MAX = 8192, BATCH_TOKENS = 256 };

typedef struct settings {
    const char *library, *recipe, *model, *prompt;
    uint32_t tokens;
    int ids;
} settings;

static int parse(int argc, char **argv, settings *out)
{
    *out = (settings){.recipe = "kv4", .tokens = 32};
    for (int option; (option = getopt(argc, argv, "l:r:n:i")) != -1;) {
        switch (option) {
        case 'l': out->library = optarg; break;
        case 'r': out->recipe = optarg; break;
        case 'n': out->tokens = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'i': out->ids = 1; break;
        default: return 0;
        }
    }
    if (argc - optind != 2 || out->tokens < 1 || out->tokens > PROMPT_TOKENS_MAX)
        return 0;
    out->model = argv[optind];
    out->prompt = argv[optind + 1];
    return 1;
}

static uint32_t highest(const float *values, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

static void show(const settings *s, const tokenizer *t, uint32_t id)
{
    if (s->ids)
        printf("%u\n", id);
    else
        tokenizer_print(t, id);
    (void)fflush(stdout);
}

/* The prompt in batches, then one token after the other. */
static nbl_status generate(const settings *s, const model *m, const tokenizer *t, const nbl_client *client,
                           nbl_cache *cache, float *logits, nbl_error *err)
{
    static uint32_t ids[PROMPT_TOKENS_MAX];
    const uint32_t count = tokenizer_encode(t, s->prompt, ids, PROMPT_TOKENS_MAX);
    uint64_t sequence = 0;
    nbl_status status = client->api->seq_create(cache, &sequence, err);
    if (count == 0)
        return nbl_client_fail(err, NBL_E_INVALID, "engine: the prompt is too long", "");
    for (uint32_t at = 0; status == NBL_OK && at < count; at += BATCH_TOKENS) {
        const uint32_t batch = count - at < BATCH_TOKENS ? count - at : BATCH_TOKENS;
        status = model_run(m, client, cache, sequence, ids + at, batch, at, logits, err);
    }
    for (uint32_t i = 0; status == NBL_OK && i < s->tokens; i++) {
        const uint32_t id = highest(logits, tokenizer_size(t));
        if (id == tokenizer_end(t))
            break;
        show(s, t, id);
        if (i + 1 < s->tokens)
            status = model_run(m, client, cache, sequence, &id, 1, count + i, logits, err);
    }
    if (!s->ids)
        (void)putchar('\n');
    return status;
}

static nbl_status run(const settings *s, const model *m, const tokenizer *t, float *logits, nbl_error *err)
{
    nbl_client client;
    nbl_cache *cache = NULL;
    nbl_status status = nbl_client_open(&client, s->library, err);
    if (status == NBL_OK)
        status = nbl_client_device(&client, "sim", err);
    if (status == NBL_OK)
        status = model_cache(m, &client, s->recipe, PROMPT_TOKENS_MAX + s->tokens, BATCH_TOKENS, &cache, err);
    if (status == NBL_OK)
        status = generate(s, m, t, &client, cache, logits, err);
    if (cache)
        (void)client.api->cache_destroy(cache, NULL);
    (void)nbl_client_close(&client, NULL);
    return status;
}

int main(int argc, char **argv)
{
    settings s;
    if (!parse(argc, argv, &s)) {
        (void)fprintf(stderr, "usage: engine [-l LIBRARY] [-r RECIPE] [-n TOKENS] [-i] MODEL.gguf PROMPT\n");
        return 2;
    }
    nbl_error err = NBL_INIT(nbl_error);
    nbl_status status = NBL_E_INVALID;
    gguf *file = gguf_open(s.model);
    model *m = file ? model_create(file) : NULL;
    tokenizer *t = m ? tokenizer_create(file) : NULL;
    float *logits = t ? malloc(tokenizer_size(t) * sizeof *logits) : NULL;
    if (logits)
        status = run(&s, m, t, logits, &err);
    if (err.message[0])
        (void)fprintf(stderr, "%s\n", err.message);
    free(logits);
    tokenizer_free(t);
    model_free(m);
    if (file)
        gguf_close(file);
    return status == NBL_OK ? 0 : 1;
}
