/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_model.c
 * @brief The time model against times measured on one H200 (docs/performance.md), and what it must say of others.
 */
#include "model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define ERROR_MAX 0.20

/* A measured call: median of queued calls on an H200, in microseconds. Hkv 8, D 128. */
typedef struct measured {
    uint32_t k_format, v_format, batch, q_heads, kv_tokens, q_tokens;
    int is_full;
    double us;
} measured;

static const measured h200[] = {
    {NBL_INT4P, NBL_INT4P, 16, 32, 32768, 1, 0, 143},
    {NBL_MXFP4, NBL_MXFP4, 16, 32, 32768, 1, 0, 143},
    {NBL_INT4P, NBL_INT8, 16, 32, 32768, 1, 0, 194},
    {NBL_MXFP4, NBL_INT8, 16, 32, 32768, 1, 0, 193},
    {NBL_INT8, NBL_INT8, 16, 32, 32768, 1, 0, 259},
    {NBL_INT4P, NBL_INT4P, 16, 64, 32768, 1, 0, 166},
    {NBL_MXFP4, NBL_MXFP4, 16, 64, 32768, 1, 0, 219},
    {NBL_INT4P, NBL_INT4P, 64, 32, 4096, 1, 0, 77},
    {NBL_FORMAT_BF16, NBL_FORMAT_BF16, 16, 32, 32768, 1, 0, 558},
    {NBL_INT4P, NBL_INT8, 2, 32, 16384, 16384, 1, 14900},
    {NBL_INT4P, NBL_INT8, 1, 32, 65536, 65536, 1, 115900},
    {NBL_INT4P, NBL_INT8, 1, 32, 65536, 65536, 0, 58300},
    {NBL_FORMAT_BF16, NBL_FORMAT_BF16, 2, 32, 16384, 16384, 1, 17170},
    {NBL_FORMAT_BF16, NBL_FORMAT_BF16, 2, 32, 16384, 16384, 0, 9070},
};

static nbl_model_call call_of(const measured *m)
{
    return (nbl_model_call){.op = NBL_OP_ATTEND,
                            .k_format = m->k_format,
                            .v_format = m->v_format,
                            .batch = m->batch,
                            .q_heads = m->q_heads,
                            .kv_heads = 8,
                            .k_dim = 128,
                            .v_dim = 128,
                            .kv_tokens = m->kv_tokens,
                            .q_tokens = m->q_tokens,
                            .is_full = m->is_full};
}

static nbl_model_time predict(const char *gpu, const nbl_model_call *call)
{
    nbl_model_time time;
    cr_assert(nbl_gpu_find(gpu) != NULL, "no %s", gpu);
    cr_assert(nbl_model_predict(nbl_gpu_find(gpu), call, &time), "no counts for formats %u and %u", call->k_format,
              call->v_format);
    return time;
}

Test(model, comes_near_an_h200)
{
    for (size_t i = 0; i < sizeof h200 / sizeof h200[0]; i++) {
        const measured *m = &h200[i];
        const nbl_model_call call = call_of(m);
        const nbl_model_time t = predict("h200", &call);
        const double error = t.total_us / m->us - 1.0;
        cr_log_info("formats %u %u batch %u hq %u kv %u nq %u: %.1f us, measured %.1f, %+.1f %%, %s", m->k_format,
                    m->v_format, m->batch, m->q_heads, m->kv_tokens, m->q_tokens, t.total_us, m->us, 100.0 * error,
                    t.bound);
        cr_expect(fabs(error) <= ERROR_MAX, "formats %u %u batch %u hq %u kv %u nq %u: %.1f us, measured %.1f",
                  m->k_format, m->v_format, m->batch, m->q_heads, m->kv_tokens, m->q_tokens, t.total_us, m->us);
        cr_expect(t.is_filled, "a call that fills the GPU");
    }
}

/* What a resource takes is its count over its rate: bytes of decode are those of the formats, once each. */
Test(model, memory_is_bytes_over_rate)
{
    const nbl_model_call call = call_of(&h200[0]);
    const double bytes = 16.0 * 8.0 * 32768.0 * (64 + 5 + 64 + 5); /* int4p: 64 code bytes, 4 + 1 scale bytes */
    const nbl_model_time t = predict("rtx5090", &call);
    cr_expect(fabs(t.memory_us / (bytes / (1.79e12 * 0.917) * 1e6) - 1.0) < 1e-9, "%.3f us", t.memory_us);
    cr_expect(strcmp(t.bound, "memory") == 0, "bound by %s", t.bound);
}

/* Int8 products are all but gone on a B300: what is decode at memory speed elsewhere is bound by them there. */
Test(model, b300_is_bound_by_int8_products)
{
    const nbl_model_call call = call_of(&h200[0]);
    const nbl_model_time b200 = predict("b200", &call), b300 = predict("b300", &call);
    cr_expect(strcmp(b300.bound, "tensor") == 0, "bound by %s", b300.bound);
    cr_expect(b300.total_us > b200.total_us, "%.1f us, B200 %.1f", b300.total_us, b200.total_us);
}

Test(model, says_what_it_does_not_know)
{
    nbl_model_call call = call_of(&h200[0]);
    nbl_model_time time;
    cr_expect(nbl_gpu_find("h100") == NULL, "h100");
    call.k_format = NBL_NVFP4;
    cr_expect(!nbl_model_predict(nbl_gpu_find("h200"), &call, &time), "nvfp4");
    call = call_of(&h200[0]);
    call.batch = 1;
    call.kv_tokens = 2048;
    cr_expect(!predict("h200", &call).is_filled, "one short sequence does not fill the GPU");
}
