# SPDX-License-Identifier: Apache-2.0
"""Round 3: layers, lengths beyond the model's, and a full cache of many long sequences."""

from __future__ import annotations

import csv
import io
import subprocess

import numpy as np

import runner
import tensorfile
import transformer

RECIPES = "kv8,k4v8,kv4,mxkv4,qk4v8"
Q_ROWS = 32


def capture(e: object, text: str, count: int) -> tuple[dict, dict]:
    """Tensors of all layers in BF16 and the metadata that `nibble compare` reads."""
    _, kept = transformer.forward(e.model, e.tokens(text, count), list(range(e.model.layers)))
    tensors = {f"layers.{n}.{name}": tensorfile.round_bf16(x) for n, c in kept.items()
               for name, x in (("q", c.q[-Q_ROWS:]), ("k", c.k), ("v", c.v))}
    meta = {"sm_scale": repr(e.model.sm_scale), **{f"layers.{n}.window": str(e.model.window_of(n)) for n in kept}}
    return tensors, meta


def captured(e: object, text: str, count: int) -> object:
    """Path of a capture of all layers, made once."""
    path = e.out / f"layers-{text}-{count}.safetensors"
    if not path.exists():
        tensorfile.write(path, *capture(e, text, count))
    return path


def compare(e: object, *options: str) -> list[dict]:
    """Rows of `nibble compare --csv`."""
    text = subprocess.run([e.args.tool, "compare", "--backend", e.args.backend, "--csv", *options], check=True,
                          capture_output=True, text=True).stdout
    return [{k: row[k] for k in ("recipe", "source", "layer", "length", "rel_l2", "cos_min", "lse_err")}
            for row in csv.DictReader(io.StringIO(text))]


def layers(e: object, count: int) -> dict:
    """Error of the attention of every layer."""
    path = captured(e, "prose", count)
    return {"rows": compare(e, "--input", str(path), "--recipes", RECIPES + ",kv4,center=1", "--lengths", str(count))}


def kernel(e: object, count: int, lengths: list[int]) -> dict:
    """Error at lengths beyond the model's: its captured layer 11 over and over, and synthetic tensors."""
    tensors, meta = tensorfile.read(captured(e, "prose", count))
    times = max(lengths) // count
    long = {f"layers.11.{x}": np.tile(tensors[f"layers.11.{x}"], (times if x != "q" else 1, 1, 1)) for x in "qkv"}
    path = e.out / "layer11-long.safetensors"
    tensorfile.write(path, long, {"sm_scale": meta["sm_scale"]})
    listed = ",".join(map(str, lengths))
    rows = compare(e, "--input", str(path), "--recipes", RECIPES, "--lengths", listed)
    for name in ("gaussian", "outliers", "sinks"):
        rows += compare(e, "--generate", name, "--kv", str(max(lengths)), "--lengths", listed, "--recipes", RECIPES)
    path.unlink()
    return {"rows": rows}


def concurrency(e: object, count: int, sequences: int, tokens: int) -> dict:
    """A cache filled to its last page by long sequences: each must answer, to the bit, as alone."""
    tensors, meta = tensorfile.read(captured(e, "prose", count))
    q, k, v = (tensorfile.bf16_to_fp32(tensors[f"layers.11.{x}"]) for x in "qkv")
    shape = {"layers": 1, "kv_heads": k.shape[1], "head_dim": k.shape[2]}

    def fill(sequence: runner.nibble.Sequence, seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, len(k), tokens)
        for at in range(0, tokens, 1024):
            sequence.append(np.ascontiguousarray(k[order[at:at + 1024]]), np.ascontiguousarray(v[order[at:at + 1024]]))

    def answer(sequence: runner.nibble.Sequence) -> bytes:
        return sequence.attend(q, scale=float(meta["sm_scale"])).tobytes()

    cache = runner.nibble.Cache(e.device, "kv4", sequences=sequences, tokens=sequences * tokens, **shape)
    held = [cache.sequence() for _ in range(sequences)]
    for seed, sequence in enumerate(held):
        fill(sequence, seed)
    stats = cache.stats()
    differing = 0
    for seed, sequence in enumerate(held):
        with runner.nibble.Cache(e.device, "kv4", sequences=1, tokens=tokens, **shape) as alone:
            single = alone.sequence()
            fill(single, seed)
            differing += answer(single) != answer(sequence)
    used, total = sum(stats.pages_used), sum(stats.pages_total)
    cache.close()
    return {"sequences": sequences, "tokens": tokens, "pages_used": used, "pages_total": total,
            "sequences_differing": differing}
