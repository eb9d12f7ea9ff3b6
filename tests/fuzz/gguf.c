/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a model file of docs/examples/engine: opening, metadata, and every row of the tensors it names. */
#include "fuzz.h"

#include <gguf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS_MAX = 4, COLUMNS_MAX = 4096 };

static void read_rows(const gguf *file, const char *name)
{
    static float row[COLUMNS_MAX];
    gguf_tensor tensor;
    if (!gguf_find_tensor(file, name, &tensor) || tensor.columns > COLUMNS_MAX)
        return;
    for (uint64_t r = 0; r < tensor.rows; r += tensor.rows / ROWS_MAX + 1)
        gguf_row(&tensor, r, row);
    if (tensor.rows > 0)
        gguf_row(&tensor, tensor.rows - 1, row);
}

static void read_texts(const gguf *file)
{
    gguf_list list;
    uint64_t at = 0, sum = 0;
    if (!gguf_find_list(file, "tokenizer.ggml.tokens", 8, &list))
        return;
    for (uint64_t i = 0; i < list.count; i++) {
        const gguf_text text = gguf_list_text(&list, &at);
        for (uint64_t j = 0; j < text.count; j++)
            sum += (unsigned char)text.bytes[j];
    }
    FUZZ_REQUIRE(sum <= at * 255);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32];
    const int fd = memfd_create("model", MFD_CLOEXEC);
    FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    gguf *file = gguf_open(path);
    if (file) {
        (void)gguf_number(file, "gemma3.block_count", 0);
        const gguf_text kind = gguf_string(file, "general.architecture");
        FUZZ_REQUIRE(kind.count <= size);
        read_texts(file);
        read_rows(file, "token_embd.weight");
        read_rows(file, "output_norm.weight");
        gguf_close(file);
    }
    (void)close(fd);
    return 0;
}
