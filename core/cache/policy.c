/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file policy.c
 * @brief Recipes: names for choices of formats and transforms (docs/formats.md F8), as data.
 */
#include "cache.h"

#include <string.h>

#define SINK_TOKENS_DEFAULT 64u

static const struct {
    const char *name;
    uint32_t q_format, k_format, v_format, scale_rule;
} recipes[] = {
    {"qk4v8", NBL_Q4, NBL_MXFP4, NBL_INT8, NBL_RULE_DEFAULT},
    {"mxkv4", NBL_Q8, NBL_MXFP4, NBL_MXFP4, NBL_RULE_DEFAULT},
    {"kv4", NBL_Q8, NBL_INT4P, NBL_INT4P, NBL_RULE_DEFAULT},
    {"k4v8", NBL_Q8, NBL_INT4P, NBL_INT8, NBL_RULE_DEFAULT},
    {"kv8", NBL_Q8, NBL_INT8, NBL_INT8, NBL_RULE_DEFAULT},
    {"bf16", NBL_Q_DEFAULT, NBL_FORMAT_BF16, NBL_FORMAT_BF16, NBL_RULE_DEFAULT},
    {"fp16", NBL_Q_DEFAULT, NBL_FORMAT_FP16, NBL_FORMAT_FP16, NBL_RULE_DEFAULT},
    {"fp8", NBL_Q_DEFAULT, NBL_FP8_E4M3, NBL_FP8_E4M3, NBL_RULE_DEFAULT},
    {"nvfp4", NBL_Q_DEFAULT, NBL_NVFP4, NBL_NVFP4, NBL_RULE_DEFAULT},
    {"nvfp4_4over6", NBL_Q_DEFAULT, NBL_NVFP4, NBL_NVFP4, NBL_RULE_FOUR_OVER_SIX},
};

/* Largest Hadamard block by format, 0 for none, and centring. docs/adr/0006-channel-shifts.md has the measurements. */
static const struct {
    uint32_t format, k_block_max, v_block_max, k_centering;
} transforms[] = {
    {NBL_INT8, NBL_HADAMARD_MAX, NBL_HADAMARD_MAX, NBL_CENTERING_ALL},
    {NBL_MXFP4, 32, 32, NBL_CENTERING_ALL},
    {NBL_MXFP4_16, 32, 32, NBL_CENTERING_ALL},
    {NBL_INT4P, NBL_HADAMARD_MAX, NBL_HADAMARD_MAX, NBL_CENTERING_ALL},
    {NBL_FORMAT_BF16, 0, 0, 0}, /* what engines hold, as they hold it */
    {NBL_FORMAT_FP16, 0, 0, 0},
    {NBL_FP8_E4M3, 0, 0, 0},
    {NBL_NVFP4, 0, 0, 0},
};

/* Row of transforms for a known format. */
static size_t transform_find(uint32_t format)
{
    size_t i = 0;
    while (transforms[i].format != format)
        ++i;
    return i;
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

static nbl_status name_parse(const word *name, nbl_recipe *r, nbl_error *err)
{
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; ++i) {
        if (strlen(recipes[i].name) == name->bytes && memcmp(recipes[i].name, name->text, name->bytes) == 0) {
            r->q_format = recipes[i].q_format;
            r->k_format = recipes[i].k_format;
            r->v_format = recipes[i].v_format;
            r->scale_rule = recipes[i].scale_rule;
            return NBL_OK;
        }
    }
    return NBL_REFUSE(err, NBL_E_NOT_FOUND,
                      "recipe \"%.*s\" is unknown (known: qk4v8, mxkv4, kv4, k4v8, kv8, bf16, fp16, "
                      "fp8, nvfp4, nvfp4_4over6)",
                      (int)name->bytes, name->text);
}

static void defaults_set(nbl_recipe *r, uint32_t k_dim, uint32_t v_dim)
{
    const size_t k = transform_find(r->k_format), v = transform_find(r->v_format);
    r->k_hadamard = block_fit(k_dim, transforms[k].k_block_max);
    r->v_hadamard = block_fit(v_dim, transforms[v].v_block_max);
    r->centering = transforms[k].k_centering;
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

/* given has bit i set once keys[i] was seen. */
static nbl_status modifier_parse(const word *w, nbl_recipe *r, uint32_t *given, nbl_error *err)
{
    const struct {
        const char *key;
        uint32_t *field;
    } keys[] = {{"hadamard=", &r->k_hadamard},
                {"vhadamard=", &r->v_hadamard},
                {"center=", &r->centering},
                {"sinks=", &r->sink_tokens}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        const size_t key_bytes = strlen(keys[i].key);
        if (w->bytes < key_bytes || memcmp(w->text, keys[i].key, key_bytes) != 0)
            continue;
        if ((*given >> i & 1u) != 0)
            return NBL_REFUSE(err, NBL_E_INVALID, "recipe modifier \"%.*s\" comes twice (allowed: once)", (int)w->bytes,
                              w->text);
        *given |= 1u << i;
        if (number_parse(w->text + key_bytes, w->bytes - key_bytes, keys[i].field))
            return NBL_OK;
        return NBL_REFUSE(err, NBL_E_INVALID, "recipe modifier \"%.*s\" has no number (needed: %sN)", (int)w->bytes,
                          w->text, keys[i].key);
    }
    return NBL_REFUSE(err, NBL_E_INVALID,
                      "recipe modifier \"%.*s\" is unknown (known: hadamard=N, vhadamard=N, center=0..3, sinks=N)",
                      (int)w->bytes, w->text);
}

static nbl_status dim_check(const char *field, uint32_t dim, uint32_t dim_max, nbl_error *err)
{
    NBL_TRY(nbl_value_check("", field, dim, NBL_DIM_MIN, dim_max, err));
    if (dim % NBL_DIM_STEP != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s is %u (needed: a multiple of %u)", field, dim, NBL_DIM_STEP);
    return NBL_OK;
}

static nbl_status values_check(const nbl_recipe *r, uint32_t k_dim, uint32_t v_dim, nbl_error *err)
{
    NBL_TRY(nbl_hadamard_check("recipe modifier ", "hadamard", r->k_hadamard, k_dim, err));
    NBL_TRY(nbl_hadamard_check("recipe modifier ", "vhadamard", r->v_hadamard, v_dim, err));
    NBL_TRY(nbl_value_check("recipe modifier ", "center", r->centering, 0, NBL_CENTERING_ALL, err));
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
    NBL_TRY(name_parse(&w, &r, err));
    memcpy(r.name, w.text, w.bytes);
    defaults_set(&r, k_dim, v_dim);
    while (word_next(&cursor, &w))
        NBL_TRY(modifier_parse(&w, &r, &given, err));
    NBL_TRY(values_check(&r, k_dim, v_dim, err));
    nbl_struct_out(out_recipe, &r, (uint32_t)sizeof r);
    return NBL_OK;
}
