#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""speed.csv for the figures: decode on one core of this machine, as `nibble bench` times it. Standard library only.

A time is the shortest of 90 calls (of 6 for the scalar loops), in three rounds, each of which goes through all recipes,
lengths and instruction sets: what else the machine does makes calls longer, never shorter.

Usage: speed.py TOOL OUT_DIR
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROUNDS = 3
CALLS = {"avx512": 30, "avx2": 30, "scalar": 2}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
RECIPES = ("qk4v8", "mxkv4", "kv4", "k4v8", "kv8")
SETS = ("avx512", "avx2", "scalar")  # the fastest that is here takes all recipes, the others kv4
SCALAR_TOKENS_MAX = 4096
SHAPE = ["--op", "attend", "--hq", "32", "--hkv", "8", "--d", "128", "--nq", "1", "--threads", "1"]
COLUMNS = ("recipe", "isa", "tokens", "ms")


def bench(tool: str, isa: str, recipes: tuple[str, ...], tokens: int) -> dict[str, float] | None:
    """Shortest time of each recipe in ms; None where the CPU lacks the instruction set."""
    command = [tool, "bench", "--backend", "sim", *SHAPE, "--isa", isa, "--kv", str(tokens), "--recipe",
               ",".join(recipes), "--runs", str(CALLS[isa]), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if isa in done.stderr and isa != "scalar":
            return None
        sys.exit(f"speed: {' '.join(command)}: {done.stderr}")
    return {row["recipe"]: row["min_ms"] for row in json.loads(done.stdout)}


def cpu() -> str:
    """Name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main(tool: str, out: str) -> None:
    """Command line entry."""
    sets = [isa for isa in SETS if bench(tool, isa, ("kv4",), 64)]
    times: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for isa in sets:
            for tokens in (n for n in LENGTHS if isa != "scalar" or n <= SCALAR_TOKENS_MAX):
                for recipe, ms in bench(tool, isa, RECIPES if isa == sets[0] else ("kv4",), tokens).items():
                    times.setdefault((recipe, isa, tokens), []).append(ms)
    with (Path(out) / "speed.csv").open("w", newline="") as file:
        file.write(f"# {cpu()}, one core; load at the end {os.getloadavg()[0]:.1f}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key, found in times.items():
            writer.writerow([*key, f"{min(found):.4g}"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip().splitlines()[-1])
    main(*sys.argv[1:])
