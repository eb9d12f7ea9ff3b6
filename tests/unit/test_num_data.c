/* SPDX-License-Identifier: Apache-2.0 */
#include "test_num_data.h"

uint32_t random_index(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(support_random(seed) % n);
}

double random_between(uint64_t *seed, double low, double high)
{
    return low + (high - low) * support_uniform(seed);
}

static float power_of_two(uint64_t *seed, int low, int high)
{
    return ldexpf(1.0f, low + (int)random_index(seed, (uint32_t)(high - low + 1)));
}

static float random_zero(uint64_t *seed)
{
    return random_index(seed, 2) == 0 ? 0.0f : -0.0f;
}

/* scale is one power of two for the vector, chosen by the caller for the kinds that use it. */
static float input_element(uint32_t kind, uint64_t *seed, float scale)
{
    switch (kind) {
    case INPUT_OUTLIERS:
        return support_normal(seed) * scale * (random_index(seed, 12) == 0 ? power_of_two(seed, 4, 9) : 1.0f);
    case INPUT_TIES: return ((float)random_index(seed, 129) - 64.0f) * scale;
    case INPUT_SPARSE: return random_index(seed, 10) == 0 ? support_normal(seed) * scale : random_zero(seed);
    case INPUT_ZERO: return random_zero(seed);
    case INPUT_SUBNORMAL: return oracle_f32_from_bits((uint32_t)support_random(seed) & 0x80ffffffu);
    case INPUT_BITS: return oracle_f32_from_bits((uint32_t)support_random(seed));
    default: return support_normal(seed) * scale;
    }
}

void input_random(uint32_t kind, uint64_t *seed, float *x, uint32_t dim)
{
    float scale = kind == INPUT_TINY ? power_of_two(seed, -43, -38) : power_of_two(seed, -50, 46);
    for (uint32_t d = 0; d < dim; d++) {
        if (kind == INPUT_BLOCKS && d % 16u == 0) {
            scale = power_of_two(seed, -6, 6);
        }
        x[d] = input_element(kind, seed, kind == INPUT_HUGE ? 0x1p45f : scale);
    }
    oracle_sanitize(x, dim, NULL);
}

void input_with_amax(float amax, uint64_t *seed, float *x, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++) {
        x[d] = fmaxf(fminf(support_normal(seed) * amax * 0.5f, amax), -amax);
    }
    x[random_index(seed, dim)] = random_index(seed, 2) == 0 ? amax : -amax;
}
