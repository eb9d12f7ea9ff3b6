"""Gemma 3 forward pass in numpy fp32, reading weights from a GGUF file.

Norm weights in the file already include the +1 of the original model, so they
multiply directly. Every sixth layer attends globally (RoPE base 1e6); the
others see a sliding window and use RoPE base 1e4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from spm import Tokenizer

Array = NDArray[np.float32]
LOCAL_ROPE_BASE = 10000.0
GLOBAL_EVERY = 6
ROWS = 256
VOCAB_ROWS = 16384


@dataclass(frozen=True)
class Capture:
    """Attention inputs of one layer: q [T, Hq, D], k and v [T, Hkv, D]."""

    q: Array
    k: Array
    v: Array


Attend = Callable[[int, Capture], Array]  # layer and its inputs -> [T, Hq, D]


class Model:
    """Weights and hyperparameters of one GGUF file. keep: dequantized weights stay in memory."""

    def __init__(self, path: Path, keep: bool = False) -> None:
        self.kept: dict[str, Array] | None = {} if keep else None
        self.reader = GGUFReader(str(path))
        self.tensors = {t.name: t for t in self.reader.tensors}
        if self.field("general.architecture") != "gemma3":
            raise ValueError("not a gemma3 model")
        self.name = str(self.field("general.name"))
        self.dim = int(self.field("gemma3.embedding_length"))
        self.layers = int(self.field("gemma3.block_count"))
        self.heads = int(self.field("gemma3.attention.head_count"))
        self.kv_heads = int(self.field("gemma3.attention.head_count_kv"))
        self.head_dim = int(self.field("gemma3.attention.key_length"))
        self.eps = float(self.field("gemma3.attention.layer_norm_rms_epsilon"))
        self.window = int(self.field("gemma3.attention.sliding_window"))
        self.rope_base = float(self.field("gemma3.rope.freq_base"))
        self.bos = int(self.field("tokenizer.ggml.bos_token_id"))
        self.sm_scale = self.head_dim ** -0.5

    def field(self, key: str) -> object:
        """Value of one metadata field."""
        return self.reader.fields[key].contents()

    def tokenizer(self) -> Tokenizer:
        """Tokenizer over the vocabulary in the file."""
        return Tokenizer(self.field("tokenizer.ggml.tokens"),
                         self.field("tokenizer.ggml.scores"),
                         self.field("tokenizer.ggml.token_type"))

    def weight(self, name: str) -> Array:
        """One weight, dequantized, shape [out, in]."""
        if self.kept is not None and name in self.kept:
            return self.kept[name]
        t = self.tensors[name + ".weight"]
        made = dequantize(t.data, t.tensor_type).astype(np.float32, copy=False)
        if self.kept is not None:
            self.kept[name] = made
        return made

    def embedding(self, rows: NDArray[np.int64] | slice) -> Array:
        """Rows of the (tied) embedding matrix, dequantized."""
        t = self.tensors["token_embd.weight"]
        return dequantize(np.ascontiguousarray(t.data[rows]), t.tensor_type)

    def is_global(self, layer: int) -> bool:
        """Whether a layer attends to all earlier positions."""
        return layer % GLOBAL_EVERY == GLOBAL_EVERY - 1

    def window_of(self, layer: int) -> int:
        """Keys visible to a query including itself; 0 means all."""
        return 0 if self.is_global(layer) else self.window


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMS normalization over the last axis."""
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return x * scale * weight


def rope(x: Array, base: float, positions: NDArray[np.int64]) -> Array:
    """Rotate the two halves of the last axis of x [T, H, D] by position."""
    half = x.shape[-1] // 2
    freq = base ** (-np.arange(half, dtype=np.float64) / half)
    angle = positions.astype(np.float64)[:, None] * freq
    cos = np.cos(angle).astype(np.float32)[:, None, :]
    sin = np.sin(angle).astype(np.float32)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def gelu_tanh(x: Array) -> Array:
    """GELU, tanh approximation."""
    c = np.float32(np.sqrt(2.0 / np.pi))
    return 0.5 * x * (1.0 + np.tanh(c * (x + np.float32(0.044715) * x * x * x)))


def probabilities(q: Array, k: Array, first: int, start: int, window: int,
                  scale: float) -> Array:
    """Causal softmax of q [R, Hq, D] at positions first.. over one head k [S, D].

    Key row 0 is position start; window 0 means no limit. Returns [Hq, R, S].
    """
    scores = np.matmul(q.transpose(1, 0, 2), k.T) * np.float32(scale)
    distance = (first + np.arange(q.shape[0]))[:, None] - (start + np.arange(k.shape[0]))
    hidden = distance < 0
    if window:
        hidden |= distance >= window
    scores[:, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores / scores.sum(axis=-1, keepdims=True)


def attention(c: Capture, window: int, scale: float) -> Array:
    """Grouped-query causal attention; returns [T, Hq, D]."""
    total, heads, _ = c.q.shape
    group = heads // c.k.shape[1]
    out = np.empty_like(c.q)
    for first in range(0, total, ROWS):
        end = min(first + ROWS, total)
        start = max(0, first - window + 1) if window else 0
        for h in range(c.k.shape[1]):
            mine = slice(h * group, (h + 1) * group)
            p = probabilities(c.q[first:end, mine], c.k[start:end, h], first, start,
                              window, scale)
            out[first:end, mine] = np.matmul(p, c.v[start:end, h]).transpose(1, 0, 2)
    return out


def project(model: Model, layer: int, h: Array, positions: NDArray[np.int64]) -> Capture:
    """Attention inputs of a layer: projected, normed (q, k) and rotated (q, k)."""
    blk = f"blk.{layer}."
    base = model.rope_base if model.is_global(layer) else LOCAL_ROPE_BASE

    def heads(name: str) -> Array:
        return (h @ model.weight(blk + name).T).reshape(len(h), -1, model.head_dim)

    q = rms_norm(heads("attn_q"), model.weight(blk + "attn_q_norm"), model.eps)
    k = rms_norm(heads("attn_k"), model.weight(blk + "attn_k_norm"), model.eps)
    return Capture(rope(q, base, positions), rope(k, base, positions), heads("attn_v"))


def mlp(model: Model, layer: int, h: Array) -> Array:
    """Gated MLP of a layer."""
    blk = f"blk.{layer}."
    gate = gelu_tanh(h @ model.weight(blk + "ffn_gate").T)
    gate *= h @ model.weight(blk + "ffn_up").T
    return gate @ model.weight(blk + "ffn_down").T


def run(model: Model, tokens: list[int], positions: NDArray[np.int64], attend: Attend) -> Array:
    """Final hidden states of tokens at positions; attend does the attention of every layer."""
    x = model.embedding(np.asarray(tokens)) * np.float32(np.sqrt(model.dim))
    for n in range(model.layers):
        blk = f"blk.{n}."

        def norm(y: Array, name: str) -> Array:
            return rms_norm(y, model.weight(blk + name), model.eps)

        o = attend(n, project(model, n, norm(x, "attn_norm"), positions)).reshape(len(x), -1)
        x = x + norm(o @ model.weight(blk + "attn_output").T, "post_attention_norm")
        x = x + norm(mlp(model, n, norm(x, "ffn_norm")), "post_ffw_norm")
    return rms_norm(x, model.weight("output_norm"), model.eps)


def forward(model: Model, tokens: list[int], layers: list[int]) -> tuple[Array, dict[int, Capture]]:
    """Run the model without a cache; return final hidden states and the chosen layers' inputs."""
    kept: dict[int, Capture] = {}

    def attend(layer: int, c: Capture) -> Array:
        if layer in layers:
            kept[layer] = c
        return attention(c, model.window_of(layer), model.sm_scale)

    return run(model, tokens, np.arange(len(tokens)), attend), kept


def loss(model: Model, hidden: Array, tokens: list[int]) -> float:
    """Mean next-token cross entropy in nats, over all positions but the last."""
    h = hidden[:-1]
    target = np.einsum("td,td->t", h, model.embedding(np.asarray(tokens[1:])))
    vocab = model.tensors["token_embd.weight"].data.shape[0]
    top = np.full(len(h), -np.inf, dtype=np.float32)
    total = np.zeros(len(h), dtype=np.float64)
    for a in range(0, vocab, VOCAB_ROWS):
        logits = h @ model.embedding(slice(a, a + VOCAB_ROWS)).T
        high = np.maximum(top, logits.max(axis=-1))
        total *= np.exp(top - high)
        logits -= high[:, None]
        total += np.exp(logits, out=logits).sum(axis=-1, dtype=np.float64)
        top = high
    return float(np.mean(np.log(total) + top - target))
