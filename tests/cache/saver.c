/* SPDX-License-Identifier: Apache-2.0 */
/* Saves sequences of 3, 4, 5, ... tokens to the path in its argument, one over the other, until it is killed. */
#include "lab.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    static lab l;
    uint32_t tokens[LAB_TOKENS];
    nbl_error err = NBL_INIT(nbl_error);
    if (argc != 2)
        return 2;
    lab_count(tokens, LAB_TOKENS, 1);
    lab_open(&l, lab_config());
    for (uint32_t length = 3;; length = length < LAB_TOKENS ? length + 1 : 3) {
        const uint64_t sequence = lab_filled(&l, tokens, length, 0);
        if (l.api->snapshot_save(l.cache, sequence, argv[1], &err) != NBL_OK ||
            l.api->seq_free(l.cache, sequence, &err) != NBL_OK) {
            fprintf(stderr, "saver: %s\n", err.message);
            return 1;
        }
    }
}
