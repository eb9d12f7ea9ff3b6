#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts instructions of attend and append with callgrind and holds them against tests/bench/instructions.json.

    tests/bench/instructions.py [BUILD] [--update]

Times of a shared machine wander by tens of per cent; instruction counts do not. They are those of the AVX2 loops, the
widest that valgrind knows, one thread. Per unit of work, the difference of two lengths, so that fixed costs cancel:

    decode   per cached token and kv head, four query rows
    prefill  per cached token, kv head and query row, 64 rows
    append   per token and kv head, K and V

The check fails if a count rises by more than 3 % above the file; --update writes what was found. The counts belong to
the compiler named in the file: with another one they are printed and not judged.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "instructions.json"
RISE_MAX = 0.03
HEADS, ROWS_PER_HEAD = 2, 4
CALLS = 4  # nibble bench --runs 1 makes three calls before it
RECIPES = {"decode": ("kv4", "mxkv4", "k4v8", "kv8"), "prefill": ("kv4", "kv8"), "append": ("kv4", "mxkv4", "kv8")}
LENGTHS = (1024, 2048)  # K's centre comes from the first 1024 tokens (NUM 4.2)


def count(tool: Path, kind: str, recipe: str, tokens: int) -> int:
    """Instructions inside one call of the operation."""
    op = "append" if kind == "append" else "attend"
    rows = {"decode": 1, "prefill": 64 // ROWS_PER_HEAD, "append": tokens}[kind]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--toggle-collect=sim_{op}",
                   str(tool), "bench", "--backend", "sim", "--isa", "avx2", "--threads", "1", "--runs", "1", "--op", op,
                   "--hq", str(HEADS * ROWS_PER_HEAD), "--hkv", str(HEADS), "--d", "128", "--kv", str(tokens),
                   "--nq", str(rows), "--recipe", recipe]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"instructions: {' '.join(command)} failed with {done.returncode}:\n{done.stderr}")
        return int(re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)[1])


def per_unit(tool: Path, kind: str, recipe: str) -> float:
    """Instructions per unit of work."""
    short, long = LENGTHS
    calls = CALLS + 1 if kind == "append" else CALLS  # append is also what fills the cache
    more = (count(tool, kind, recipe, long) - count(tool, kind, recipe, short)) / calls
    units = (long - short) * HEADS * (ROWS_PER_HEAD * 16 if kind == "prefill" else 1)
    return round(more / units, 2)


def compiler(build: Path) -> str:
    """Version of the compiler of a build folder."""
    found = re.search(r"^CMAKE_C_COMPILER:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    text = subprocess.run([found[1], "--version"], check=True, capture_output=True, text=True).stdout
    return text.splitlines()[0].partition(" ")[2]  # what it is called by does not matter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=Path, default=HERE.parents[1] / "build")
    parser.add_argument("--update", action="store_true", help="write the file instead of checking against it")
    args = parser.parse_args()
    known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"compiler": "", "counts": {}}
    mine = compiler(args.build)
    same = known["compiler"] == mine
    found, risen = {}, []
    for kind, recipes in RECIPES.items():
        for recipe in recipes:
            name = f"{kind} {recipe}"
            found[name] = per_unit(args.build / "bin/nibble", kind, recipe)
            before = known["counts"].get(name)
            change = f"{100 * (found[name] / before - 1):+.1f} %" if before else "new"
            print(f"{name:16} {found[name]:10.2f} instructions  {change}", flush=True)
            if before is None or found[name] > before * (1 + RISE_MAX):
                risen.append(name)
    if args.update:
        BASELINE.write_text(json.dumps({"compiler": mine, "counts": found}, indent=2) + "\n")
    elif not same:
        print(f"instructions: not judged: this is {mine}, the file is of {known['compiler']}")
    elif risen:
        sys.exit(f"instructions: more than {100 * RISE_MAX:g} % above {BASELINE.name}: {', '.join(risen)}")


if __name__ == "__main__":
    main()
