/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file supports.c
 * @brief supports: the simulator does every valid operation.
 */
#include "sim.h"

nbl_status sim_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    (void)device;
    if (op->op < NBL_OP_APPEND || op->op > NBL_OP_APPEND_CODED) {
        return sim_fail(err, NBL_E_UNSUPPORTED, "sim: op %u is unknown", op->op);
    }
    if (op->features & ~NBL_FEATURES_ALL) {
        return sim_fail(err, NBL_E_UNSUPPORTED, "sim: features 0x%x are unknown", op->features & ~NBL_FEATURES_ALL);
    }
    return NBL_OK;
}
