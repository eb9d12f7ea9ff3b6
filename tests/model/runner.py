# SPDX-License-Identifier: Apache-2.0
"""A model whose attention goes through a cache: nibble's, in any policy, or an unquantized one in NumPy.

Tokens go in by chunks, as in a serving engine: every chunk is appended to the cache of each layer and attends over what
the cache then holds. All arithmetic of nibble is behind docs/examples/python; nothing of it is repeated here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import transformer
from transformer import Array, Capture, Model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/examples/python"))
import nibble  # noqa: E402

FIRST_CHUNK = 1024  # what a centre is computed from (NUM 4.2)
CHUNK = 512
STEP_MAX = 2048  # tokens of one step that a cache has room for unless told otherwise


class Exact:
    """One sequence with K and V in fp32; softmax in NumPy. rounding: applied to Q, K and V first."""

    def __init__(self, model: Model, rounding: object = None) -> None:
        self.model, self.rounding, self.tokens = model, rounding or (lambda x: x), 0
        self.k: list[list[Array]] = [[] for _ in range(model.layers)]
        self.v: list[list[Array]] = [[] for _ in range(model.layers)]

    def attend(self, layer: int, c: Capture) -> Array:
        """Appends the chunk's keys and values and attends its queries."""
        self.k[layer] = [np.concatenate([*self.k[layer], self.rounding(c.k)])]
        self.v[layer] = [np.concatenate([*self.v[layer], self.rounding(c.v)])]
        k, v, q, window = self.k[layer][0], self.v[layer][0], self.rounding(c.q), self.model.window_of(layer)
        group, first, out = c.q.shape[1] // c.k.shape[1], len(k) - len(q), np.empty_like(q)
        for at in range(0, len(q), transformer.ROWS):
            rows = slice(at, min(at + transformer.ROWS, len(q)))
            start = max(0, first + at - window + 1) if window else 0
            end = first + rows.stop
            for h in range(k.shape[1]):
                heads = slice(h * group, (h + 1) * group)
                p = transformer.probabilities(q[rows, heads], k[start:end, h], first + at, start, window,
                                         self.model.sm_scale)
                out[rows, heads] = np.matmul(p, v[start:end, h]).transpose(1, 0, 2)
        return out

    def advance(self, count: int) -> None:
        """All layers have the chunk."""
        self.tokens += count

    def truncate(self, tokens: int) -> None:
        """Drops tokens from the end."""
        self.k = [[k[0][:tokens]] if k else [] for k in self.k]
        self.v = [[v[0][:tokens]] if v else [] for v in self.v]
        self.tokens = tokens


class Paged:
    """One sequence of a nibble cache."""

    def __init__(self, model: Model, cache: nibble.Cache) -> None:
        self.model, self.sequence, self.tokens = model, cache.sequence(), 0

    def attend(self, layer: int, c: Capture) -> Array:
        """Appends the chunk's keys and values and attends its queries."""
        q, k, v = (np.ascontiguousarray(x) for x in (c.q, c.k, c.v))
        self.sequence.append(k, v, layer)
        return self.sequence.attend(q, layer, scale=self.model.sm_scale, window=self.model.window_of(layer))

    def advance(self, count: int) -> None:
        """All layers have the chunk."""
        self.tokens += count

    def truncate(self, tokens: int) -> None:
        """Drops tokens from the end."""
        self.sequence.truncate(tokens)
        self.tokens = tokens


def open_cache(device: nibble.Device, model: Model, policy: str, sequences: int, tokens: int) -> nibble.Cache:
    """A cache for the whole model."""
    return nibble.Cache(device, policy, layers=model.layers, kv_heads=model.kv_heads, head_dim=model.head_dim,
                        sequences=sequences, tokens=tokens)


def step(model: Model, states: list, tokens: list[list[int]]) -> list[Array]:
    """Runs new tokens of several sequences at once; the final hidden states of each."""
    cuts = np.cumsum([0, *map(len, tokens)])
    positions = np.concatenate([s.tokens + np.arange(len(t)) for s, t in zip(states, tokens)])

    def attend(layer: int, c: Capture) -> Array:
        return np.concatenate([s.attend(layer, Capture(c.q[a:b], c.k[a:b], c.v[a:b]))
                               for s, a, b in zip(states, cuts, cuts[1:])])

    hidden = model.run([t for row in tokens for t in row], positions, attend)
    for state, row in zip(states, tokens):
        state.advance(len(row))
    return [hidden[a:b] for a, b in zip(cuts, cuts[1:])]


def prefill(model: Model, state: object, tokens: list[int], chunk: int = CHUNK, head: int = FIRST_CHUNK) -> Array:
    """Hidden states of all tokens: first head of them, in steps as long as may be, then chunks. The first step decides
    the centre."""
    out, at = [], 0
    while at < len(tokens):
        count = min(head - at, STEP_MAX) if at < head else chunk
        out += step(model, [state], [tokens[at:at + count]])
        at += len(out[-1])
    return np.concatenate(out)
