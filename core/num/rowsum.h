/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rowsum.h
 * @brief The order in which sums over tokens are taken: sixteen partial sums and a tree (NUM 4.2, 5.4).
 */
#ifndef NBL_NUM_ROWSUM_H
#define NBL_NUM_ROWSUM_H

#include "fn.h"

#define NBL_PARTIAL_SUMS 16u

/** tree(s) of NUM 5.4. */
NBL_FN float nbl_sum_tree(const float *s)
{
    float u[8];
    for (uint32_t g = 0; g < 8u; ++g) {
        u[g] = s[g] + s[g + 8u];
    }
    float v0 = u[0] + u[1];
    float v2 = u[2] + u[3];
    float v4 = u[4] + u[5];
    float v6 = u[6] + u[7];
    float w0 = v0 + v2;
    float w4 = v4 + v6;
    return w0 + w4;
}

#endif
