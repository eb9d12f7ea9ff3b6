# SPDX-License-Identifier: Apache-2.0
"""Forward pass of the Llama and Qwen2 architectures in NumPy: no norm of Q and K, RoPE, SiLU; Qwen2 adds a bias to Q, K
and V, which makes a few channels of its keys a hundred times larger than the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import bytebpe
import transformer
from transformer import Array, Attend, Capture, rms_norm, rope


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


class Model(transformer.Model):
    """Llama; Q and K in the order of channels that RoPE on halves needs, as engines keep them."""

    architecture = "llama"

    def tokenizer(self) -> bytebpe.Tokenizer:
        """Tokenizer over the vocabulary in the file."""
        return bytebpe.Tokenizer(self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.merges"),
                                 str(self.field("tokenizer.ggml.pre")))

    def order(self, x: Array) -> Array:
        """Channels [T, H, D] as RoPE on halves needs them: files of this architecture interleave the halves."""
        return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)

    def project(self, layer: int, h: Array, positions: NDArray[np.int64]) -> Capture:
        """Attention inputs of a layer: projected, q and k rotated."""
        def heads(name: str) -> Array:
            x = h @ self.weight(f"blk.{layer}.{name}").T
            bias = self.tensors.get(f"blk.{layer}.{name}.bias")
            return (x if bias is None else x + bias.data).reshape(len(h), -1, self.head_dim)

        q, k = self.order(heads("attn_q")), self.order(heads("attn_k"))
        return Capture(rope(q, self.rope_base, positions), rope(k, self.rope_base, positions), heads("attn_v"))

    def mlp(self, layer: int, h: Array) -> Array:
        """Gated MLP of a layer."""
        blk = f"blk.{layer}."
        gate = silu(h @ self.weight(blk + "ffn_gate").T)
        gate *= h @ self.weight(blk + "ffn_up").T
        return gate @ self.weight(blk + "ffn_down").T

    def run(self, tokens: list[int], positions: NDArray[np.int64], attend: Attend) -> Array:
        """Final hidden states of tokens at positions; attend does the attention of every layer."""
        x = self.embedding(np.asarray(tokens))
        for n in range(self.layers):
            blk = f"blk.{n}."
            h = rms_norm(x, self.weight(blk + "attn_norm"), self.eps)
            o = attend(n, self.project(n, h, positions)).reshape(len(x), -1)
            x = x + o @ self.weight(blk + "attn_output").T
            x = x + self.mlp(n, rms_norm(x, self.weight(blk + "ffn_norm"), self.eps))
        return rms_norm(x, self.weight("output_norm"), self.eps)


class Qwen2(Model):
    """Qwen2: its files hold the channels as they are used."""

    architecture = "qwen2"

    def order(self, x: Array) -> Array:
        """As they are."""
        return x
