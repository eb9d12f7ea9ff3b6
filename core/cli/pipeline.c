/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

#include "file.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define Q_CENTER_TOKENS_MIN 32u /* as for the centre of K (NUM 4.2): fewer rows are no sample of a sequence's queries */

/* The cache, one sequence in it, and the problem's arrays on the device. */
typedef struct pipeline {
    nbl_session *session;
    const nbl_problem *problem;
    uint32_t q_format;
    uint32_t q_centering;
    nbl_cache *cache;
    uint64_t sequence;
    void *q, *k, *v, *o, *lse, *sinks;
    void *q_centers; /* or NULL: queries are not centred */
} pipeline;

int nbl_recipes_split(const char *option, const char *text, nbl_list *out_list, nbl_fault *fault)
{
    int code = nbl_list_split(option, text, out_list, fault);
    size_t kept = 0;
    for (size_t i = 0; code == NBL_EXIT_OK && i < out_list->count; i++) {
        if (i > 0 && strchr(out_list->items[i], '='))
            out_list->storage[out_list->items[i] - out_list->storage - 1] = ',';
        else
            out_list->items[kept++] = out_list->items[i];
    }
    out_list->count = kept;
    return code;
}

void nbl_cache_config_fill(const nbl_problem *shape, const nbl_policy *policy, uint32_t page_tokens,
                           nbl_cache_config *out_config)
{
    *out_config = (nbl_cache_config)NBL_INIT(nbl_cache_config);
    out_config->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    out_config->shape.layers = 1;
    out_config->shape.kv_heads = shape->kv_heads;
    out_config->shape.k_dim = shape->k_dim;
    out_config->shape.v_dim = shape->v_dim;
    out_config->shape.page_tokens = page_tokens;
    out_config->shape.k_hadamard = policy->k_hadamard;
    out_config->shape.v_hadamard = policy->v_hadamard;
    out_config->shape.centering = policy->centering;
    out_config->shape.k_scale_rule = out_config->shape.v_scale_rule = policy->scale_rule;
    out_config->k_format = policy->k_format;
    out_config->v_format = policy->v_format;
    out_config->sink_tokens = policy->sink_tokens;
    out_config->rules = policy->rules;
    out_config->rule_count = policy->rule_count;
    out_config->sequences_max = 1;
    out_config->tokens_max = shape->kv_tokens;
}

/* The policy in a file: its one line that is neither empty nor a comment. */
static int policy_file_read(const char *path, char text[NBL_POLICY_TEXT_MAX], nbl_fault *fault)
{
    nbl_file file = {0};
    int code = nbl_file_read(path, &file, fault);
    if (code != NBL_EXIT_OK)
        return code;
    uint32_t lines = 0;
    bool fits = memchr(file.bytes, '\0', file.size) == NULL;
    const char *line;
    uint64_t at = 0, bytes;
    while (nbl_file_line(&file, &at, &line, &bytes)) {
        if (bytes == 0 || line[0] == '#')
            continue;
        fits = fits && bytes < NBL_POLICY_TEXT_MAX && lines++ == 0;
        if (fits)
            snprintf(text, NBL_POLICY_TEXT_MAX, "%.*s", (int)bytes, line);
    }
    nbl_file_free(&file);
    return fits && lines == 1
               ? NBL_EXIT_OK
               : nbl_fault_set(fault, NBL_EXIT_INPUT,
                               "%.300s: is no policy file (needed: one line of text of at most %u bytes, "
                               "besides comments)",
                               path, NBL_POLICY_TEXT_MAX - 1u);
}

int nbl_policy_read(const nbl_api_v1 *api, const char *option, const char *text, uint32_t layers, uint32_t k_dim,
                    uint32_t v_dim, nbl_policy *out_policy, nbl_fault *fault)
{
    char from_file[NBL_POLICY_TEXT_MAX];
    nbl_error err = NBL_INIT(nbl_error);
    *out_policy = (nbl_policy)NBL_INIT(nbl_policy);
    const int code = text[0] == '@' ? policy_file_read(text + 1, from_file, fault) : NBL_EXIT_OK;
    if (code != NBL_EXIT_OK)
        return code;
    if (api->policy_parse(text[0] == '@' ? from_file : text, layers, k_dim, v_dim, out_policy, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, option, &err);
    return NBL_EXIT_OK;
}

int nbl_cache_config_make(const nbl_api_v1 *api, const nbl_problem *shape, const char *recipe, uint32_t page_tokens,
                          nbl_cache_config *out_config, nbl_policy *out_policy, nbl_fault *fault)
{
    const int code = nbl_policy_read(api, "--recipe", recipe, 1, shape->k_dim, shape->v_dim, out_policy, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_cache_config_fill(shape, out_policy, page_tokens, out_config);
    out_config->append_tokens_max = shape->kv_tokens;
    return NBL_EXIT_OK;
}

static nbl_tensor rows_of(void *data, uint64_t tokens, uint32_t heads, uint32_t dim)
{
    nbl_tensor tensor = {.data = data, .dtype = NBL_F32, .rank = dim ? 3 : 2};
    tensor.shape[0] = tokens;
    tensor.shape[1] = heads;
    tensor.shape[2] = dim;
    return tensor;
}

/* Address of token t in a packed array of f32 rows. */
static void *token_at(void *base, uint64_t t, uint32_t heads, uint32_t dim)
{
    return (float *)base + t * heads * dim;
}

static int append_tokens(pipeline *p, uint32_t first, uint32_t count, nbl_fault *fault)
{
    const nbl_problem *problem = p->problem;
    nbl_error err = NBL_INIT(nbl_error);
    const int32_t indptr[2] = {0, (int32_t)count};
    nbl_cache_append_args args = NBL_INIT(nbl_cache_append_args);
    args.sequences = &p->sequence;
    args.seq_indptr = indptr;
    args.batch = 1;
    args.k =
        rows_of(token_at(p->k, first, problem->kv_heads, problem->k_dim), count, problem->kv_heads, problem->k_dim);
    args.v =
        rows_of(token_at(p->v, first, problem->kv_heads, problem->v_dim), count, problem->kv_heads, problem->v_dim);
    args.stream = p->session->stream;
    if (p->session->api->cache_append(p->cache, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "append", &err);
    return NBL_EXIT_OK;
}

/* Rows [first, first + count) of Q; they must be the last positions of the cache as it is. */
static int attend_rows(pipeline *p, uint32_t first, uint32_t count, nbl_fault *fault)
{
    const nbl_problem *problem = p->problem;
    nbl_error err = NBL_INIT(nbl_error);
    const int32_t indptr[2] = {0, (int32_t)count};
    nbl_cache_attend_args args = NBL_INIT(nbl_cache_attend_args);
    args.flags = NBL_ATTEND_CAUSAL;
    if (problem->window > 0) {
        args.flags |= NBL_ATTEND_WINDOW_LEFT;
        args.window_left = problem->window - 1;
    }
    args.sequences = &p->sequence;
    args.q_indptr = indptr;
    args.batch = 1;
    args.q_heads = problem->q_heads;
    args.q_format = p->q_format;
    args.q = rows_of(token_at(p->q, first, problem->q_heads, problem->k_dim), count, problem->q_heads, problem->k_dim);
    args.o = rows_of(token_at(p->o, first, problem->q_heads, problem->v_dim), count, problem->q_heads, problem->v_dim);
    args.lse = rows_of(token_at(p->lse, first, problem->q_heads, 1), count, problem->q_heads, 0);
    args.sm_scale = problem->sm_scale;
    args.soft_cap = problem->soft_cap;
    args.sinks = p->sinks;
    if (p->q_centers)
        args.q_centers = rows_of(p->q_centers, 1, problem->q_heads, problem->k_dim);
    args.stream = p->session->stream;
    if (p->session->api->cache_attend(p->cache, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "attend", &err);
    return NBL_EXIT_OK;
}

/* Tokens [first, end) in steps of chunk: append, then attend the query rows among them. */
static int run_tokens(pipeline *p, uint32_t first, uint32_t chunk, nbl_pipeline_result *result, nbl_fault *fault)
{
    const uint32_t end = p->problem->kv_tokens;
    const uint32_t q_first = end - p->problem->q_tokens;
    int code = NBL_EXIT_OK;
    nbl_progress progress = nbl_progress_start("attention", ((uint64_t)end - first + chunk - 1) / chunk);
    for (uint32_t at = first; at < end && code == NBL_EXIT_OK;) {
        uint32_t next = end - at > chunk ? at + chunk : end;
        double start_s = nbl_clock_s();
        code = append_tokens(p, at, next - at, fault);
        if (code == NBL_EXIT_OK)
            code = nbl_session_sync(p->session, p->lse, fault);
        double append_s = nbl_clock_s();
        uint32_t row_begin = at > q_first ? at : q_first;
        if (code == NBL_EXIT_OK && next > row_begin)
            code = attend_rows(p, row_begin - q_first, next - row_begin, fault);
        if (code == NBL_EXIT_OK)
            code = nbl_session_sync(p->session, p->lse, fault);
        result->append_ms += 1e3 * (append_s - start_s);
        result->attend_ms += 1e3 * (nbl_clock_s() - append_s);
        nbl_progress_step(&progress);
        at = next;
    }
    nbl_progress_end(&progress);
    return code;
}

static int read_back(pipeline *p, float *o, float *lse, nbl_fault *fault)
{
    uint64_t rows = (uint64_t)p->problem->q_tokens * p->problem->q_heads;
    int code = nbl_session_download(p->session, p->o, o, rows * p->problem->v_dim * sizeof *o, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_download(p->session, p->lse, lse, rows * sizeof *lse, fault);
    return code;
}

static void count_differences(const nbl_problem *problem, const float *o, const float *lse, uint32_t first_row,
                              nbl_pipeline_result *result)
{
    uint64_t o_count = (uint64_t)problem->q_heads * problem->v_dim;
    uint64_t lse_count = problem->q_heads;
    for (uint64_t row = first_row; row < problem->q_tokens; row++) {
        bool equal = memcmp(o + row * o_count, result->o + row * o_count, o_count * sizeof *o) == 0 &&
                     memcmp(lse + row * lse_count, result->lse + row * lse_count, lse_count * sizeof *lse) == 0;
        result->decode_rows++;
        result->decode_differs += equal ? 0 : 1;
    }
}

/* Takes the last tokens off the cache and does them again one by one. The second output starts as NaN: only rows that
 * are written again can compare equal. */
static int decode_again(pipeline *p, uint32_t tokens, nbl_pipeline_result *result, nbl_fault *fault)
{
    const nbl_problem *problem = p->problem;
    uint64_t rows = (uint64_t)problem->q_tokens * problem->q_heads;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_pipeline_result untimed = {0};
    float *o = nbl_alloc(rows, problem->v_dim * sizeof *o, fault);
    float *lse = nbl_alloc(rows, sizeof *lse, fault);
    int code = o && lse ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    void *first_o = p->o, *first_lse = p->lse;
    p->o = p->lse = NULL;
    if (code == NBL_EXIT_OK) {
        memset(o, 0xff, rows * problem->v_dim * sizeof *o);
        memset(lse, 0xff, rows * sizeof *lse);
        code = nbl_session_upload(p->session, o, rows * problem->v_dim * sizeof *o, &p->o, fault);
    }
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(p->session, lse, rows * sizeof *lse, &p->lse, fault);
    if (code == NBL_EXIT_OK &&
        p->session->api->seq_truncate(p->cache, p->sequence, problem->kv_tokens - tokens, &err) != NBL_OK)
        code = nbl_fault_from_api(fault, NBL_EXIT_FAILED, "truncate", &err);
    if (code == NBL_EXIT_OK)
        code = run_tokens(p, problem->kv_tokens - tokens, 1, &untimed, fault);
    if (code == NBL_EXIT_OK)
        code = read_back(p, o, lse, fault);
    if (code == NBL_EXIT_OK)
        count_differences(problem, o, lse, problem->q_tokens - tokens, result);
    nbl_session_release(p->session, p->o);
    nbl_session_release(p->session, p->lse);
    p->o = first_o;
    p->lse = first_lse;
    free(o);
    free(lse);
    return code;
}

static int upload_inputs(pipeline *p, nbl_fault *fault)
{
    const nbl_problem *problem = p->problem;
    const struct {
        const float *from;
        void **to;
        uint64_t count;
    } parts[] = {
        {problem->q, &p->q, (uint64_t)problem->q_tokens * problem->q_heads * problem->k_dim},
        {problem->k, &p->k, (uint64_t)problem->kv_tokens * problem->kv_heads * problem->k_dim},
        {problem->v, &p->v, (uint64_t)problem->kv_tokens * problem->kv_heads * problem->v_dim},
    };
    int code = NBL_EXIT_OK;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && code == NBL_EXIT_OK; i++)
        code = nbl_session_upload(p->session, parts[i].from, parts[i].count * sizeof(float), parts[i].to, fault);
    uint64_t rows = (uint64_t)problem->q_tokens * problem->q_heads;
    if (code == NBL_EXIT_OK)
        code = nbl_session_alloc(p->session, rows * problem->v_dim * sizeof(float), &p->o, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_alloc(p->session, rows * sizeof(float), &p->lse, fault);
    return code;
}

static int upload_sinks(pipeline *p, nbl_fault *fault)
{
    if (!p->problem->has_sink)
        return NBL_EXIT_OK;
    float *sinks = nbl_alloc(p->problem->q_heads, sizeof *sinks, fault);
    if (!sinks)
        return NBL_EXIT_FAILED;
    for (uint32_t h = 0; h < p->problem->q_heads; h++)
        sinks[h] = p->problem->sink;
    int code = nbl_session_upload(p->session, sinks, p->problem->q_heads * sizeof *sinks, &p->sinks, fault);
    free(sinks);
    return code;
}

/* Mean of each head's query rows, if the recipe centres queries and there are enough of them. */
static int upload_q_centers(pipeline *p, nbl_fault *fault)
{
    const nbl_problem *problem = p->problem;
    const uint64_t count = (uint64_t)problem->q_heads * problem->k_dim;
    if (!p->q_centering || problem->q_tokens < Q_CENTER_TOKENS_MIN)
        return NBL_EXIT_OK;
    float *mean = nbl_alloc(count, sizeof *mean, fault);
    if (!mean)
        return NBL_EXIT_FAILED;
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0.0;
        for (uint32_t row = 0; row < problem->q_tokens; row++)
            sum += (double)problem->q[row * count + i];
        mean[i] = (float)(sum / problem->q_tokens);
    }
    int code = nbl_session_upload(p->session, mean, count * sizeof *mean, &p->q_centers, fault);
    free(mean);
    return code;
}

static int open_cache(pipeline *p, const nbl_pipeline_options *options, nbl_fault *fault)
{
    const nbl_api_v1 *api = p->session->api;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config;
    nbl_policy policy;
    int code = nbl_cache_config_make(api, p->problem, options->recipe, options->page_tokens, &config, &policy, fault);
    if (code != NBL_EXIT_OK)
        return code;
    if (p->problem->soft_cap > 0.0f && config.shape.centering & NBL_CENTERING_MEAN)
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--soft-cap: recipe %.64s centres K, which a cap forbids (NUM 4.3); "
                             "add center=0 to --recipe",
                             options->recipe);
    p->q_format = policy.q_format;
    p->q_centering = policy.q_centering;
    if (api->cache_create(p->session->device, &config, &p->cache, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "cache", &err);
    if (api->seq_create(p->cache, &p->sequence, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "sequence", &err);
    return NBL_EXIT_OK;
}

static void close_pipeline(pipeline *p)
{
    if (p->cache)
        p->session->api->cache_destroy(p->cache, NULL);
    void *const buffers[] = {p->q, p->k, p->v, p->o, p->lse, p->sinks, p->q_centers};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        nbl_session_release(p->session, buffers[i]);
}

static int read_sizes(const pipeline *p, nbl_pipeline_result *result, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    if (p->session->api->cache_stats(p->cache, &stats, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "cache", &err);
    const nbl_problem *problem = p->problem;
    result->quant = stats.quant;
    result->used_bytes = stats.used_bytes;
    result->total_bytes = stats.total_bytes;
    result->bf16_bytes = 2 * (uint64_t)problem->kv_tokens * problem->kv_heads * (problem->k_dim + problem->v_dim);
    return NBL_EXIT_OK;
}

static int run_all(pipeline *p, const nbl_pipeline_options *options, nbl_pipeline_result *result, nbl_fault *fault)
{
    uint32_t tokens = p->problem->kv_tokens;
    uint32_t chunk = options->chunk_tokens ? options->chunk_tokens : tokens;
    uint64_t rows = (uint64_t)p->problem->q_tokens * p->problem->q_heads;
    result->o = nbl_alloc(rows, p->problem->v_dim * sizeof *result->o, fault);
    result->lse = nbl_alloc(rows, sizeof *result->lse, fault);
    int code = result->o && result->lse ? run_tokens(p, 0, chunk, result, fault) : NBL_EXIT_FAILED;
    if (code == NBL_EXIT_OK)
        code = read_back(p, result->o, result->lse, fault);
    if (code == NBL_EXIT_OK)
        code = read_sizes(p, result, fault);
    uint32_t decode = options->decode_tokens < p->problem->q_tokens ? options->decode_tokens : p->problem->q_tokens;
    if (decode >= tokens) /* the first token stays: it carries the sequence's centre */
        decode = tokens - 1;
    if (code == NBL_EXIT_OK && decode > 0)
        code = decode_again(p, decode, result, fault);
    return code;
}

int nbl_pipeline_run(nbl_session *session, const nbl_problem *problem, const nbl_pipeline_options *options,
                     nbl_pipeline_result *out_result, nbl_fault *fault)
{
    pipeline p = {.session = session, .problem = problem};
    nbl_pipeline_result result = {0};
    int code = open_cache(&p, options, fault);
    if (code == NBL_EXIT_OK)
        code = upload_inputs(&p, fault);
    if (code == NBL_EXIT_OK)
        code = upload_sinks(&p, fault);
    if (code == NBL_EXIT_OK)
        code = upload_q_centers(&p, fault);
    if (code == NBL_EXIT_OK)
        code = run_all(&p, options, &result, fault);
    close_pipeline(&p);
    if (code == NBL_EXIT_OK)
        *out_result = result;
    else
        nbl_pipeline_result_free(&result);
    return code;
}

void nbl_pipeline_result_free(nbl_pipeline_result *result)
{
    free(result->o);
    free(result->lse);
    result->o = result->lse = NULL;
}

double nbl_pipeline_bits(const nbl_problem *problem, const nbl_pipeline_result *result)
{
    double elements = (double)problem->kv_tokens * problem->kv_heads * ((double)problem->k_dim + problem->v_dim);
    return 8.0 * (double)result->used_bytes / elements;
}
