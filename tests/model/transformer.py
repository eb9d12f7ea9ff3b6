"""What the NumPy forward passes of decoder-only models share: weights of a GGUF file, norms, RoPE, causal attention.

Everything runs in fp32 on dequantized weights. A model is a subclass of Model that adds tokenizer() and run().
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float32]
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

    architecture = ""

    def __init__(self, path: Path, keep: bool = False) -> None:
        self.kept: dict[str, Array] | None = {} if keep else None
        self.reader = GGUFReader(str(path))
        self.tensors = {t.name: t for t in self.reader.tensors}
        found = self.field("general.architecture")
        if found != self.architecture:
            raise ValueError(f"{path}: architecture is {found} (needed: {self.architecture})")
        self.name = str(self.field("general.name"))
        self.dim = int(self.own("embedding_length"))
        self.layers = int(self.own("block_count"))
        self.context = int(self.own("context_length"))
        self.heads = int(self.own("attention.head_count"))
        self.kv_heads = int(self.own("attention.head_count_kv"))
        self.head_dim = int(self.own("attention.key_length")) if self.has("attention.key_length") \
            else self.dim // self.heads
        self.eps = float(self.own("attention.layer_norm_rms_epsilon"))
        self.rope_base = float(self.own("rope.freq_base"))
        self.begin = [int(self.field("tokenizer.ggml.bos_token_id"))] if self.marks_begin() else []
        self.sm_scale = self.head_dim ** -0.5
        self.head = "output" if "output.weight" in self.tensors else "token_embd"

    def field(self, key: str) -> object:
        """Value of one metadata field."""
        return self.reader.fields[key].contents()

    def own(self, key: str) -> object:
        """Value of a field of the architecture."""
        return self.field(f"{self.architecture}.{key}")

    def has(self, key: str) -> bool:
        """Whether the file has such a field of the architecture."""
        return f"{self.architecture}.{key}" in self.reader.fields

    def marks_begin(self) -> bool:
        """Whether texts start with a begin marker."""
        known = self.reader.fields.get("tokenizer.ggml.add_bos_token")
        return known is None or bool(known.contents())

    def weight(self, name: str) -> Array:
        """One weight, dequantized, shape [out, in]."""
        if self.kept is not None and name in self.kept:
            return self.kept[name]
        t = self.tensors[name + ".weight"]
        made = dequantize(t.data, t.tensor_type).astype(np.float32, copy=False)
        if self.kept is not None:
            self.kept[name] = made
        return made

    def rows(self, name: str, rows: NDArray[np.int64] | slice) -> Array:
        """Rows of a matrix over the vocabulary, dequantized."""
        t = self.tensors[name + ".weight"]
        return dequantize(np.ascontiguousarray(t.data[rows]), t.tensor_type).astype(np.float32, copy=False)

    def embedding(self, rows: NDArray[np.int64] | slice) -> Array:
        """Rows of the matrix that tokens come in by."""
        return self.rows("token_embd", rows)

    def unembedding(self, rows: NDArray[np.int64] | slice) -> Array:
        """Rows of the matrix whose products with final hidden states are the logits; often the same one."""
        return self.rows(self.head, rows)

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self.tensors[self.head + ".weight"].data.shape[0])

    def window_of(self, _layer: int) -> int:
        """Keys visible to a query including itself; 0 means all."""
        return 0

    def run(self, tokens: list[int], positions: NDArray[np.int64], attend: Attend) -> Array:
        """Final hidden states of tokens at positions; attend does the attention of every layer."""
        raise NotImplementedError


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


def forward(model: Model, tokens: list[int], layers: list[int]) -> tuple[Array, dict[int, Capture]]:
    """Run the model without a cache; return final hidden states and the chosen layers' inputs."""
    kept: dict[int, Capture] = {}

    def attend(layer: int, c: Capture) -> Array:
        if layer in layers:
            kept[layer] = c
        return attention(c, model.window_of(layer), model.sm_scale)

    return model.run(tokens, np.arange(len(tokens)), attend), kept


def loss(model: Model, hidden: Array, tokens: list[int]) -> float:
    """Mean next-token cross entropy in nats, over all positions but the last."""
    h = hidden[:-1]
    target = np.einsum("td,td->t", h, model.unembedding(np.asarray(tokens[1:])))
    top = np.full(len(h), -np.inf, dtype=np.float32)
    total = np.zeros(len(h), dtype=np.float64)
    for a in range(0, model.vocabulary, VOCAB_ROWS):
        logits = h @ model.unembedding(slice(a, a + VOCAB_ROWS)).T
        high = np.maximum(top, logits.max(axis=-1))
        total *= np.exp(top - high)
        logits -= high[:, None]
        total += np.exp(logits, out=logits).sum(axis=-1, dtype=np.float64)
        top = high
    return float(np.mean(np.log(total) + top - target))
