#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spread.py CAPTURE...: what the spread rule of mxfp4 costs (NUM 3.4: block exponents of a vector differ by 3 at most).

No format of the library is without the rule, so this quantizes captured K and V in NumPy, with the rule and without it,
and shares no arithmetic with the library. Attention is in fp64 and Q is left as it is. CSV on standard output:

    raised_percent   blocks of K whose exponent the rule raises
    rel_l2           error of the attention output, K and V in mxfp4
    mse_ratio        squared error of K with the rule, over that without it
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tensorfile

Array = NDArray[np.float64]
VALUES = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])
MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2
SPREAD, BLOCK, TOKENS = 3, 32, 1024


def hadamard(x: Array, n: int) -> Array:
    """Orthogonal rotation of runs of n channels."""
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (x.reshape(*x.shape[:-1], -1, n) @ matrix / np.sqrt(n)).reshape(x.shape)


def e2m1(x: Array) -> Array:
    """The nearest value of E2M1, halves to the even code."""
    size = np.abs(x)
    code = sum((size > m) | ((size == m) & (i % 2 == 1)) for i, m in enumerate(MIDDLES))
    return np.sign(x) * VALUES[code]


def quantized(x: Array, rule: bool) -> tuple[Array, float]:
    """x in mxfp4 with blocks of 32, and the share of blocks whose exponent was raised."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    top = np.abs(blocks).max(axis=-1)
    e = np.ceil(np.log2(np.maximum(top, 2.0 ** -60) / 7.25)).clip(-39, 40)
    raised = np.maximum(e, e.max(axis=-1, keepdims=True) - SPREAD)
    used = (raised if rule else e)[..., None]
    return (e2m1(blocks * 2.0 ** -used) * 2.0 ** used).reshape(x.shape), float(100 * ((raised > e) & (top > 0)).mean())


def attention(q: Array, k: Array, v: Array, scale: float, window: int) -> Array:
    """Rows at the end of the text, causal, with a window (0: none), one kv head for a group of query heads."""
    group, rows = q.shape[1] // k.shape[1], len(q)
    s = np.einsum("rhd,thd->hrt", q, np.repeat(k, group, 1)) * scale
    distance = (len(k) - rows + np.arange(rows))[:, None] - np.arange(len(k))
    s[:, (distance < 0) | (distance >= (window or len(k)))] = -np.inf
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("hrt,thd->rhd", p / p.sum(axis=-1, keepdims=True), np.repeat(v, group, 1))


def rows_of(where: dict, q: Array, k: Array, v: Array, *how: float) -> list[dict]:
    """One layer, by transform of K: none, rotation by blocks of 32, mean of K subtracted and rotation."""
    found, exact = [], attention(q, k, v, *how)
    centre = k.mean(axis=0, keepdims=True)
    for transform, turned, asked in (("none", k, q), ("rotated", hadamard(k, 32), hadamard(q, 32)),
                                     ("centred and rotated", hadamard(k - centre, 32), hadamard(q, 32))):
        row, error = {**where, "transform": transform}, {}
        for rule in (True, False):
            kq, raised = quantized(turned, rule)
            o = attention(asked, kq, quantized(v, rule)[0], *how)
            row[f"rel_l2_{'with' if rule else 'without'}"] = np.linalg.norm(o - exact) / np.linalg.norm(exact)
            error[rule] = ((kq - turned) ** 2).mean()
            row["raised_percent"] = raised if rule else row["raised_percent"]
        found.append({**row, "mse_ratio": error[True] / error[False]})
    return found


def main(paths: list[str]) -> None:
    """Command line entry."""
    rows = []
    for path in map(Path, paths):
        tensors, meta = tensorfile.read(path)
        for layer in meta["layers"].split(","):
            q, k, v = (tensorfile.bf16_to_fp32(tensors[f"layers.{layer}.{x}"]).astype(np.float64) for x in "qkv")
            rows += rows_of({"capture": path.stem, "layer": layer}, q, k[-TOKENS:], v[-TOKENS:],
                            float(meta["sm_scale"]), int(meta[f"layers.{layer}.window"]))
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{x:.5g}" if isinstance(x, float) else x for k, x in row.items()} for row in rows)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.splitlines()[0])
    main(sys.argv[1:])
