/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file block_probe.cu
 * @brief The products of the Blackwell core as its kernels call them (backends/cuda/tile/blackwell_mma.cuh), on random
 * bits, compared byte for byte with core/num/mma_model.h; and all conversions of a number to E4M3.
 *
 * usage: block-probe [MILLIONS]   dot products per form, in millions (default 2)
 *
 * Where the GPU has the instructions this tells whether the model, the fragments and the scale lanes are right;
 * elsewhere whether the emulation follows them. Exit status 1 if any result differs.
 */
#include "tile/blackwell_mma.cuh"

#include <cstdio>
#include <cstdlib>
#include <vector>

#define ROWS 16
#define COLUMNS 8
#define ROW_BYTES 32 /* 64 elements of E2M1, 32 of E4M3 */

namespace
{

enum form { NVF4, MXF4, FP8, FORMS };
const char *const names[FORMS] = {"mxf4nvf4, E4M3 scales of 16", "mxf4, E8M0 scales of 32", "f8f6f4, E4M3"};

/* Rows of A, columns of B, their scales, C and D. */
struct tile {
    uint8_t a[ROWS][ROW_BYTES];
    uint8_t b[COLUMNS][ROW_BYTES];
    uint8_t scale_a[ROWS][4];
    uint8_t scale_b[COLUMNS][4];
    uint32_t c[ROWS][COLUMNS];
    uint32_t d[ROWS][COLUMNS];
    uint32_t thread_a; /* lanes whose scales count */
    uint32_t thread_b;
    uint32_t garbage; /* in the other lanes */
};

__device__ uint32_t word_of(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* One warp to a tile; fragments and scale lanes as PTX documents them. */
__global__ void product_kernel(tile *tiles, int form)
{
    tile &t = tiles[blockIdx.x];
    const uint32_t group = threadIdx.x / 4, lane = threadIdx.x % 4;
    fp4_operands x;
    float d[4];
    for (uint32_t r = 0; r < 4; r++)
        x.a[r] = word_of(&t.a[group + 8 * (r % 2)][4 * lane + 16 * (r / 2)]);
    for (uint32_t r = 0; r < 2; r++)
        x.b[r] = word_of(&t.b[group][4 * lane + 16 * r]);
    x.scale_a = lane / 2 == t.thread_a ? word_of(t.scale_a[group + 8 * (lane % 2)]) : t.garbage;
    x.scale_b = lane == t.thread_b ? word_of(t.scale_b[group]) : t.garbage;
    for (uint32_t i = 0; i < 4; i++)
        d[i] = nbl_float_of(t.c[group + 8 * (i / 2)][2 * lane + i % 2]);
    if (form == FP8)
        mma_fp8(d, x.a, x.b);
    else
        mma_fp4(d, x, t.thread_a, t.thread_b, form == MXF4);
    for (uint32_t i = 0; i < 4; i++)
        t.d[group + 8 * (i / 2)][2 * lane + i % 2] = nbl_bits_of(d[i]);
}

__global__ void is_native_kernel(uint32_t *out)
{
    *out = PTX_BLOCK_SCALE;
}

/* Numbers from `first` on whose code is not that of core/num/e4m3.h. */
__global__ void convert_kernel(uint32_t first, unsigned long long *wrong)
{
    const uint32_t bits = first + blockIdx.x * blockDim.x + threadIdx.x;
    const float x = nbl_float_of(bits);
    if ((weight_codes(x, 0.0f) & 0xffu) != nbl_e4m3_encode(x))
        atomicAdd(wrong, 1ull);
}

/* ------------------------------------------------------------------------------------------------ data */

uint64_t random_state = 0x9e3779b97f4a7c15u;

uint32_t random_bits()
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

uint8_t random_scale(int form, uint32_t kind)
{
    if (form == NVF4) /* no NaN: kernels do not pass it on; few values, all of them, or one side near zero */
        return (uint8_t)(kind == 0 ? 0x38 + random_bits() % 8 : random_bits() % 127);
    return (uint8_t)(kind == 0 ? 127 + random_bits() % 4 : 87 + random_bits() % 81);
}

uint8_t random_element(int form, uint32_t kind)
{
    uint8_t bits = (uint8_t)random_bits();
    if (form != FP8)
        return kind == 2 && random_bits() % 4 != 0 ? 0 : bits;
    if (kind == 0)
        bits = (uint8_t)((bits & 0x87) | 0x38); /* exponents alike */
    return (bits & 0x7f) == 0x7f || (kind == 2 && random_bits() % 4 != 0) ? 0 : bits;
}

uint32_t random_accumulator(uint32_t kind)
{
    const uint32_t bits = random_bits();
    const uint32_t exponent = kind == 1 ? 20 + random_bits() % 200 : 115 + random_bits() % 24;
    return random_bits() % 8 == 0 ? 0 : (bits & 0x807fffffu) | exponent << 23;
}

void fill(tile *t, int form, uint32_t kind)
{
    for (uint32_t i = 0; i < ROWS * ROW_BYTES; i++)
        t->a[i / ROW_BYTES][i % ROW_BYTES] = random_element(form, kind);
    for (uint32_t i = 0; i < COLUMNS * ROW_BYTES; i++)
        t->b[i / ROW_BYTES][i % ROW_BYTES] = random_element(form, kind);
    for (uint32_t i = 0; i < ROWS * 4; i++)
        t->scale_a[i / 4][i % 4] = random_scale(form, kind);
    for (uint32_t i = 0; i < COLUMNS * 4; i++)
        t->scale_b[i / 4][i % 4] = random_scale(form, kind);
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
        t->c[i / COLUMNS][i % COLUMNS] = random_accumulator(kind);
    t->thread_a = random_bits() % 2;
    t->thread_b = random_bits() % 4;
    t->garbage = random_bits();
}

/* ------------------------------------------------------------------------------------------------ model */

uint32_t expected_fp4(const tile &t, int form, uint32_t row, uint32_t column)
{
    uint8_t a[64], b[64];
    nbl_mma_scale scale_a[4], scale_b[4];
    for (uint32_t k = 0; k < 64; k++) {
        a[k] = (uint8_t)(t.a[row][k / 2] >> (4 * (k % 2)) & 15);
        b[k] = (uint8_t)(t.b[column][k / 2] >> (4 * (k % 2)) & 15);
    }
    for (uint32_t g = 0; g < 4; g++) {
        scale_a[g] = form == NVF4 ? nbl_mma_scale_ue4m3(t.scale_a[row][g]) : nbl_mma_scale_ue8m0(t.scale_a[row][g / 2]);
        scale_b[g] =
            form == NVF4 ? nbl_mma_scale_ue4m3(t.scale_b[column][g]) : nbl_mma_scale_ue8m0(t.scale_b[column][g / 2]);
    }
    return nbl_mma_step_groups(a, b, scale_a, scale_b, t.c[row][column]);
}

uint32_t expected_fp8(const tile &t, uint32_t row, uint32_t column)
{
    const nbl_mma_model model = nbl_mma_model_fp8(NBL_MMA_SM_120);
    uint16_t a[32], b[32];
    for (uint32_t k = 0; k < 32; k++) {
        a[k] = t.a[row][k];
        b[k] = t.b[column][k];
    }
    return nbl_mma_step_scaled(&model, NBL_MMA_E4M3, NBL_MMA_E4M3, a, b, 32, 0, t.c[row][column]);
}

uint64_t compare(const std::vector<tile> &tiles, int form)
{
    uint64_t wrong = 0;
    for (const tile &t : tiles) {
        for (uint32_t at = 0; at < ROWS * COLUMNS; at++) {
            const uint32_t row = at / COLUMNS, column = at % COLUMNS;
            const uint32_t want = form == FP8 ? expected_fp8(t, row, column) : expected_fp4(t, form, row, column);
            const bool zeros = (want | t.d[row][column]) << 1 == 0; /* the sign of a zero has no influence (NUM 6.5) */
            if (want != t.d[row][column] && !zeros && wrong++ < 4)
                printf("  row %u, column %u: c %08x, hardware %08x, model %08x\n", row, column, t.c[row][column],
                       t.d[row][column], want);
        }
    }
    return wrong;
}

/* ------------------------------------------------------------------------------------------------ runs */

int fail(const char *what, cudaError_t error)
{
    printf("block-probe: %s: %s\n", what, cudaGetErrorString(error));
    return 2;
}

int probe_products(int form, uint32_t count, bool is_native, uint64_t *wrong)
{
    std::vector<tile> tiles(count);
    for (uint32_t i = 0; i < count; i++)
        fill(&tiles[i], form, i % 3);
    tile *memory;
    if (cudaError_t error = cudaMalloc(&memory, count * sizeof *memory))
        return fail("memory", error);
    cudaMemcpy(memory, tiles.data(), count * sizeof *memory, cudaMemcpyHostToDevice);
    product_kernel<<<count, 32>>>(memory, form);
    if (cudaError_t error = cudaDeviceSynchronize())
        return fail(names[form], error);
    cudaMemcpy(tiles.data(), memory, count * sizeof *memory, cudaMemcpyDeviceToHost);
    cudaFree(memory);
    *wrong = compare(tiles, form);
    printf("%-28s %s, %9llu dot products, %llu differ\n", names[form], is_native ? "native" : "emulated",
           (unsigned long long)count * ROWS * COLUMNS, (unsigned long long)*wrong);
    return 0;
}

/* All 2^32 numbers. */
int probe_conversion(unsigned long long *wrong)
{
    const uint32_t threads = 256, at_a_time = 1u << 28;
    for (uint32_t i = 0; i < 16; i++)
        convert_kernel<<<at_a_time / threads, threads>>>(i * at_a_time, wrong);
    if (cudaError_t error = cudaDeviceSynchronize())
        return fail("conversion", error);
    printf("conversions to E4M3: 4294967296, %llu differ\n", *wrong);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    const double millions = argc > 1 ? atof(argv[1]) : 2.0;
    unsigned long long *shared;
    uint64_t wrong_total = 0;
    if (cudaError_t error = cudaMallocManaged(&shared, 2 * sizeof *shared))
        return fail("no device", error);
    shared[0] = shared[1] = 0;
    is_native_kernel<<<1, 1>>>((uint32_t *)shared);
    if (cudaError_t error = cudaDeviceSynchronize())
        return fail("first kernel", error);
    for (int form = 0; form < FORMS; form++) {
        uint64_t wrong = 0;
        if (int code = probe_products(form, (uint32_t)(millions * 1e6 / (ROWS * COLUMNS)), shared[0] != 0, &wrong))
            return code;
        wrong_total += wrong;
    }
    if (int code = probe_conversion(&shared[1]))
        return code;
    return wrong_total + shared[1] != 0;
}
