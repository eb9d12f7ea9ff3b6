#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executed warp instructions of the CUDA kernels per unit of work, counted by Nsight Compute: the counts of sim/model.

Usage: instruction_counts.py BUILD [RECIPE,...]

Prints a line for each kernel: decode, per token and kv head, for 4 and for 8 query rows; prefill, per score; its
expansion of pages and append, per token and kv head. Head dimension 128.
"""

from __future__ import annotations

import csv
import subprocess
import sys

RECIPES = "kv4,mxkv4,k4v8,qk4v8,kv8,bf16"
HEADS, DECODE_TOKENS, DECODE_BATCH, PREFILL_TOKENS = 8, 16384, 2, 2048
METRIC = "smsp__inst_executed.sum"
DECODE, PREFILL = "regex:^(decode_kernel|float_kernel)", "regex:(prefill_wgmma|prefill_mma|float_wgmma)_kernel"


def launches(build: str, kernels: str, *options: str) -> list[float]:
    """Instructions of every launch of the kernels, in order."""
    bench = [f"{build}/bin/nibble", "bench", "--backend", "cuda", "--hkv", str(HEADS), "--d", "128"]
    command = ["ncu", "--metrics", METRIC, "--csv", "--page", "raw", "--clock-control", "none", "-k", kernels, *bench,
               "--runs", "1", "--calls", "1", *options]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [row for row in csv.reader(line for line in out.splitlines() if line.startswith('"')) if row]
    value = rows[0].index(METRIC)
    return [float(row[value].replace(",", "")) for row in rows[1:] if row[value]]


def last_turn(build: str, kernels: str, recipes: list[str], units: float, *options: str) -> list[float]:
    """Instructions per unit of the one launch that each recipe has in the last turn: bench runs recipes in turn."""
    counted = launches(build, kernels, "--recipe", ",".join(recipes), *options)
    return [value / units for value in counted[-len(recipes):]]


def main(build: str, text: str = RECIPES) -> None:
    """Command line entry."""
    recipes, tokens = text.split(","), str(PREFILL_TOKENS)
    decode = ["--nq", "1", "--batch", str(DECODE_BATCH), "--kv", str(DECODE_TOKENS)]
    prefill = ["--full", "--hq", "32", "--nq", tokens, "--kv", tokens]
    decode_units, token_units = DECODE_BATCH * DECODE_TOKENS * HEADS, PREFILL_TOKENS * HEADS
    quantized = [recipe for recipe in recipes if recipe not in ("bf16", "fp16")]
    columns = {
        "decode 4": last_turn(build, DECODE, recipes, decode_units, "--hq", "32", *decode),
        "decode 8": last_turn(build, DECODE, recipes, decode_units, "--hq", "64", *decode),
        "prefill": last_turn(build, PREFILL, recipes, 32 * PREFILL_TOKENS**2, *prefill),
        "expand": last_turn(build, "regex:prefill_expand", quantized, token_units, *prefill),
        "append": last_turn(build, "regex:append_kernel", recipes, token_units, "--op", "append", *prefill[1:]),
    }
    for name, values in columns.items():
        names = quantized if name == "expand" else recipes
        print(f"{name:10}", ", ".join(f"{recipe} {value:.3f}" for recipe, value in zip(names, values)), flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1])
    main(*sys.argv[1:])
