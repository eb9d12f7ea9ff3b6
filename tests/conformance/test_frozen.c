/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_frozen.c
 * @brief The bits of numerics version 1, as digests: they stay what they are even if page, oracle and code change
 * together.
 *
 * A digest that differs means that the results of users change. Then NBL_NUMERICS_VERSION has to be raised, and these
 * digests with it; a change of the harness's data moves them too, and has to be shown not to be a change of the
 * product.
 */
#include "harness.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ANY "any profile"
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

/* append of K and V and attend of their last q_len tokens, causal. */
typedef struct known {
    const char *name;
    uint32_t q_format, k_format, v_format, k_dim, v_dim, k_hadamard, v_hadamard, centering, data, q_len, kv_len;
    const char *profile; /* of the float core's cases; or ANY */
    uint64_t digest;
} known;

static const known list[] = {
    {"kv4, one token", NBL_Q8, NBL_INT4P, NBL_INT4P, 128, 128, 128, 128, NBL_CENTERING_ALL, DATA_OUTLIERS, 1, 2100, ANY,
     0xFCC10A1F93E1C3C2},
    {"kv4, a chunk", NBL_Q8, NBL_INT4P, NBL_INT4P, 64, 64, 64, 64, NBL_CENTERING_ALL, DATA_NORMAL, 40, 1100, ANY,
     0xE581A78D8B907E53},
    {"mxkv4", NBL_Q8, NBL_MXFP4, NBL_MXFP4, 128, 128, 32, 0, NBL_CENTERING_ALL, DATA_BLOCKS, 3, 1100, ANY,
     0x290CFA874DADEA80},
    {"k4v8", NBL_Q8, NBL_INT4P, NBL_INT8, 96, 80, 32, 16, NBL_CENTERING_SHIFT, DATA_SCALED, 9, 1030, ANY,
     0xC3BE9CFF98A9E800},
    {"qk4v8", NBL_Q4, NBL_MXFP4, NBL_INT8, 128, 128, 32, 0, NBL_CENTERING_MEAN, DATA_NORMAL, 17, 1100, ANY,
     0x7A3F0ABD8C304ED3},
    {"kv8", NBL_Q8, NBL_INT8, NBL_INT8, 256, 256, 256, 0, 0, DATA_SPARSE, 2, 300, ANY, 0xF6DE4A44A13C5305},
    {"mxfp4_16, any bits", NBL_Q8, NBL_MXFP4_16, NBL_INT8, 72, 40, 8, 0, 0, DATA_BITS, 5, 200, ANY, 0x9D9106C6535904B6},
    {"mpfa", NBL_Q_FP4, NBL_NVFP4, NBL_FP8_E4M3, 128, 128, 0, 0, 0, DATA_NORMAL, 7, 1100, ANY, 0x4998BD1157523CEC},
    {"mpfa of mxfp4", NBL_Q_FP4, NBL_MXFP4, NBL_FP8_E4M3, 64, 64, 0, 0, 0, DATA_SCALED, 3, 300, ANY,
     0x4DE8DBB914AD3667},
    {"bf16, sm_80", NBL_Q_DEFAULT, NBL_FORMAT_BF16, NBL_FORMAT_BF16, 128, 128, 0, 0, 0, DATA_NORMAL, 3, 1100, "sm_80",
     0x798BF5373A63F05D},
    {"bf16, sm_90", NBL_Q_DEFAULT, NBL_FORMAT_BF16, NBL_FORMAT_BF16, 128, 128, 0, 0, 0, DATA_NORMAL, 3, 1100, "sm_90",
     0x4F06596863DE208E},
    {"fp16, sm_90", NBL_Q_DEFAULT, NBL_FORMAT_FP16, NBL_FORMAT_FP16, 64, 64, 0, 0, 0, DATA_SCALED, 20, 1100, "sm_90",
     0x8E38A8FD3FF91320},
    {"fp8, sm_90", NBL_Q_DEFAULT, NBL_FP8_E4M3, NBL_FP8_E4M3, 128, 128, 0, 0, 0, DATA_NORMAL, 3, 500, "sm_90",
     0x6E06F864CEA47CA4},
    {"nvfp4, sm_120", NBL_Q_DEFAULT, NBL_NVFP4, NBL_NVFP4, 64, 64, 0, 0, 0, DATA_NORMAL, 3, 500, "sm_120",
     0xBA634D551F711618},
};

static problem problem_of(const known *k)
{
    problem p = problem_default(1);
    problem_formats(&p, k->k_format, k->v_format);
    p.q_format = k->q_format;
    p.shape.k_dim = k->k_dim;
    p.shape.v_dim = k->v_dim;
    p.shape.k_hadamard = k->k_hadamard;
    p.shape.v_hadamard = k->v_hadamard;
    p.shape.centering = k->centering;
    p.center_mode = NBL_CENTER_COMPUTE;
    p.in_dtype = NBL_BF16;
    p.k_data = p.v_data = k->data;
    p.flags = NBL_ATTEND_CAUSAL;
    p.q_len[0] = k->q_len;
    p.kv_len[0] = k->kv_len;
    p.want_state = true;
    return p;
}

/* FNV-1a, 64 bits. */
static void digest_add(uint64_t *digest, const buffer *b)
{
    for (uint64_t i = 0; i < b->bytes; ++i)
        *digest = (*digest ^ b->host[i]) * 0x100000001B3u;
}

/* Of everything that the two calls wrote, in a backend's memory and the oracle's alike. */
static uint64_t digest_of(const trial *t)
{
    uint64_t digest = 0xCBF29CE484222325u;
    const buffer *written[] = {&t->codes[0],      &t->scales[0],         &t->center_codes,
                               &t->center_shifts, &t->center_exponents,  &t->o.memory,
                               &t->lse.memory,    &t->state_head.memory, &t->state_o.memory};
    for (uint32_t i = 0; i < COUNT(written); ++i)
        digest_add(&digest, written[i]);
    return digest;
}

static void run_known(const known *k, lab *l)
{
    problem p = problem_of(k);
    trial t;
    trial_init(&t, l, &p);
    if (trial_append(&t) && trial_attend(&t)) {
        uint64_t digest = digest_of(&t);
        cr_expect(digest == k->digest, "%s: digest 0x%016" PRIX64 ", that of version %u is 0x%016" PRIX64, k->name,
                  digest, NBL_NUMERICS_VERSION, k->digest);
    }
    trial_free(&t);
}

/* The cases of a profile. */
static void run_list(const char *profile)
{
    lab l;
    if (strcmp(profile, ANY) != 0)
        setenv("NIBBLE_SIM_PROFILE", profile, 1);
    lab_open(&l);
    if (strcmp(profile, ANY) != 0 && strcmp(profile, l.profile) != 0) {
        const char *own = l.profile;
        lab_close(&l);
        cr_skip_test("this GPU has the float core's bits of %s", own);
    }
    for (uint32_t i = 0; i < COUNT(list); ++i) {
        if (strcmp(list[i].profile, profile) == 0)
            run_known(&list[i], &l);
    }
    lab_finish(&l);
}

Test(frozen_bits, integer_and_blackwell_core)
{
    run_list(ANY);
}
Test(frozen_bits, float_core_sm_80)
{
    run_list("sm_80");
}
Test(frozen_bits, float_core_sm_90)
{
    run_list("sm_90");
}
Test(frozen_bits, float_core_sm_120)
{
    run_list("sm_120");
}
