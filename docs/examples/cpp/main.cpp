/* SPDX-License-Identifier: Apache-2.0 */
/* One decode step, as docs/examples/embed.c, and what an error looks like. The argument is the path of libnibble. */
#include <iostream>
#include <vector>

#include "nibble.hpp"

int main(int argc, char **argv)
try {
    constexpr std::uint32_t tokens = 1000, kv_heads = 2, q_heads = 8, dim = 128;
    std::vector<float> k(tokens * kv_heads * dim), v(k.size()), q(q_heads * dim, 2.0f), o(q.size());
    for (std::size_t i = 0; i < k.size(); i++) { /* only token 700 holds the key that q asks for */
        const std::size_t token = i / (kv_heads * dim);
        k[i] = token == 700 ? 1.0f : 0.0f;
        v[i] = static_cast<float>(token) / 1000.0f;
    }

    const nibble::Device device("sim", argc > 1 ? argv[1] : nullptr);
    std::cout << device.caps().device_name << '\n';
    nibble::Cache cache(device, "default", 1, kv_heads, dim, 1, tokens);
    nibble::Sequence sequence = cache.sequence();
    sequence.append({k.data(), NBL_F32, tokens, kv_heads, dim}, {v.data(), NBL_F32, tokens, kv_heads, dim});
    sequence.attend({q.data(), NBL_F32, 1, q_heads, dim}, {o.data(), NBL_F32, 1, q_heads, dim});
    std::cout << sequence.length() << " tokens, o = " << std::hexfloat << o[0] << '\n';

    try {
        sequence.append({k.data(), NBL_F32, 1, kv_heads, dim}, {v.data(), NBL_F32, 1, kv_heads, dim});
    } catch (const nibble::Error &error) {
        std::cout << device.api().status_name(error.status) << ": " << error.what() << '\n';
    }
    return 0;
} catch (const nibble::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
