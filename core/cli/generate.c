/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const nbl_generate_names[] = {"gaussian",   "outliers",    "sinks",      "student-t",
                                          "outlier-30", "outlier-100", "log-normal", NULL};

enum { STREAM_Q = 1, STREAM_K = 2, STREAM_V = 3, STREAM_SHAPE = 4, T_FREEDOM = 3, OUTLIER_BLOCK = 32 };

static const double two_pi = 6.28318530717958647692;
static const float sink_logit = 20.0f; /* above the other logits, in natural units */
static const float sink_value_scale = 1e-3f;

/* Weyl sequence with an output mixer: any state is a good one, so streams are cheap. */
typedef struct random_state {
    uint64_t counter;
} random_state;

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static random_state random_start(uint64_t seed, uint64_t stream)
{
    return (random_state){mix(seed + 0x9e3779b97f4a7c15u) ^ mix(stream * 0xd1342543de82ef95u + 1u)};
}

static uint64_t random_bits(random_state *state)
{
    state->counter += 0x9e3779b97f4a7c15u;
    return mix(state->counter);
}

/* Uniform in (0, 1]. */
static double random_uniform(random_state *state)
{
    return ((double)(random_bits(state) >> 11) + 1.0) * 0x1p-53;
}

static double random_gaussian(random_state *state)
{
    double radius = sqrt(-2.0 * log(random_uniform(state)));
    return radius * cos(two_pi * random_uniform(state));
}

static double random_student_t(random_state *state)
{
    double chi2 = 0.0;
    for (int i = 0; i < T_FREEDOM; i++) {
        double g = random_gaussian(state);
        chi2 += g * g;
    }
    return random_gaussian(state) / sqrt(chi2 / T_FREEDOM);
}

static double random_log_normal(random_state *state)
{
    double magnitude = exp(random_gaussian(state));
    return random_bits(state) & 1u ? magnitude : -magnitude;
}

static void fill(float *values, uint64_t count, uint64_t seed, uint64_t stream, double (*draw)(random_state *))
{
    random_state state = random_start(seed, stream);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)draw(&state);
}

void nbl_generate_gaussian(float *values, uint64_t count, uint64_t seed, uint64_t stream)
{
    fill(values, count, seed, stream, random_gaussian);
}

/* One element of every 32 becomes `factor` times as large, another one in each vector. */
static void scale_outliers(float *values, uint64_t vectors, uint32_t dim, float factor, random_state *state)
{
    for (uint64_t i = 0; i < vectors; i++) {
        for (uint32_t first = 0; first < dim; first += OUTLIER_BLOCK) {
            uint32_t width = dim - first < OUTLIER_BLOCK ? dim - first : OUTLIER_BLOCK;
            values[i * dim + first + (uint32_t)(random_bits(state) % width)] *= factor;
        }
    }
}

static void add_outlier_elements(nbl_problem *problem, uint64_t seed, float factor)
{
    uint64_t vectors = (uint64_t)problem->kv_tokens * problem->kv_heads;
    random_state state = random_start(seed, STREAM_SHAPE);
    scale_outliers(problem->k, vectors, problem->k_dim, factor, &state);
    scale_outliers(problem->v, vectors, problem->v_dim, factor, &state);
}

static void add_outlier_channels(nbl_problem *problem, uint64_t seed)
{
    random_state state = random_start(seed, STREAM_SHAPE);
    for (uint32_t head = 0; head < problem->kv_heads; head++) {
        uint32_t channels = 2u + (uint32_t)(random_bits(&state) % 3u);
        uint32_t first = (uint32_t)(random_bits(&state) % problem->k_dim);
        for (uint32_t i = 0; i < channels; i++) {
            uint32_t d =
                (first + i * (problem->k_dim / 4 + 1)) % problem->k_dim; /* all different for dimensions over 12 */
            float bias = (float)(50.0 + 250.0 * random_uniform(&state));
            bias = random_bits(&state) & 1u ? bias : -bias;
            for (uint64_t t = 0; t < problem->kv_tokens; t++)
                problem->k[(t * problem->kv_heads + head) * problem->k_dim + d] += bias;
        }
    }
}

/* Adds one common vector to every query and puts key 0 along it, so that their product is sink_logit / sm_scale. */
static void add_sink_token(nbl_problem *problem)
{
    float scale = problem->sm_scale > 0.0f ? problem->sm_scale : 1.0f / sqrtf((float)problem->k_dim);
    float key = sink_logit / (scale * (float)problem->k_dim);
    uint64_t q_count = (uint64_t)problem->q_tokens * problem->q_heads * problem->k_dim;
    uint64_t k_count = (uint64_t)problem->kv_heads * problem->k_dim;
    uint64_t v_count = (uint64_t)problem->kv_heads * problem->v_dim;
    for (uint64_t i = 0; i < q_count; i++)
        problem->q[i] += i % problem->k_dim & 1u ? -1.0f : 1.0f;
    for (uint64_t i = 0; i < k_count; i++)
        problem->k[i] = i % problem->k_dim & 1u ? -key : key;
    for (uint64_t i = 0; i < v_count; i++)
        problem->v[i] *= sink_value_scale;
}

static bool name_known(const char *name)
{
    for (size_t i = 0; nbl_generate_names[i]; i++) {
        if (strcmp(name, nbl_generate_names[i]) == 0)
            return true;
    }
    return false;
}

int nbl_problem_generate(nbl_problem *problem, const char *name, uint64_t seed, nbl_fault *fault)
{
    if (!name_known(name))
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--generate: unknown distribution \"%.64s\" (known: %s)", name,
                             NBL_GENERATE_NAMES);
    double (*draw)(random_state *) = strcmp(name, "student-t") == 0    ? random_student_t
                                     : strcmp(name, "log-normal") == 0 ? random_log_normal
                                                                       : random_gaussian;
    fill(problem->q, (uint64_t)problem->q_tokens * problem->q_heads * problem->k_dim, seed, STREAM_Q, draw);
    fill(problem->k, (uint64_t)problem->kv_tokens * problem->kv_heads * problem->k_dim, seed, STREAM_K, draw);
    fill(problem->v, (uint64_t)problem->kv_tokens * problem->kv_heads * problem->v_dim, seed, STREAM_V, draw);
    if (strcmp(name, "outliers") == 0)
        add_outlier_channels(problem, seed);
    if (strcmp(name, "outlier-30") == 0)
        add_outlier_elements(problem, seed, 30.0f);
    if (strcmp(name, "outlier-100") == 0)
        add_outlier_elements(problem, seed, 100.0f);
    if (strcmp(name, "sinks") == 0)
        add_sink_token(problem);
    snprintf(problem->source, sizeof problem->source, "%s", name);
    return NBL_EXIT_OK;
}

int nbl_shape_options_refuse(const nbl_shape_options *shape, nbl_fault *fault)
{
    const struct {
        const char *name;
        bool given;
    } options[] = {
        {"hq", shape->q_heads != 0},
        {"hkv", shape->kv_heads != 0},
        {"d", shape->k_dim != 0},
        {"dv", shape->v_dim != 0},
        {"kv", shape->kv_tokens != 0},
        {"nq", shape->q_tokens != 0},
        {"seed", shape->seed != NBL_SEED_UNSET},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given)
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: needs --generate", options[i].name);
    }
    return NBL_EXIT_OK;
}

static void set_unless_given(uint32_t *value, uint32_t standard)
{
    if (*value == 0)
        *value = standard;
}

void nbl_shape_options_complete(nbl_shape_options *shape, uint32_t q_tokens_default)
{
    set_unless_given(&shape->q_heads, 8);
    set_unless_given(&shape->kv_heads, 2);
    set_unless_given(&shape->k_dim, 128);
    set_unless_given(&shape->kv_tokens, 1024);
    set_unless_given(&shape->q_tokens, q_tokens_default < shape->kv_tokens ? q_tokens_default : shape->kv_tokens);
    if (shape->seed == NBL_SEED_UNSET)
        shape->seed = 1;
}

int nbl_problem_make(const nbl_shape_options *shape, const char *name, nbl_problem *out_problem, nbl_fault *fault)
{
    nbl_problem problem = {
        .q_tokens = shape->q_tokens,
        .q_heads = shape->q_heads,
        .kv_tokens = shape->kv_tokens,
        .kv_heads = shape->kv_heads,
        .k_dim = shape->k_dim,
        .v_dim = shape->v_dim ? shape->v_dim : shape->k_dim,
    };
    int code = nbl_problem_check(&problem, NBL_EXIT_USAGE, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_problem_alloc(&problem, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_problem_generate(&problem, name, shape->seed, fault);
    if (code == NBL_EXIT_OK)
        *out_problem = problem;
    else
        nbl_problem_free(&problem);
    return code;
}

void nbl_generate_permutation(int32_t *values, uint32_t count, uint64_t seed)
{
    random_state state = random_start(seed, STREAM_SHAPE);
    for (uint32_t i = 0; i < count; i++)
        values[i] = (int32_t)i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)(random_bits(&state) % i);
        int32_t swapped = values[i - 1];
        values[i - 1] = values[j];
        values[j] = swapped;
    }
}
