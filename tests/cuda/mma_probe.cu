/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mma_probe.cu
 * @brief Random bit patterns through the tensor core of this machine, compared byte for byte with core/num/mma_model.h.
 *
 * usage: mma-probe [MILLIONS]   dot products per form, in millions (default 2)
 *
 * Five kinds of data, by tile: any bits at all; exponents close together, where truncation shows, two of them; the
 * smallest exponents; products that hardly reach or just miss the accumulator's smallest numbers. Exit status 1 if any
 * result differs.
 */
#include "mma_model.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#define COLUMNS 8
#define K_BYTES 32
#define ROWS_MAX 64

namespace
{

/* One tile: A is rows x 32 bytes, B is 8 x 32 bytes, C and D are rows x 8 words. */
struct tile {
    uint8_t a[ROWS_MAX * K_BYTES];
    uint8_t b[COLUMNS * K_BYTES];
    uint32_t c[ROWS_MAX * COLUMNS];
    uint32_t d[ROWS_MAX * COLUMNS];
};

enum form {
    MMA_BF16,
    MMA_F16,
    MMA_F16_F16,
    MMA_E4M3,
    MMA_E5M2,
    MMA_S8,
    MMA_U8S8,
    WGMMA_BF16,
    WGMMA_F16,
    WGMMA_F16_F16,
    WGMMA_E4M3,
    WGMMA_E5M2,
    WGMMA_S8,
    FORMS
};

struct form_info {
    const char *name;
    uint32_t rows;
    uint32_t type; /* enum nbl_mma_type; for s8 unused */
    uint32_t element_bytes;
};

const form_info forms[FORMS] = {
    {"mma.sync bf16 -> f32", 16, NBL_MMA_BF16, 2},
    {"mma.sync f16 -> f32", 16, NBL_MMA_F16, 2},
    {"mma.sync f16 -> f16", 16, NBL_MMA_F16, 2},
    {"mma.sync e4m3 -> f32", 16, NBL_MMA_E4M3, 1},
    {"mma.sync e5m2 -> f32", 16, NBL_MMA_E5M2, 1},
    {"mma.sync s8 -> s32", 16, 0, 1},
    {"mma.sync u8 s8 -> s32", 16, 0, 1},
    {"wgmma bf16 -> f32", 64, NBL_MMA_BF16, 2},
    {"wgmma f16 -> f32", 64, NBL_MMA_F16, 2},
    {"wgmma f16 -> f16", 64, NBL_MMA_F16, 2},
    {"wgmma e4m3 -> f32", 64, NBL_MMA_E4M3, 1},
    {"wgmma e5m2 -> f32", 64, NBL_MMA_E5M2, 1},
    {"wgmma s8 -> s32", 64, 0, 1},
};

bool is_wgmma(int form)
{
    return form >= WGMMA_BF16;
}

bool is_fp8(int form)
{
    return form == MMA_E4M3 || form == MMA_E5M2 || form == WGMMA_E4M3 || form == WGMMA_E5M2;
}

bool is_integer(int form)
{
    return form == MMA_S8 || form == MMA_U8S8 || form == WGMMA_S8;
}

bool is_f16_accumulator(int form)
{
    return form == MMA_F16_F16 || form == WGMMA_F16_F16;
}

/* ------------------------------------------------------------------------------------------------ device */

#define MMA(shape, kinds, constraint)                                                                                 \
    asm volatile("mma.sync.aligned." shape ".row.col." kinds " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : constraint(d[0]), constraint(d[1]), constraint(d[2]), constraint(d[3])                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <int FORM> __device__ void mma_words(uint32_t (&word)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    if constexpr (FORM == MMA_S8 || FORM == MMA_U8S8) {
        int32_t d[4];
        for (int i = 0; i < 4; i++)
            d[i] = (int32_t)word[i];
        if constexpr (FORM == MMA_S8)
            MMA("m16n8k32", "s32.s8.s8.s32", "+r");
        else
            MMA("m16n8k32", "s32.u8.s8.s32", "+r");
        for (int i = 0; i < 4; i++)
            word[i] = (uint32_t)d[i];
    } else if constexpr (FORM == MMA_F16_F16) {
        uint32_t d0 = word[0] | word[1] << 16, d1 = word[2] | word[3] << 16;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                     : "+r"(d0), "+r"(d1)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        word[0] = d0 & 0xffffu, word[1] = d0 >> 16, word[2] = d1 & 0xffffu, word[3] = d1 >> 16;
    } else {
        float d[4];
        for (int i = 0; i < 4; i++)
            d[i] = __uint_as_float(word[i]);
        if constexpr (FORM == MMA_BF16)
            MMA("m16n8k16", "f32.bf16.bf16.f32", "+f");
        else if constexpr (FORM == MMA_F16)
            MMA("m16n8k16", "f32.f16.f16.f32", "+f");
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890 /* those before have no fp8 products */
        else if constexpr (FORM == MMA_E4M3)
            MMA("m16n8k32", "f32.e4m3.e4m3.f32", "+f");
        else
            MMA("m16n8k32", "f32.e5m2.e5m2.f32", "+f");
#endif
        for (int i = 0; i < 4; i++)
            word[i] = __float_as_uint(d[i]);
    }
}

/* One warp per tile; fragments as PTX documents them (in bytes they are the same for 8 and 16 bits). */
template <int FORM> __global__ void mma_kernel(tile *tiles)
{
    tile &t = tiles[blockIdx.x];
    const uint32_t group = threadIdx.x / 4, lane = threadIdx.x % 4;
    uint32_t a[4], b[2], d[4];
    for (uint32_t r = 0; r < 4; r++)
        memcpy(&a[r], t.a + (group + 8 * (r & 1)) * K_BYTES + 16 * (r >> 1) + 4 * lane, 4);
    for (uint32_t r = 0; r < 2; r++)
        memcpy(&b[r], t.b + group * K_BYTES + 16 * r + 4 * lane, 4);
    for (uint32_t i = 0; i < 4; i++)
        d[i] = t.c[(group + 8 * (i >> 1)) * COLUMNS + 2 * lane + (i & 1)];
    mma_words<FORM>(d, a, b);
    for (uint32_t i = 0; i < 4; i++)
        t.d[(group + 8 * (i >> 1)) * COLUMNS + 2 * lane + (i & 1)] = d[i];
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Shared-memory descriptor without swizzle: 8 x 16-byte core matrices, K chunks 128 bytes apart, row groups 256. */
__device__ uint64_t descriptor(const void *at)
{
    uint64_t address = (uint64_t)__cvta_generic_to_shared(at);
    return (address >> 4 & 0x3fff) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

#define WGMMA(shape, kinds, constraint, tail)                                                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned." shape "." kinds " {%0,%1,%2,%3}, %4, %5, p" tail "; }" \
                 : constraint(d[0]), constraint(d[1]), constraint(d[2]), constraint(d[3])               \
                 : "l"(da), "l"(db))

template <int FORM> __device__ void wgmma_words(uint32_t (&word)[4], uint64_t da, uint64_t db)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    if constexpr (FORM == WGMMA_S8) {
        uint32_t(&d)[4] = word;
        WGMMA("m64n8k32", "s32.s8.s8", "+r", "");
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    } else if constexpr (FORM == WGMMA_F16_F16) {
        uint32_t d0 = word[0] | word[1] << 16, d1 = word[2] | word[3] << 16;
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%0,%1}, %2, %3, p, 1, 1, 0, 0; }"
                     : "+r"(d0), "+r"(d1)
                     : "l"(da), "l"(db));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        word[0] = d0 & 0xffffu, word[1] = d0 >> 16, word[2] = d1 & 0xffffu, word[3] = d1 >> 16;
    } else {
        float d[4];
        for (int i = 0; i < 4; i++)
            d[i] = __uint_as_float(word[i]);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        if constexpr (FORM == WGMMA_BF16)
            WGMMA("m64n8k16", "f32.bf16.bf16", "+f", ", 1, 1, 0, 0");
        else if constexpr (FORM == WGMMA_F16)
            WGMMA("m64n8k16", "f32.f16.f16", "+f", ", 1, 1, 0, 0");
        else if constexpr (FORM == WGMMA_E4M3)
            WGMMA("m64n8k32", "f32.e4m3.e4m3", "+f", ", 1, 1");
        else
            WGMMA("m64n8k32", "f32.e5m2.e5m2", "+f", ", 1, 1");
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     :
                     : "memory");
        for (int i = 0; i < 4; i++)
            word[i] = __float_as_uint(d[i]);
    }
}
#endif

/* One warpgroup per tile of 64 rows. */
template <int FORM> __global__ void wgmma_kernel(tile *tiles)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ alignas(128) uint8_t a[ROWS_MAX * K_BYTES];
    __shared__ alignas(128) uint8_t b[COLUMNS * K_BYTES];
    tile &t = tiles[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < ROWS_MAX * K_BYTES; i += blockDim.x) {
        uint32_t row = i / K_BYTES, k = i % K_BYTES;
        a[row / 8 * 256 + k / 16 * 128 + row % 8 * 16 + k % 16] = t.a[i];
    }
    for (uint32_t i = threadIdx.x; i < COLUMNS * K_BYTES; i += blockDim.x)
        b[i % K_BYTES / 16 * 128 + i / K_BYTES * 16 + i % 16] = t.b[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const uint32_t warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
    uint32_t d[4];
    for (uint32_t i = 0; i < 4; i++)
        d[i] = t.c[(16 * warp + group + 8 * (i >> 1)) * COLUMNS + 2 * lane + (i & 1)];
    wgmma_words<FORM>(d, descriptor(a), descriptor(b));
    for (uint32_t i = 0; i < 4; i++)
        t.d[(16 * warp + group + 8 * (i >> 1)) * COLUMNS + 2 * lane + (i & 1)] = d[i];
#else
    (void)tiles;
#endif
}

template <int FORM> void launch_form(tile *tiles, uint32_t count)
{
    if constexpr (FORM >= WGMMA_BF16)
        wgmma_kernel<FORM><<<count, 128>>>(tiles);
    else
        mma_kernel<FORM><<<count, 32>>>(tiles);
}

template <int FORM> void launch(int form, tile *tiles, uint32_t count)
{
    if (form == FORM)
        launch_form<FORM>(tiles, count);
    else if constexpr (FORM + 1 < FORMS)
        launch<FORM + 1>(form, tiles, count);
}

/* ------------------------------------------------------------------------------------------------ data */

uint64_t random_state = 0x9e3779b97f4a7c15u;

uint64_t random_bits()
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A float of `bits` with its exponent field in [low, low + span), random sign and fraction. */
uint32_t random_float(uint32_t exponent_bits, uint32_t fraction_bits, uint32_t low, uint32_t span)
{
    uint64_t r = random_bits();
    uint32_t exponent = (low + (uint32_t)(r >> 40) % span) & ((1u << exponent_bits) - 1u);
    return (uint32_t)(r & 1u) << (exponent_bits + fraction_bits) | exponent << fraction_bits |
           ((uint32_t)(r >> 8) & ((1u << fraction_bits) - 1u));
}

uint32_t random_element(uint32_t type, uint32_t kind)
{
    static const uint32_t exponent_bits[] = {8, 5, 4, 5}, fraction_bits[] = {7, 10, 3, 2};
    uint32_t e = exponent_bits[type], f = fraction_bits[type];
    uint32_t middle = (1u << e) / 2u - 1u;
    if (kind == 0)
        return (uint32_t)random_bits() & ((1u << (e + f + 1u)) - 1u);
    if (kind == 3)
        return random_float(e, f, 0, e == 8 ? middle : 4);
    if (kind == 4 && e == 8)
        return random_float(e, f, 46, 16); /* products around 2^-149 */
    return random_bits() % 16u == 0 ? 0u : random_float(e, f, e == 8 ? middle - 6u : middle - 3u, e == 8 ? 12 : 6);
}

uint32_t random_accumulator(bool is_f16, uint32_t kind)
{
    if (is_f16)
        return kind == 0   ? (uint32_t)random_bits() & 0xffffu
               : kind == 3 ? random_float(5, 10, 0, 6)
                           : random_float(5, 10, 8, 18);
    if (kind == 0)
        return (uint32_t)random_bits();
    if (kind == 3)
        return random_bits() % 4u == 0 ? 0u : random_float(8, 23, 0, 24);
    if (kind == 4)
        return random_bits() % 2u == 0 ? 0u : random_float(8, 23, 0, 3) & 0x80ffffffu >> random_bits() % 24u;
    return random_bits() % 8u == 0 ? 0u : random_float(8, 23, 110, 34);
}

void fill(tile *t, int form, uint32_t kind)
{
    for (uint32_t i = 0; i < sizeof t->a + sizeof t->b; i++) {
        uint8_t *at = i < sizeof t->a ? t->a + i : t->b + (i - sizeof t->a);
        if (is_integer(form)) {
            *at = (uint8_t)random_bits();
        } else if (forms[form].element_bytes == 1) {
            *at = (uint8_t)random_element(forms[form].type, kind);
        } else if (i % 2u == 0) {
            uint16_t element = (uint16_t)random_element(forms[form].type, kind);
            memcpy(at, &element, 2);
        }
    }
    for (uint32_t &c : t->c)
        c = is_integer(form) ? (uint32_t)random_bits() : random_accumulator(is_f16_accumulator(form), kind);
    memset(t->d, 0x5a, sizeof t->d);
}

/* ------------------------------------------------------------------------------------------------ model */

uint32_t integer_dot(int form, const uint8_t *a, const uint8_t *b, uint32_t c)
{
    for (uint32_t k = 0; k < K_BYTES; k++)
        c += (uint32_t)((form == MMA_U8S8 ? (int32_t)a[k] : (int32_t)(int8_t)a[k]) * (int8_t)b[k]);
    return c;
}

uint32_t expected(int form, uint32_t profile, const uint8_t *a, const uint8_t *b, uint32_t c)
{
    const form_info &info = forms[form];
    uint16_t x[K_BYTES], y[K_BYTES];
    uint32_t n = K_BYTES / info.element_bytes;
    if (is_integer(form))
        return integer_dot(form, a, b, c);
    for (uint32_t k = 0; k < n; k++) {
        x[k] = info.element_bytes == 1 ? a[k] : (uint16_t)(a[2 * k] | a[2 * k + 1] << 8);
        y[k] = info.element_bytes == 1 ? b[k] : (uint16_t)(b[2 * k] | b[2 * k + 1] << 8);
    }
    if (is_f16_accumulator(form)) {
        nbl_mma_model model = nbl_mma_model_f16_accumulate(is_wgmma(form));
        return nbl_mma_dot(&model, info.type, info.type, x, y, n, c);
    }
    if (info.element_bytes == 1 && !is_wgmma(form) && (profile == NBL_MMA_SM_90 || profile == NBL_MMA_SM_100))
        return nbl_mma_fp8_emulated(info.type, info.type, x, y, c);
    nbl_mma_model model = info.element_bytes == 1 ? nbl_mma_model_fp8(profile) : nbl_mma_model_16bit(profile);
    return nbl_mma_dot(&model, info.type, info.type, x, y, n, c);
}

uint64_t compare(const std::vector<tile> &tiles, int form, uint32_t profile)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < tiles.size(); i++) {
        for (uint32_t at = 0; at < forms[form].rows * COLUMNS; at++) {
            const tile &t = tiles[i];
            const uint8_t *a = t.a + at / COLUMNS * K_BYTES, *b = t.b + at % COLUMNS * K_BYTES;
            uint32_t want = expected(form, profile, a, b, t.c[at]);
            if (want == t.d[at])
                continue;
            if (wrong++ < 4) {
                printf("  kind %zu: c %08x, hardware %08x, model %08x, a:", i % 5u, t.c[at], t.d[at], want);
                for (uint32_t k = 0; k < K_BYTES; k++)
                    printf("%s%02x", k % 4u == 0 ? " " : "", a[k]);
                printf(" b:");
                for (uint32_t k = 0; k < K_BYTES; k++)
                    printf("%s%02x", k % 4u == 0 ? " " : "", b[k]);
                printf("\n");
            }
        }
    }
    return wrong;
}

int fail(const char *what, cudaError_t error)
{
    printf("mma-probe: %s: %s\n", what, cudaGetErrorString(error));
    return 2;
}

/* exp2 on the grid of NUM 6.5: the largest relative error of ex2.approx.ftz against the host's exp2. */
__global__ void exp2_kernel(float *out, uint32_t steps, int32_t first)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = (float)(first + (int32_t)i) / (float)steps;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(out[i]) : "f"(x));
}

int probe_exp2(uint32_t steps)
{
    const int32_t first = -140 * (int32_t)steps;
    const uint32_t count = 172u * steps; /* -140 to 32 */
    float *memory;
    if (cudaError_t error = cudaMallocManaged(&memory, count * sizeof *memory))
        return fail("memory", error);
    exp2_kernel<<<count / 4u, 4>>>(memory, steps, first);
    if (cudaError_t error = cudaDeviceSynchronize())
        return fail("exp2", error);
    double worst = 0;
    uint32_t inexact = 0;
    for (uint32_t i = 0; i < count; i++) {
        double x = (double)(first + (int32_t)i) / steps, exact = exp2(x);
        if (x < -126.0)
            inexact += memory[i] != 0.0f;
        else
            worst = fmax(worst, fabs(memory[i] - exact) / exact);
        inexact += x >= -126.0 && x == floor(x) && memory[i] != (float)exact;
    }
    printf("ex2.approx.ftz on the grid of 1/%u: relative error 2^%.2f, %u integers or zeros inexact\n", steps,
           log2(worst), inexact);
    cudaFree(memory);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    const double millions = argc > 1 ? atof(argv[1]) : 2.0;
    cudaDeviceProp device;
    if (cudaError_t error = cudaGetDeviceProperties(&device, 0))
        return fail("no device", error);
    const int arch = device.major * 10 + device.minor;
    const uint32_t profile = arch >= 120   ? NBL_MMA_SM_120
                             : arch >= 100 ? NBL_MMA_SM_100
                             : arch >= 90  ? NBL_MMA_SM_90
                             : arch == 89  ? NBL_MMA_SM_89
                                           : NBL_MMA_SM_80;
    printf("%s, profile %s\n", device.name, nbl_mma_profile_name(profile));
    uint64_t wrong_total = 0;
    for (int form = 0; form < FORMS; form++) {
        if ((is_wgmma(form) && arch != 90) || (arch < 89 && is_fp8(form)))
            continue;
        uint32_t count = (uint32_t)(millions * 1e6 / (forms[form].rows * COLUMNS));
        std::vector<tile> tiles(count);
        for (uint32_t i = 0; i < count; i++)
            fill(&tiles[i], form, i % 5u);
        tile *memory;
        if (cudaError_t error = cudaMalloc(&memory, count * sizeof *memory))
            return fail("memory", error);
        cudaMemcpy(memory, tiles.data(), count * sizeof *memory, cudaMemcpyHostToDevice);
        launch<0>(form, memory, count);
        if (cudaError_t error = cudaDeviceSynchronize())
            return fail(forms[form].name, error);
        cudaMemcpy(tiles.data(), memory, count * sizeof *memory, cudaMemcpyDeviceToHost);
        cudaFree(memory);
        uint64_t wrong = compare(tiles, form, profile);
        printf("%-22s %9llu dot products, %llu differ\n", forms[form].name,
               (unsigned long long)count * forms[form].rows * COLUMNS, (unsigned long long)wrong);
        wrong_total += wrong;
    }
    for (uint32_t steps = 256; steps <= 4096; steps *= 2)
        if (int code = probe_exp2(steps))
            return code;
    return wrong_total != 0;
}
