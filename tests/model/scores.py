# SPDX-License-Identifier: Apache-2.0
"""Next-token distributions of runs held against an unquantized one, position by position.

A vocabulary of a quarter of a million makes logits the dearest part of an evaluation. The base run is scored over all
of it once; the others over the pieces that hold almost all of the base's probability, renormalized, and the base again
over the same pieces. What is left out is reported ("outside"): its mean probability under the base.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer import Array, Model

ROWS, PIECES = 64, 8192  # of a block of logits: it stays in the cache of a core
KEPT = 32768  # pieces that are scored


@dataclass
class Base:
    """The unquantized run: hidden states [T, dim] of tokens [T], its full perplexity, the pieces that count."""

    tokens: list[int]
    hidden: Array
    perplexity: float
    pieces: NDArray[np.int64]
    outside: float


def _logits(hidden: Array, embedding: Array, out: Array) -> NDArray[np.float64]:
    """Logits of each row, into out, block by block; returns their log sum exp."""
    top = np.full(len(hidden), -np.inf, np.float32)
    total = np.zeros(len(hidden))
    for a in range(0, len(embedding), PIECES):
        logits = np.matmul(hidden, embedding[a:a + PIECES].T, out=out[:, a:a + PIECES])
        high = np.maximum(top, logits.max(axis=-1))
        total = total * np.exp(top - high) + np.exp(logits - high[:, None]).sum(axis=-1, dtype=np.float64)
        top = high
    return np.log(total) + top


def make_base(model: Model, tokens: list[int], hidden: Array) -> Base:
    """Scores the base over the whole vocabulary and picks the KEPT likeliest pieces, and all that the text uses."""
    embedding, count = model.unembedding(slice(None)), len(tokens) - 1
    mass, nll = np.zeros(len(embedding)), np.zeros(count)
    block = np.empty((ROWS, len(embedding)), np.float32)
    for at in range(0, count, ROWS):
        rows = slice(at, min(at + ROWS, count))
        logits = block[:rows.stop - at]
        lse = _logits(hidden[rows], embedding, logits)
        nll[rows] = lse - logits[np.arange(len(logits)), np.asarray(tokens[1:])[rows]]
        for a in range(0, len(embedding), PIECES):
            mass[a:a + PIECES] += np.exp(logits[:, a:a + PIECES] - lse[:, None]).sum(axis=0)
    chosen = np.union1d(np.argsort(mass)[-KEPT:], np.asarray(tokens))
    return Base(tokens, hidden, float(np.exp(nll.mean())), chosen, float(1 - mass[chosen].sum() / mass.sum()))


def compare(model: Model, base: Base, runs: dict[str, Array], first: int = 0) -> dict[str, dict[str, Array]]:
    """Scores of the positions first.. that have a next token, of every run and of the base as "base".

        nll   -log p(next token)
        kl    sum p_base log(p_base / p), in nats
        top1  1 where the likeliest piece is the base's
    """
    embedding, out = model.unembedding(base.pieces), {}
    target = np.searchsorted(base.pieces, np.asarray(base.tokens[1:]))
    end = len(base.tokens) - 1
    for name in ("base", *runs):
        out[name] = {key: np.zeros(end - first) for key in ("nll", "kl", "top1")}
    for a in range(first, end, ROWS):
        b, at = min(a + ROWS, end), slice(a - first, min(a + ROWS, end) - first)
        rows = np.arange(b - a)
        reference = base.hidden[a:b] @ embedding.T
        lse = _softmax(p := reference.copy())
        out["base"]["nll"][at], out["base"]["top1"][at] = lse - reference[rows, target[a:b]], 1
        for name, hidden in runs.items():
            logits = hidden[a:b] @ embedding.T
            out[name]["top1"][at] = logits.argmax(axis=-1) == reference.argmax(axis=-1)
            gap = np.einsum("tv,tv->t", p, reference - logits, dtype=np.float64)
            wanted = logits[rows, target[a:b]]
            mine = _softmax(logits)
            out[name]["nll"][at], out[name]["kl"][at] = mine - wanted, gap - lse + mine
    return out


def _softmax(logits: Array) -> NDArray[np.float64]:
    """Turns logits into probabilities in place; returns their log sum exp."""
    top = logits.max(axis=-1, keepdims=True)
    np.exp(np.subtract(logits, top, out=logits), out=logits)
    total = logits.sum(axis=-1, keepdims=True, dtype=np.float64)
    logits /= total.astype(np.float32)
    return (np.log(total) + top)[:, 0]


def summary(base: dict[str, Array], run: dict[str, Array], blocks: int = 16) -> dict[str, float]:
    """Perplexity, its rise over base in percent with its standard error (paired, over blocks), KL and agreement."""
    rise = run["nll"] - base["nll"]
    parts = np.array([part.mean() for part in np.array_split(rise, blocks)])
    return {
        "tokens": len(rise), "perplexity": float(np.exp(run["nll"].mean())),
        "rise_percent": float(100 * np.expm1(rise.mean())),
        "rise_error": float(100 * parts.std(ddof=1) / np.sqrt(blocks)),
        "kl": float(run["kl"].mean()), "kl_p99": float(np.quantile(run["kl"], .99)),
        "top1_percent": float(100 * run["top1"].mean()),
    }
