#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""q_centering.py CAPTURE...: what centring Q would gain for the recipe mpfa (docs/adr/0027-query-centring.md).

The attention of NUM 7 in binary64, with its quantizers but without the cut-off of its sums, in variants:

  none       neither Q nor K centred
  k          K centred: what the recipe mpfa does; the error that `nibble compare` reports to three digits
  qk         Q centred too; m_q (k_j - m_k) from the stored K, exact: what a cache can compute
  qk bf16    the same with m_q, and the product, rounded to bf16
  qk fp4     the same with m_q as two rows of nvfp4, value and residual
  side       Q centred too; m_q (k_j - m_k) from K before it was quantized, product in bf16: MpFA's, which needs a
             number for every token and query head beside the cache
  q exact    Q not quantized, and nothing else changed: the most that any treatment of Q can reach
  k exact    K not quantized

Error: relative L2 of the output against attention in binary64, over all rows. The mean of Q, per query head, comes from
the first half of the rows and errors from the second, as a prompt's mean would serve its continuation; "own" takes the
mean of the rows that are measured. Needs numpy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tensorfile

Array = NDArray[np.float64]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TIES_DOWN = np.array([0.25, 1.25, 2.5, 5.0])  # between 0 and 0.5, 1 and 1.5, 2 and 3, 4 and 6: to the even code
TIES_UP = np.array([0.75, 1.75, 3.5])
CENTER_TOKENS = 1024
VARIANTS = ("none", "k", "qk", "qk bf16", "qk fp4", "side", "q exact", "k exact")


@dataclass
class Problem:
    """Q of [rows, heads, D] at the last positions, K and V of [tokens, kv heads, D]."""

    name: str
    q: Array
    k: Array
    v: Array
    scale: float
    window: int


def bf16(x: Array) -> Array:
    """RNE to bfloat16."""
    return tensorfile.bf16_to_fp32(tensorfile.round_bf16(x.astype(np.float32))).astype(np.float64)


def e4m3(x: Array) -> Array:
    """RNE to E4M3, saturating at 448."""
    _, e = np.frexp(np.abs(x))
    step = np.exp2(np.maximum(e - 4, -9).astype(np.float64))
    return np.clip(np.rint(x / step) * step, -448, 448)


def e2m1(x: Array) -> Array:
    """RNE to E2M1, saturating at 6."""
    a = np.abs(x)
    code = sum((a > t).astype(int) for t in TIES_DOWN) + sum((a >= t).astype(int) for t in TIES_UP)
    return np.sign(x) * E2M1[code]


def nvfp4(x: Array) -> Array:
    """NUM 6.1 along the last axis."""
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    s = e4m3(np.abs(blocks).max(-1, keepdims=True) / 6)
    return np.where(s > 0, e2m1(blocks / np.where(s > 0, s, 1)) * s, 0).reshape(x.shape)


def nvfp4_row(x: Array) -> Array:
    """NUM 7.1: nvfp4 under a power of two for each row."""
    amax = np.abs(x).max(-1, keepdims=True)
    e = np.clip(np.ceil(np.log2(np.maximum(amax, 1e-30) / 2688)), -44, 36)
    return nvfp4(x * np.exp2(-e)) * np.exp2(e)


def int8(x: Array) -> Array:
    """NUM 3.2 along the last axis."""
    e = np.ceil(np.log2(np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30) / 127))
    return np.rint(x * np.exp2(-e)) * np.exp2(e)


def attend(logits: Array, v: Array, seen: NDArray[np.bool_], quantized: bool) -> Array:
    """Softmax of [rows, tokens] and its product with V; P in E4M3 as NUM 7.3 if quantized."""
    t = np.where(seen, logits * np.log2(np.e), -np.inf)
    if quantized:
        t = np.rint((t - np.ceil(t.max(-1, keepdims=True))) * 512) / 512
    else:
        t = t - t.max(-1, keepdims=True)
    p = np.exp2(t)
    if quantized:
        p, v = e4m3(256 * p), e4m3(v)
    return p @ v / p.sum(-1, keepdims=True)


def visible(problem: Problem, rows: range) -> NDArray[np.bool_]:
    """Which keys rows see."""
    tokens = len(problem.k)
    at = np.arange(tokens)[None, :]
    position = np.array(rows)[:, None] + tokens - len(problem.q)
    seen = at <= position
    return seen & (at > position - problem.window) if problem.window else seen


def correction(variant: str, m: Array, k: Array, stored: Array) -> Array:
    """m_q . (k_j - m_k) of every token."""
    if variant == "qk bf16":
        return bf16(stored @ bf16(m))
    if variant == "qk fp4":
        high = nvfp4_row(m)
        return stored @ (high + nvfp4_row(m - high))
    return bf16(k @ m) if variant == "side" else stored @ m


def logits_of(variant: str, q: Array, k: Array, m: Array) -> Array:
    """Logits before the scale of one query head; k is centred unless the variant is none."""
    stored = k if variant == "k exact" else nvfp4(k)
    if variant in ("none", "k", "k exact"):
        return nvfp4_row(q) @ stored.T
    if variant == "q exact":
        return q @ stored.T
    return nvfp4_row(q - m) @ stored.T + correction(variant, m, k, stored)


def errors(problem: Problem, own: bool) -> dict[str, float]:
    """Relative L2 by variant."""
    rows = range(len(problem.q) // 2, len(problem.q))
    seen = visible(problem, rows)
    difference, norm = dict.fromkeys(VARIANTS, 0.0), 0.0
    for head in range(problem.q.shape[1]):
        kv_head = head // (problem.q.shape[1] // problem.k.shape[1])
        q, k, v = problem.q[rows, head], problem.k[:, kv_head], problem.v[:, kv_head]
        centred = k - int8(k[:CENTER_TOKENS].mean(0))
        m = problem.q[rows if own else range(rows.start), head].mean(0)
        truth = attend(q @ k.T * problem.scale, v, seen, False)
        norm += (truth**2).sum()
        for variant in VARIANTS:
            logits = logits_of(variant, q, k if variant == "none" else centred, m) * problem.scale
            difference[variant] += ((attend(logits, v, seen, True) - truth) ** 2).sum()
    return {variant: float(np.sqrt(d / norm)) for variant, d in difference.items()}


def captured(path: Path) -> Iterator[Problem]:
    """Layers of a capture."""
    tensors, meta = tensorfile.read(path)
    for layer in meta["layers"].split(","):
        q, k, v = (tensorfile.bf16_to_fp32(tensors[f"layers.{layer}.{x}"]).astype(np.float64) for x in "qkv")
        yield Problem(f"layer {layer}", q, k, v, float(meta["sm_scale"]), int(meta[f"layers.{layer}.window"]))


def outliers(rng: np.random.Generator, x: Array, factor: float) -> Array:
    """One element in every 32 times as large."""
    blocks = x.reshape(-1, 32).copy()
    blocks[np.arange(len(blocks)), rng.integers(32, size=len(blocks))] *= factor
    return blocks.reshape(x.shape)


def generated() -> Iterator[Problem]:
    """Distributions without (five) and with a mean of Q; D = 128, 2048 tokens, 4 heads on one."""
    draws: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
        "gaussian": lambda r, n: r.standard_normal(n),
        "outlier-30": lambda r, n: outliers(r, r.standard_normal(n), 30),
        "outlier-100": lambda r, n: outliers(r, r.standard_normal(n), 100),
        "log-normal": lambda r, n: np.exp(r.standard_normal(n)) * r.choice([-1, 1], n),
        "student-t": lambda r, n: r.standard_t(3, n),
    }
    for name, draw in draws.items():
        rng = np.random.default_rng(1)
        q = rng.standard_normal((64, 4, 128)) if name.startswith("outlier") else draw(rng, (64, 4, 128))
        yield Problem(name, q, draw(rng, (2048, 1, 128)), draw(rng, (2048, 1, 128)), 128**-0.5, 0)
    for bias in (1, 3, 10):
        rng = np.random.default_rng(1)
        q = rng.standard_normal((64, 4, 128)) + bias * rng.standard_normal((1, 4, 128))
        yield Problem(f"mean of Q {bias}", q, rng.standard_normal((2048, 1, 128)) / bias,
                      rng.standard_normal((2048, 1, 128)), 128**-0.5, 0)


def show(problems: Iterator[Problem], own: bool) -> None:
    """One line for each, and their means."""
    table = []
    for problem in problems:
        found = errors(problem, own)
        table.append(list(found.values()))
        print(f"{problem.name:15s}" + "".join(f"{x:10.4f}" for x in found.values()), flush=True)
    print(f"{'mean':15s}" + "".join(f"{x:10.4f}" for x in np.mean(table, 0)))


def main() -> int:
    """Command line entry."""
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("captures", nargs="*", type=Path, help="safetensors captures")
    p.add_argument("--own", action="store_true", help="the mean of Q from the rows measured")
    args = p.parse_args()
    print(f"{'':15s}" + "".join(f"{v:>10s}" for v in VARIANTS))
    for path in args.captures:
        show(captured(path), args.own)
    show(generated(), args.own)
    return 0


if __name__ == "__main__":
    sys.exit(main())
