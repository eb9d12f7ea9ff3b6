#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other rules for channel shifts (NUM 4.5) than the library's, on captures (docs/adr/0035-default-policy-again.md).

A rule's shifts are applied before the library sees K and Q, exactly, for they are powers of two; the library then only
takes off the mean. The first rule is the library's own and must give what `center=3` gives. The figure is the root mean
square over the layers of the relative L2 error of attention that `nibble compare` reports.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import tensorfile
from transformer import Array

SHIFT_MAX, SHIFT_TOKENS = 7, 1024
RULES = {
    "ceil(x / 2)": lambda x: np.ceil(x / 2),
    "floor(x / 2)": lambda x: np.floor(x / 2),
    "ceil(x / 2) - 1": lambda x: np.ceil(x / 2) - 1,
    "floor(x / 4)": lambda x: np.floor(x / 4),
    "none": np.zeros_like,
}


def distance(k: Array) -> Array:
    """How far the spread of each channel of K [T, H, D] lies below the widest one's, in powers of two: [H, D]."""
    variance = np.maximum(k[:SHIFT_TOKENS].astype(np.float64).var(axis=0), 1e-38)
    spread = np.ceil((np.log2(variance) - 1) / 2)
    return spread.max(axis=1, keepdims=True) - spread


def shifted(capture: dict[str, Array], rule: object) -> dict[str, Array]:
    """The capture with K times 2^u and Q times 2^-u."""
    out = dict(capture)
    for name in (n for n in capture if n.endswith(".k")):
        k, q = (tensorfile.bf16_to_fp32(capture[n]) for n in (name, name[:-1] + "q"))
        u = np.clip(rule(distance(k)), 0, SHIFT_MAX)
        rows = np.repeat(u, q.shape[1] // k.shape[1], axis=0)
        out[name] = tensorfile.round_bf16((k * 2**u).astype(np.float32))
        out[name[:-1] + "q"] = tensorfile.round_bf16((q * 2**-rows).astype(np.float32))
    return out


def error(args: argparse.Namespace, path: Path, policy: str) -> float:
    """Root mean square of rel_l2 over the layers of a capture."""
    command = [str(args.tool), "compare", "--backend", "sim", "--input", str(path), "--recipes", policy, "--csv",
               "--lengths", str(args.length)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(np.sqrt(np.mean([float(row["rel_l2"])**2 for row in csv.DictReader(io.StringIO(text))])))


def main() -> None:
    """Command line entry."""
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("captures", nargs="+", type=Path, help="files of capture.py")
    p.add_argument("--tool", type=Path, default=Path("build/bin/nibble"))
    p.add_argument("--policy", default="kv4,recent=128")
    p.add_argument("--length", type=int, default=1024)
    args = p.parse_args()
    for path in args.captures:
        capture, metadata = tensorfile.read(path)
        print(f"{path.stem}: center=3 {error(args, path, args.policy):.4f}")
        for name, rule in RULES.items():
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder) / "capture.safetensors"
                tensorfile.write(made, shifted(capture, rule), metadata)
                print(f"  {name:16} {error(args, made, args.policy + ',center=1'):.4f}", flush=True)


if __name__ == "__main__":
    main()
