"""Gemma 3 forward pass in NumPy.

Norm weights in the file already include the +1 of the original model, so they
multiply directly. Every sixth layer attends globally (RoPE base 1e6); the
others see a sliding window and use RoPE base 1e4.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import transformer
from spm import Tokenizer
from transformer import Array, Attend, Capture, rms_norm, rope

LOCAL_ROPE_BASE = 10000.0
GLOBAL_EVERY = 6


def gelu_tanh(x: Array) -> Array:
    """GELU, tanh approximation."""
    c = np.float32(np.sqrt(2.0 / np.pi))
    return 0.5 * x * (1.0 + np.tanh(c * (x + np.float32(0.044715) * x * x * x)))


class Model(transformer.Model):
    """Gemma 3, text only."""

    architecture = "gemma3"

    def __init__(self, path: Path, keep: bool = False) -> None:
        super().__init__(path, keep)
        self.window = int(self.own("attention.sliding_window"))

    def tokenizer(self) -> Tokenizer:
        """Tokenizer over the vocabulary in the file."""
        return Tokenizer(self.field("tokenizer.ggml.tokens"),
                         self.field("tokenizer.ggml.scores"),
                         self.field("tokenizer.ggml.token_type"))

    def is_global(self, layer: int) -> bool:
        """Whether a layer attends to all earlier positions."""
        return layer % GLOBAL_EVERY == GLOBAL_EVERY - 1

    def window_of(self, layer: int) -> int:
        """Keys visible to a query including itself; 0 means all."""
        return 0 if self.is_global(layer) else self.window

    def project(self, layer: int, h: Array, positions: NDArray[np.int64]) -> Capture:
        """Attention inputs of a layer: projected, normed (q, k) and rotated (q, k)."""
        blk = f"blk.{layer}."
        base = self.rope_base if self.is_global(layer) else LOCAL_ROPE_BASE

        def heads(name: str) -> Array:
            return (h @ self.weight(blk + name).T).reshape(len(h), -1, self.head_dim)

        q = rms_norm(heads("attn_q"), self.weight(blk + "attn_q_norm"), self.eps)
        k = rms_norm(heads("attn_k"), self.weight(blk + "attn_k_norm"), self.eps)
        return Capture(rope(q, base, positions), rope(k, base, positions), heads("attn_v"))

    def mlp(self, layer: int, h: Array) -> Array:
        """Gated MLP of a layer."""
        blk = f"blk.{layer}."
        gate = gelu_tanh(h @ self.weight(blk + "ffn_gate").T)
        gate *= h @ self.weight(blk + "ffn_up").T
        return gate @ self.weight(blk + "ffn_down").T

    def run(self, tokens: list[int], positions: NDArray[np.int64], attend: Attend) -> Array:
        """Final hidden states of tokens at positions; attend does the attention of every layer."""
        x = self.embedding(np.asarray(tokens)) * np.float32(np.sqrt(self.dim))
        for n in range(self.layers):
            blk = f"blk.{n}."

            def norm(y: Array, name: str) -> Array:
                return rms_norm(y, self.weight(blk + name), self.eps)

            o = attend(n, self.project(n, norm(x, "attn_norm"), positions)).reshape(len(x), -1)
            x = x + norm(o @ self.weight(blk + "attn_output").T, "post_attention_norm")
            x = x + norm(self.mlp(n, norm(x, "ffn_norm")), "post_ffw_norm")
        return rms_norm(x, self.weight("output_norm"), self.eps)
