/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file exp2grid.h
 * @brief Exponential and logarithm: polynomials (NUM 1.5 to 1.7) and the grid of 1/256 (NUM 5.4, 5.5).
 */
#ifndef NBL_NUM_EXP2GRID_H
#define NBL_NUM_EXP2GRID_H

#include "fn.h"

#define NBL_LOG2E 0x1.715476p+0f /**< 0x3FB8AA3B, NUM 1.3 */
#define NBL_LN2 0x1.62e430p-1f   /**< 0x3F317218 */
#define NBL_P_SCALE 254.953125f  /**< C */
#define NBL_GRID 49152.0f        /**< 1.5 * 2^15: a float of this size has steps of 1/256 */
#define NBL_REBASE 32.0f
#define NBL_LOGIT_MAX 4194304.0f /**< Z_MAX */
#define NBL_WEIGHT_MIN (-126.0f) /**< exponents below this weigh nothing */

/** exp2p(x), x <= 0 (NUM 1.5). */
NBL_FN float nbl_exp2p(float x)
{
    if (x < -126.0f) {
        return 0.0f;
    }
    float n = nbl_round(x);
    float f = x - n;
    float p = nbl_float_of(0x3922363eu);
    p = nbl_fma(p, f, nbl_float_of(0x3aaf844bu));
    p = nbl_fma(p, f, nbl_float_of(0x3c1d94f2u));
    p = nbl_fma(p, f, nbl_float_of(0x3d6357b6u));
    p = nbl_fma(p, f, nbl_float_of(0x3e75fdf0u));
    p = nbl_fma(p, f, nbl_float_of(0x3f317218u));
    p = nbl_fma(p, f, 1.0f);
    return p * nbl_pow2((int32_t)n);
}

/** log2p(x), x positive and normal (NUM 1.6). */
NBL_FN float nbl_log2p(float x)
{
    uint32_t bits = nbl_bits_of(x);
    int32_t e = (int32_t)(bits >> 23) - 127;
    float f = nbl_float_of((bits & 0x7fffffu) | 0x3f800000u);
    if (nbl_bits_of(f) > 0x3fb504f3u) {
        f *= 0.5f;
        e++;
    }
    float s = (f - 1.0f) / (f + 1.0f);
    float w = s * s;
    float p = nbl_float_of(0x3edd0e1eu);
    p = nbl_fma(p, w, nbl_float_of(0x3f13a385u));
    p = nbl_fma(p, w, nbl_float_of(0x3f763873u));
    p = nbl_fma(p, w, nbl_float_of(0x4038aa3bu));
    return nbl_fma(s, p, (float)e);
}

/** tanhp(x) (NUM 1.7). */
NBL_FN float nbl_tanhp(float x)
{
    float e = nbl_exp2p(nbl_float_of(0xc038aa3bu) * fabsf(x));
    float r = (1.0f - e) / (1.0f + e);
    return nbl_float_of((nbl_bits_of(r) & 0x7fffffffu) | (nbl_bits_of(x) & 0x80000000u));
}

/* 2^f on [-1/2, 1/2] to a relative 2^-17.0, exact at 0; enough for P and q, which need 2^-16 (NUM 5.5). */
#define NBL_GRID_C1 0x1.62e2d2p-1f
#define NBL_GRID_C2 0x1.ebf958p-3f
#define NBL_GRID_C3 0x1.c96d78p-5f
#define NBL_GRID_C4 0x1.3d107cp-7f

/** p = 2^u for u = t - m <= 0 on the grid, near enough for P and q; 0 below 2^-126. */
NBL_FN float nbl_grid_exp2(float u)
{
    if (u < NBL_WEIGHT_MIN) {
        return 0.0f;
    }
    float n = nbl_round(u);
    float f = u - n;
    float p = nbl_fma(NBL_GRID_C4, f, NBL_GRID_C3);
    p = nbl_fma(p, f, NBL_GRID_C2);
    p = nbl_fma(p, f, NBL_GRID_C1);
    p = nbl_fma(p, f, 1.0f);
    return p * nbl_pow2((int32_t)n);
}

/** P = RNE_int(C * p), 0..255 (NUM 5.4). */
NBL_FN uint32_t nbl_grid_weight(float p)
{
    return nbl_bits_of(nbl_fma(p, NBL_P_SCALE, NBL_MAGIC)) & 0xffu;
}

/** q = RNE of p to bf16 precision (NUM 5.4). */
NBL_FN float nbl_grid_q(float p)
{
    uint32_t bits = nbl_bits_of(p);
    return nbl_float_of((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

/** The 256 values RNE(2^(f/256)) as bits (NUM 5.5); tests compare them with tests/vectors/exp2_table.txt. */
/* clang-format off */
#define NBL_EXP2_TABLE(X) \
    X(0x3f800000u) X(0x3f8058d8u) X(0x3f80b1edu) X(0x3f810b41u) X(0x3f8164d2u) X(0x3f81bea1u) \
    X(0x3f8218afu) X(0x3f8272fcu) X(0x3f82cd87u) X(0x3f832850u) X(0x3f838359u) X(0x3f83dea1u) \
    X(0x3f843a29u) X(0x3f8495f0u) X(0x3f84f1f6u) X(0x3f854e3du) X(0x3f85aac3u) X(0x3f86078au) \
    X(0x3f866491u) X(0x3f86c1d9u) X(0x3f871f62u) X(0x3f877d2bu) X(0x3f87db35u) X(0x3f883981u) \
    X(0x3f88980fu) X(0x3f88f6ddu) X(0x3f8955eeu) X(0x3f89b541u) X(0x3f8a14d5u) X(0x3f8a74adu) \
    X(0x3f8ad4c6u) X(0x3f8b3523u) X(0x3f8b95c2u) X(0x3f8bf6a4u) X(0x3f8c57cau) X(0x3f8cb933u) \
    X(0x3f8d1adfu) X(0x3f8d7cd0u) X(0x3f8ddf04u) X(0x3f8e417du) X(0x3f8ea43au) X(0x3f8f073bu) \
    X(0x3f8f6a81u) X(0x3f8fce0cu) X(0x3f9031dcu) X(0x3f9095f2u) X(0x3f90fa4du) X(0x3f915eedu) \
    X(0x3f91c3d3u) X(0x3f922900u) X(0x3f928e72u) X(0x3f92f42cu) X(0x3f935a2bu) X(0x3f93c072u) \
    X(0x3f9426ffu) X(0x3f948dd4u) X(0x3f94f4f0u) X(0x3f955c53u) X(0x3f95c3ffu) X(0x3f962bf2u) \
    X(0x3f96942du) X(0x3f96fcb1u) X(0x3f97657du) X(0x3f97ce92u) X(0x3f9837f0u) X(0x3f98a197u) \
    X(0x3f990b88u) X(0x3f9975c2u) X(0x3f99e046u) X(0x3f9a4b13u) X(0x3f9ab62bu) X(0x3f9b218du) \
    X(0x3f9b8d3au) X(0x3f9bf931u) X(0x3f9c6573u) X(0x3f9cd201u) X(0x3f9d3edau) X(0x3f9dabfeu) \
    X(0x3f9e196eu) X(0x3f9e872au) X(0x3f9ef532u) X(0x3f9f6387u) X(0x3f9fd228u) X(0x3fa04116u) \
    X(0x3fa0b051u) X(0x3fa11fd9u) X(0x3fa18fafu) X(0x3fa1ffd2u) X(0x3fa27043u) X(0x3fa2e102u) \
    X(0x3fa3520fu) X(0x3fa3c36bu) X(0x3fa43516u) X(0x3fa4a70fu) X(0x3fa51958u) X(0x3fa58befu) \
    X(0x3fa5fed7u) X(0x3fa6720eu) X(0x3fa6e595u) X(0x3fa7596cu) X(0x3fa7cd94u) X(0x3fa8420cu) \
    X(0x3fa8b6d5u) X(0x3fa92befu) X(0x3fa9a15bu) X(0x3faa1718u) X(0x3faa8d26u) X(0x3fab0387u) \
    X(0x3fab7a3au) X(0x3fabf13fu) X(0x3fac6897u) X(0x3face041u) X(0x3fad583fu) X(0x3fadd090u) \
    X(0x3fae4934u) X(0x3faec22du) X(0x3faf3b79u) X(0x3fafb519u) X(0x3fb02f0eu) X(0x3fb0a957u) \
    X(0x3fb123f6u) X(0x3fb19ee9u) X(0x3fb21a32u) X(0x3fb295d0u) X(0x3fb311c4u) X(0x3fb38e0eu) \
    X(0x3fb40aafu) X(0x3fb487a6u) X(0x3fb504f3u) X(0x3fb58298u) X(0x3fb60094u) X(0x3fb67ee7u) \
    X(0x3fb6fd92u) X(0x3fb77c95u) X(0x3fb7fbf0u) X(0x3fb87ba3u) X(0x3fb8fbafu) X(0x3fb97c14u) \
    X(0x3fb9fcd2u) X(0x3fba7deau) X(0x3fbaff5bu) X(0x3fbb8126u) X(0x3fbc034au) X(0x3fbc85cau) \
    X(0x3fbd08a4u) X(0x3fbd8bd8u) X(0x3fbe0f68u) X(0x3fbe9353u) X(0x3fbf179au) X(0x3fbf9c3cu) \
    X(0x3fc0213bu) X(0x3fc0a695u) X(0x3fc12c4du) X(0x3fc1b261u) X(0x3fc238d2u) X(0x3fc2bfa1u) \
    X(0x3fc346cdu) X(0x3fc3ce57u) X(0x3fc4563fu) X(0x3fc4de85u) X(0x3fc5672au) X(0x3fc5f02eu) \
    X(0x3fc67991u) X(0x3fc70353u) X(0x3fc78d75u) X(0x3fc817f7u) X(0x3fc8a2d8u) X(0x3fc92e1bu) \
    X(0x3fc9b9beu) X(0x3fca45c1u) X(0x3fcad226u) X(0x3fcb5eedu) X(0x3fcbec15u) X(0x3fcc799fu) \
    X(0x3fcd078cu) X(0x3fcd95dau) X(0x3fce248cu) X(0x3fceb3a1u) X(0x3fcf4319u) X(0x3fcfd2f4u) \
    X(0x3fd06334u) X(0x3fd0f3d7u) X(0x3fd184dfu) X(0x3fd2164cu) X(0x3fd2a81eu) X(0x3fd33a54u) \
    X(0x3fd3ccf1u) X(0x3fd45ff3u) X(0x3fd4f35bu) X(0x3fd58729u) X(0x3fd61b5eu) X(0x3fd6affau) \
    X(0x3fd744fdu) X(0x3fd7da67u) X(0x3fd87039u) X(0x3fd90673u) X(0x3fd99d16u) X(0x3fda3421u) \
    X(0x3fdacb94u) X(0x3fdb6371u) X(0x3fdbfbb8u) X(0x3fdc9468u) X(0x3fdd2d82u) X(0x3fddc706u) \
    X(0x3fde60f5u) X(0x3fdefb4eu) X(0x3fdf9613u) X(0x3fe03143u) X(0x3fe0ccdfu) X(0x3fe168e7u) \
    X(0x3fe2055bu) X(0x3fe2a23cu) X(0x3fe33f89u) X(0x3fe3dd44u) X(0x3fe47b6du) X(0x3fe51a03u) \
    X(0x3fe5b907u) X(0x3fe65879u) X(0x3fe6f85bu) X(0x3fe798abu) X(0x3fe8396au) X(0x3fe8da99u) \
    X(0x3fe97c38u) X(0x3fea1e47u) X(0x3feac0c7u) X(0x3feb63b7u) X(0x3fec0719u) X(0x3fecaaecu) \
    X(0x3fed4f30u) X(0x3fedf3e7u) X(0x3fee9910u) X(0x3fef3eabu) X(0x3fefe4bau) X(0x3ff08b3bu) \
    X(0x3ff13231u) X(0x3ff1d99au) X(0x3ff28177u) X(0x3ff329c9u) X(0x3ff3d290u) X(0x3ff47bccu) \
    X(0x3ff5257du) X(0x3ff5cfa4u) X(0x3ff67a41u) X(0x3ff72555u) X(0x3ff7d0dfu) X(0x3ff87ce1u) \
    X(0x3ff9295au) X(0x3ff9d64au) X(0x3ffa83b3u) X(0x3ffb3194u) X(0x3ffbdfedu) X(0x3ffc8ec0u) \
    X(0x3ffd3e0cu) X(0x3ffdedd2u) X(0x3ffe9e11u) X(0x3fff4ecbu)
/* clang-format on */

#define NBL_EXP2_ENTRY(bits) (bits),
#ifdef __CUDACC__
static __device__ __constant__ const uint32_t nbl_exp2_table_device[256] = {NBL_EXP2_TABLE(NBL_EXP2_ENTRY)};
#endif
static const uint32_t nbl_exp2_table[256] = {NBL_EXP2_TABLE(NBL_EXP2_ENTRY)};
#undef NBL_EXP2_ENTRY

/** b = RNE(2^x) for x = k / 256 in [-126, 127] (NUM 5.4). */
NBL_FN float nbl_grid_base_of(int32_t k)
{
    int32_t f = k & 255;
#ifdef __CUDA_ARCH__
    uint32_t bits = nbl_exp2_table_device[f];
#else
    uint32_t bits = nbl_exp2_table[f];
#endif
    return nbl_float_of(bits + ((uint32_t)(k - f) << 15)); /* (k - f) / 256 more in the exponent */
}

/** The same for x a multiple of 1/256. */
NBL_FN float nbl_grid_base(float x)
{
    return nbl_grid_base_of((int32_t)(x * 256.0f));
}

#endif
