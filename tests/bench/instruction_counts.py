#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executed warp instructions of the CUDA kernels per unit of work, counted by Nsight Compute: the counts of sim/model.

Usage: instruction_counts.py BUILD [RECIPE,...]

Prints a line for each recipe: of decode per token and kv head, for 4 and for 8 query rows; of prefill per score; of
what a prefill does before it per token and kv head; of append per token and kv head. Head dimension 128.
"""

from __future__ import annotations

import csv
import subprocess
import sys

RECIPES = "kv4,mxkv4,k4v8,qk4v8,kv8,bf16"
HEADS, DECODE_TOKENS, DECODE_BATCH, PREFILL_TOKENS = 8, 16384, 4, 4096
METRIC = "smsp__inst_executed.sum"


def count(build: str, pattern: str, *options: str) -> dict[str, float]:
    """Instructions of the last launch of every kernel whose name matches, by name."""
    bench = [f"{build}/bin/nibble", "bench", "--backend", "cuda", "--hkv", str(HEADS), "--d", "128"]
    command = ["ncu", "--metrics", METRIC, "--csv", "--page", "raw", "-k", f"regex:{pattern}", *bench, "--runs", "1",
               "--calls", "1", *options]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [row for row in csv.reader(line for line in out.splitlines() if line.startswith('"')) if row]
    name, value = rows[0].index("Kernel Name"), rows[0].index(METRIC)
    return {row[name]: float(row[value].replace(",", "")) for row in rows[1:] if row[value]}


def of(counted: dict[str, float], *parts: str) -> float:
    """Sum over the kernels whose names have one of the parts."""
    return sum(value for name, value in counted.items() if any(part in name for part in parts))


def line(build: str, recipe: str) -> str:
    """Counts of a recipe."""
    cells = [recipe]
    for heads in (32, 64):
        counted = count(build, "decode|float_kernel", "--op", "attend", "--hq", str(heads), "--nq", "1", "--batch",
                        str(DECODE_BATCH), "--kv", str(DECODE_TOKENS), "--recipe", recipe)
        cells.append(f"{of(counted, 'decode', 'float_kernel') / (DECODE_BATCH * DECODE_TOKENS * HEADS):.1f}")
    tokens = str(PREFILL_TOKENS)
    counted = count(build, "prefill|float_wgmma", "--op", "attend", "--full", "--hq", "32", "--nq", tokens, "--kv",
                    tokens, "--recipe", recipe)
    cells.append(f"{of(counted, 'prefill_wgmma', 'prefill_mma', 'float_wgmma') / (32 * PREFILL_TOKENS**2):.3f}")
    cells.append(f"{of(counted, 'expand') / (PREFILL_TOKENS * HEADS):.1f}")
    counted = count(build, "append", "--op", "append", "--hq", "8", "--nq", tokens, "--kv", tokens, "--recipe", recipe)
    cells.append(f"{of(counted, 'append') / (PREFILL_TOKENS * HEADS):.1f}")
    return "".join(f"{cell:>12}" for cell in cells)


def main(build: str, recipes: str = RECIPES) -> None:
    """Command line entry."""
    headings = ["recipe", "decode 4", "decode 8", "prefill", "expand", "append"]
    print("".join(f"{heading:>12}" for heading in headings))
    for recipe in recipes.split(","):
        print(line(build, recipe), flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1])
    main(*sys.argv[1:])
