/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file policy.c
 * @brief Recipes and policies: names for choices of formats and transforms (docs/formats.md F8, docs/kv-cache.md), as
 * data.
 */
#include "cache.h"

#include <string.h>

#define SINK_TOKENS_DEFAULT 64u

static const struct {
    const char *name;
    uint32_t q_format, k_format, v_format, scale_rule;
    uint32_t centering; /* besides that of K's format */
    uint32_t q_centering;
} recipes[] = {
    {"qk4v8", NBL_Q4, NBL_MXFP4, NBL_INT8, NBL_RULE_DEFAULT, 0, 0},
    {"mxkv4", NBL_Q8, NBL_MXFP4, NBL_MXFP4, NBL_RULE_DEFAULT, 0, 0},
    {"kv4", NBL_Q8, NBL_INT4P, NBL_INT4P, NBL_RULE_DEFAULT, 0, 0},
    {"k4v8", NBL_Q8, NBL_INT4P, NBL_INT8, NBL_RULE_DEFAULT, 0, 0},
    {"kv8", NBL_Q8, NBL_INT8, NBL_INT8, NBL_RULE_DEFAULT, 0, 0},
    {"bf16", NBL_Q_DEFAULT, NBL_FORMAT_BF16, NBL_FORMAT_BF16, NBL_RULE_DEFAULT, 0, 0},
    {"fp16", NBL_Q_DEFAULT, NBL_FORMAT_FP16, NBL_FORMAT_FP16, NBL_RULE_DEFAULT, 0, 0},
    {"fp8", NBL_Q_DEFAULT, NBL_FP8_E4M3, NBL_FP8_E4M3, NBL_RULE_DEFAULT, 0, 0},
    {"nvfp4", NBL_Q_DEFAULT, NBL_NVFP4, NBL_NVFP4, NBL_RULE_DEFAULT, 0, 0},
    {"nvfp4_4over6", NBL_Q_DEFAULT, NBL_NVFP4, NBL_NVFP4, NBL_RULE_FOUR_OVER_SIX, 0, 0},
    {"mpfa", NBL_Q_FP4, NBL_NVFP4, NBL_FP8_E4M3, NBL_RULE_DEFAULT, NBL_CENTERING_MEAN, 1},
};

/* Formats by name: largest Hadamard block of K and V, 0 for none, and centring. docs/adr/0006-channel-shifts.md has the
 * measurements. */
static const struct {
    const char *name;
    uint32_t format, k_block_max, v_block_max, k_centering;
} transforms[] = {
    {"int8", NBL_INT8, NBL_HADAMARD_MAX, NBL_HADAMARD_MAX, NBL_CENTERING_ALL},
    {"mxfp4", NBL_MXFP4, 32, 32, NBL_CENTERING_ALL},
    {"mxfp4_16", NBL_MXFP4_16, 32, 32, NBL_CENTERING_ALL},
    {"int4p", NBL_INT4P, NBL_HADAMARD_MAX, NBL_HADAMARD_MAX, NBL_CENTERING_ALL},
    {"bf16", NBL_FORMAT_BF16, 0, 0, 0}, /* what engines hold, as they hold it */
    {"fp16", NBL_FORMAT_FP16, 0, 0, 0},
    {"fp8_e4m3", NBL_FP8_E4M3, 0, 0, 0},
    {"nvfp4", NBL_NVFP4, 0, 0, 0},
};

/* Row of transforms for a known format. */
static size_t transform_find(uint32_t format)
{
    size_t i = 0;
    while (transforms[i].format != format)
        ++i;
    return i;
}

const char *nbl_format_name(uint32_t format)
{
    for (size_t i = 0; i < sizeof transforms / sizeof transforms[0]; ++i) {
        if (transforms[i].format == format)
            return transforms[i].name;
    }
    return "none";
}

/* Largest power of two that divides dim and does not exceed most: at least 8, for dims are multiples of it, or 0. */
static uint32_t block_fit(uint32_t dim, uint32_t most)
{
    const uint32_t divisor = dim & (0u - dim);
    return divisor < most ? divisor : most;
}

/* A piece of text between separators. */
typedef struct word {
    const char *text;
    size_t bytes;
} word;

/* "default", the policy of those who name none (docs/adr/0026-default-policy.md): a recipe, and a window unless a
 * modifier sets another. */
static const word default_name = {"default", 7}, default_recipe = {"kv4", 3}, default_recent = {"recent=128", 10};

/* Takes the next word up to a comma or the end; false when the text is used up. */
static bool word_next(const char **cursor, word *out)
{
    if (*cursor == NULL)
        return false;
    const char *end = strchr(*cursor, ',');
    *out = (word){*cursor, end != NULL ? (size_t)(end - *cursor) : strlen(*cursor)};
    *cursor = end != NULL ? end + 1 : NULL;
    return true;
}

static bool word_is(const word *w, const char *text)
{
    return strlen(text) == w->bytes && memcmp(w->text, text, w->bytes) == 0;
}

static bool word_starts(const word *w, const char *key)
{
    return w->bytes >= strlen(key) && memcmp(w->text, key, strlen(key)) == 0;
}

/* Format of that name, NBL_FORMAT_NONE if there is none. */
static uint32_t format_parse(const char *text, size_t bytes)
{
    for (size_t i = 0; i < sizeof transforms / sizeof transforms[0]; ++i) {
        const char *name = transforms[i].name;
        if (strlen(name) == bytes && memcmp(name, text, bytes) == 0)
            return transforms[i].format;
    }
    return NBL_FORMAT_NONE;
}

/* K/V, a pair of formats with their default query; false if it is none. */
static bool pair_parse(const word *name, nbl_recipe *r)
{
    const char *slash = memchr(name->text, '/', name->bytes);
    if (slash == NULL)
        return false;
    const size_t k_bytes = (size_t)(slash - name->text);
    r->k_format = format_parse(name->text, k_bytes);
    r->v_format = format_parse(slash + 1, name->bytes - k_bytes - 1u);
    r->q_format = NBL_Q_DEFAULT;
    r->scale_rule = NBL_RULE_DEFAULT;
    return r->k_format != NBL_FORMAT_NONE && r->v_format != NBL_FORMAT_NONE;
}

/* more: names beside the recipes' that the caller takes, for the message. */
static nbl_status name_parse(const word *name, const char *more, nbl_recipe *r, nbl_error *err)
{
    if (pair_parse(name, r))
        return NBL_OK;
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; ++i) {
        if (word_is(name, recipes[i].name)) {
            r->q_format = recipes[i].q_format;
            r->k_format = recipes[i].k_format;
            r->v_format = recipes[i].v_format;
            r->scale_rule = recipes[i].scale_rule;
            r->centering = recipes[i].centering;
            r->q_centering = recipes[i].q_centering;
            return NBL_OK;
        }
    }
    return NBL_REFUSE(err, NBL_E_NOT_FOUND,
                      "recipe \"%.*s\" is unknown (known: qk4v8, mxkv4, kv4, k4v8, kv8, bf16, fp16, "
                      "fp8, nvfp4, nvfp4_4over6, mpfa%s; or K/V of int8, mxfp4, mxfp4_16, int4p, bf16, fp16, fp8_e4m3, "
                      "nvfp4)",
                      (int)name->bytes, name->text, more);
}

static void defaults_set(nbl_recipe *r, uint32_t k_dim, uint32_t v_dim)
{
    const size_t k = transform_find(r->k_format), v = transform_find(r->v_format);
    r->k_hadamard = block_fit(k_dim, transforms[k].k_block_max);
    r->v_hadamard = block_fit(v_dim, transforms[v].v_block_max);
    r->centering |= transforms[k].k_centering;
    r->sink_tokens = transforms[k].k_centering == 0 || (r->k_format == NBL_INT8 && r->v_format == NBL_INT8)
                         ? 0u
                         : SINK_TOKENS_DEFAULT;
}

/* Decimal digits only, at most eight of them. */
static bool number_parse(const char *text, size_t bytes, uint32_t *out)
{
    if (bytes == 0 || bytes > 8)
        return false;
    *out = 0;
    for (size_t i = 0; i < bytes; ++i) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *out = *out * 10u + (uint32_t)(text[i] - '0');
    }
    return true;
}

#define RECIPE_KEYS 5u
#define RECIPE_MODIFIERS "hadamard=N, vhadamard=N, center=0..3, qcenter=0..1, sinks=N"

/* Index of the key that a word starts with, RECIPE_KEYS if there is none. */
static size_t key_find(const word *w)
{
    static const char *const keys[RECIPE_KEYS] = {"hadamard=", "vhadamard=", "center=", "qcenter=", "sinks="};
    size_t i = 0;
    while (i < RECIPE_KEYS && !word_starts(w, keys[i]))
        ++i;
    return i;
}

/* given has bit i set once key i was seen. */
static nbl_status modifier_parse(const word *w, nbl_recipe *r, uint32_t *given, nbl_error *err)
{
    uint32_t *const fields[RECIPE_KEYS] = {&r->k_hadamard, &r->v_hadamard, &r->centering, &r->q_centering,
                                           &r->sink_tokens};
    const size_t key = key_find(w);
    if (key == RECIPE_KEYS)
        return NBL_REFUSE(err, NBL_E_INVALID, "recipe modifier \"%.*s\" is unknown (known: " RECIPE_MODIFIERS ")",
                          (int)w->bytes, w->text);
    if ((*given >> key & 1u) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "recipe modifier \"%.*s\" comes twice (allowed: once)", (int)w->bytes,
                          w->text);
    *given |= 1u << key;
    const size_t key_bytes = (size_t)((const char *)memchr(w->text, '=', w->bytes) - w->text) + 1u;
    if (number_parse(w->text + key_bytes, w->bytes - key_bytes, fields[key]))
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "recipe modifier \"%.*s\" has no number (needed: %.*sN)", (int)w->bytes,
                      w->text, (int)key_bytes, w->text);
}

static nbl_status dim_check(const char *field, uint32_t dim, uint32_t dim_max, nbl_error *err)
{
    NBL_TRY(nbl_value_check("", field, dim, NBL_DIM_MIN, dim_max, err));
    if (dim % NBL_DIM_STEP != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s is %u (needed: a multiple of %u)", field, dim, NBL_DIM_STEP);
    return NBL_OK;
}

/* Tokens in int8 beside the recipe's: a side has fp16 in all regions or in none, and queries in FP4 take one pair of
 * formats. key names the modifier that asks for them, k and v the sides. */
static nbl_status int8_check(uint32_t q_format, uint32_t k_format, uint32_t v_format, bool k, bool v, const char *key,
                             nbl_error *err)
{
    if (q_format == NBL_Q_FP4)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "modifier %s keeps tokens in int8, and queries are in FP4 (allowed: none)", key);
    if ((k && k_format == NBL_FORMAT_FP16) || (v && v_format == NBL_FORMAT_FP16))
        return NBL_REFUSE(err, NBL_E_INVALID, "modifier %s keeps tokens in int8 beside fp16 (allowed: none)", key);
    return NBL_OK;
}

static nbl_status values_check(const nbl_recipe *r, uint32_t k_dim, uint32_t v_dim, nbl_error *err)
{
    NBL_TRY(nbl_hadamard_check("recipe modifier ", "hadamard", r->k_hadamard, k_dim, err));
    NBL_TRY(nbl_hadamard_check("recipe modifier ", "vhadamard", r->v_hadamard, v_dim, err));
    NBL_TRY(nbl_value_check("recipe modifier ", "center", r->centering, 0, NBL_CENTERING_ALL, err));
    if (r->sink_tokens > 0)
        NBL_TRY(int8_check(r->q_format, r->k_format, r->v_format, true, true, "sinks", err));
    NBL_TRY(nbl_value_check("recipe modifier ", "qcenter", r->q_centering, 0, r->q_format == NBL_Q_FP4, err));
    return nbl_value_check("recipe modifier ", "sinks", r->sink_tokens, 0, NBL_KV_TOKENS_MAX, err);
}

nbl_status nbl_api_recipe_parse(const char *name, uint32_t k_dim, uint32_t v_dim, nbl_recipe *out_recipe,
                                nbl_error *err)
{
    nbl_recipe r = NBL_INIT(nbl_recipe);
    const char *cursor = name;
    uint32_t given = 0;
    word w;
    NBL_TRY(NBL_STRUCT_OUT_CHECK(nbl_recipe, out_recipe, err));
    NBL_TRY(dim_check("k_dim", k_dim, NBL_K_DIM_MAX, err));
    NBL_TRY(dim_check("v_dim", v_dim, NBL_V_DIM_MAX, err));
    if (!word_next(&cursor, &w))
        return NBL_REFUSE(err, NBL_E_INVALID, "name is NULL (needed: a recipe, for example \"kv4\")");
    NBL_TRY(name_parse(&w, "", &r, err));
    memcpy(r.name, w.text, w.bytes);
    defaults_set(&r, k_dim, v_dim);
    while (word_next(&cursor, &w))
        NBL_TRY(modifier_parse(&w, &r, &given, err));
    NBL_TRY(values_check(&r, k_dim, v_dim, err));
    nbl_struct_out(out_recipe, &r, (uint32_t)sizeof r);
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ policies */

/* The policy at work. */
typedef struct policy_work {
    nbl_policy *policy;
    const nbl_recipe *recipe; /* of all layers */
    uint32_t layers, k_dim, v_dim;
    uint32_t recent, beyond; /* modifiers seen */
} policy_work;

static nbl_status rule_add(policy_work *w, const word *modifier, nbl_policy_rule rule, nbl_error *err)
{
    if (w->policy->rule_count == NBL_RULES_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID, "policy modifier \"%.*s\" is one too many (allowed: %u rules)",
                          (int)modifier->bytes, modifier->text, NBL_RULES_MAX);
    w->policy->rules[w->policy->rule_count++] = rule;
    return NBL_OK;
}

/* N, N:k or N:v: so many tokens of a scope in int8, of both kinds or of one. */
static nbl_status scope_parse(policy_work *w, const word *modifier, const char *key, uint32_t scope, nbl_error *err)
{
    const size_t key_bytes = strlen(key);
    word value = {modifier->text + key_bytes, modifier->bytes - key_bytes};
    nbl_policy_rule rule = {.scope = scope, .k_format = NBL_INT8, .v_format = NBL_INT8};
    if (value.bytes > 2 && value.text[value.bytes - 2u] == ':') {
        const char kind = value.text[value.bytes - 1u];
        rule.k_format = kind == 'k' ? NBL_INT8 : NBL_FORMAT_NONE;
        rule.v_format = kind == 'v' ? NBL_INT8 : NBL_FORMAT_NONE;
        value.bytes -= kind == 'k' || kind == 'v' ? 2u : 0u;
    }
    if (!number_parse(value.text, value.bytes, &rule.tokens) || rule.tokens == 0 || rule.tokens > NBL_KV_TOKENS_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID, "policy modifier \"%.*s\" has no such number (needed: %sN, N:k or N:v)",
                          (int)modifier->bytes, modifier->text, key);
    return rule_add(w, modifier, rule, err);
}

/* Layers of a range: N, N-M, firstN or lastN. false if it is none, or not of this model. */
static bool layers_parse(const policy_work *w, word range, uint32_t *begin, uint32_t *end)
{
    const char *dash = memchr(range.text, '-', range.bytes);
    uint32_t count = 0;
    *begin = 0;
    if (word_starts(&range, "first") || word_starts(&range, "last")) {
        const size_t key_bytes = range.text[0] == 'f' ? 5u : 4u;
        if (!number_parse(range.text + key_bytes, range.bytes - key_bytes, &count) || count == 0 || count > w->layers)
            return false;
        *begin = range.text[0] == 'f' ? 0 : w->layers - count;
        *end = *begin + count;
        return true;
    }
    const size_t first_bytes = dash != NULL ? (size_t)(dash - range.text) : range.bytes;
    if (!number_parse(range.text, first_bytes, begin))
        return false;
    *end = *begin;
    if (dash != NULL && !number_parse(dash + 1, range.bytes - first_bytes - 1u, end))
        return false;
    return *begin <= *end && (*end)++ < w->layers;
}

/* Queries of a call have one format, and pools one rule for scales: no recipe of some layers brings its own. */
static bool is_like_others(const nbl_recipe *layers, const nbl_recipe *others)
{
    const bool queries = layers->q_format == NBL_Q4 || layers->q_format == NBL_Q_FP4;
    const bool scales = layers->scale_rule != NBL_RULE_DEFAULT;
    return (!queries || layers->q_format == others->q_format) && (!scales || layers->scale_rule == others->scale_rule);
}

/* RANGE:RECIPE, a recipe of its own for some layers. */
static nbl_status layers_modifier(policy_work *w, const word *modifier, nbl_error *err)
{
    const word value = {modifier->text + strlen("layers="), modifier->bytes - strlen("layers=")};
    const char *colon = memchr(value.text, ':', value.bytes);
    nbl_policy_rule rule = {.scope = NBL_SCOPE_ALL};
    nbl_recipe r = NBL_INIT(nbl_recipe);
    if (colon == NULL ||
        !layers_parse(w, (word){value.text, (size_t)(colon - value.text)}, &rule.layer_begin, &rule.layer_end))
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "policy modifier \"%.*s\" names no layers of 0..%u (needed: layers=A-B:RECIPE, A:, firstN: "
                          "or lastN:)",
                          (int)modifier->bytes, modifier->text, w->layers - 1u);
    const word name = {colon + 1, (size_t)(value.text + value.bytes - colon) - 1u};
    NBL_TRY(name_parse(&name, "", &r, err));
    if (!is_like_others(&r, w->recipe))
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "policy modifier \"%.*s\" asks for queries or scales that the other layers do not have "
                          "(needed: a pair of formats, K/V)",
                          (int)modifier->bytes, modifier->text);
    defaults_set(&r, w->k_dim, w->v_dim);
    rule.k_format = r.k_format;
    rule.v_format = r.v_format;
    rule.k_hadamard = r.k_hadamard != 0 ? r.k_hadamard : 1u;
    rule.v_hadamard = r.v_hadamard != 0 ? r.v_hadamard : 1u;
    return rule_add(w, modifier, rule, err);
}

static nbl_status once_check(uint32_t *seen, const word *modifier, nbl_error *err)
{
    if ((*seen)++ == 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "policy modifier \"%.*s\" comes twice (allowed: once)", (int)modifier->bytes,
                      modifier->text);
}

/* A modifier that recipes do not have; they are tried in this order. */
static nbl_status policy_modifier(policy_work *w, const word *modifier, nbl_error *err)
{
    if (word_starts(modifier, "layers="))
        return layers_modifier(w, modifier, err);
    if (word_starts(modifier, "recent=")) {
        NBL_TRY(once_check(&w->recent, modifier, err));
        return scope_parse(w, modifier, "recent=", NBL_SCOPE_RECENT, err);
    }
    if (word_starts(modifier, "beyond=")) {
        NBL_TRY(once_check(&w->beyond, modifier, err));
        return scope_parse(w, modifier, "beyond=", NBL_SCOPE_BEYOND, err);
    }
    return NBL_REFUSE(err, NBL_E_INVALID,
                      "policy modifier \"%.*s\" is unknown (known: " RECIPE_MODIFIERS
                      ", recent=N, beyond=N, layers=A-B:RECIPE)",
                      (int)modifier->bytes, modifier->text);
}

static nbl_status rules_check(const nbl_policy *p, const nbl_recipe *r, nbl_error *err)
{
    static const char *const keys[] = {
        [NBL_SCOPE_ALL] = "layers", [NBL_SCOPE_RECENT] = "recent", [NBL_SCOPE_BEYOND] = "beyond"};
    for (uint32_t i = 0; i < p->rule_count; ++i) {
        const nbl_policy_rule *rule = &p->rules[i];
        const bool layers = rule->scope == NBL_SCOPE_ALL;
        if (layers && r->q_format == NBL_Q_FP4 && (rule->k_format != r->k_format || rule->v_format != r->v_format))
            return NBL_REFUSE(
                err, NBL_E_INVALID,
                "modifier layers gives layers formats that queries in FP4 do not go with (allowed: none)");
        if (!layers)
            NBL_TRY(int8_check(r->q_format, r->k_format, r->v_format, rule->k_format == NBL_INT8,
                               rule->v_format == NBL_INT8, keys[rule->scope], err));
    }
    return NBL_OK;
}

static void recipe_store(const nbl_recipe *r, nbl_policy *p)
{
    p->q_format = r->q_format;
    p->k_format = r->k_format;
    p->v_format = r->v_format;
    p->k_hadamard = r->k_hadamard;
    p->v_hadamard = r->v_hadamard;
    p->centering = r->centering;
    p->sink_tokens = r->sink_tokens;
    p->scale_rule = r->scale_rule;
    p->q_centering = r->q_centering;
}

nbl_status nbl_api_policy_parse(const char *text, uint32_t layers, uint32_t k_dim, uint32_t v_dim,
                                nbl_policy *out_policy, nbl_error *err)
{
    nbl_policy p = NBL_INIT(nbl_policy);
    nbl_recipe r = NBL_INIT(nbl_recipe);
    policy_work work = {.policy = &p, .recipe = &r, .layers = layers, .k_dim = k_dim, .v_dim = v_dim};
    const char *cursor = text;
    uint32_t given = 0;
    word w;
    NBL_TRY(NBL_STRUCT_OUT_CHECK(nbl_policy, out_policy, err));
    NBL_TRY(nbl_value_check("", "layers", layers, 1, UINT32_MAX, err));
    NBL_TRY(dim_check("k_dim", k_dim, NBL_K_DIM_MAX, err));
    NBL_TRY(dim_check("v_dim", v_dim, NBL_V_DIM_MAX, err));
    if (!word_next(&cursor, &w))
        return NBL_REFUSE(err, NBL_E_INVALID, "text is NULL (needed: a policy, for example \"kv4,recent=256\")");
    const bool is_default = word_is(&w, default_name.text);
    NBL_TRY(name_parse(is_default ? &default_recipe : &w, ", default", &r, err));
    defaults_set(&r, k_dim, v_dim);
    while (word_next(&cursor, &w)) {
        if (key_find(&w) < RECIPE_KEYS)
            NBL_TRY(modifier_parse(&w, &r, &given, err));
        else
            NBL_TRY(policy_modifier(&work, &w, err));
    }
    if (is_default && work.recent == 0)
        NBL_TRY(scope_parse(&work, &default_recent, "recent=", NBL_SCOPE_RECENT, err));
    NBL_TRY(values_check(&r, k_dim, v_dim, err));
    NBL_TRY(rules_check(&p, &r, err));
    recipe_store(&r, &p);
    nbl_struct_out(out_policy, &p, (uint32_t)sizeof p);
    return NBL_OK;
}
