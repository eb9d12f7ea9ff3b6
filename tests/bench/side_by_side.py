#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `nibble bench` against other programs, turn by turn, and prints medians and ratios.

    tests/bench/side_by_side.py --peer 'ggml f16=./fa f16 4096 1 60' -- --hq 32 --hkv 8 --kv 4096 --recipe kv4,mxkv4

After -- stand the options of `nibble bench`; it runs them with --json, and each of its recipes is compared. --peer
NAME=COMMAND is a program that times the same work and prints a number; --pattern finds it (one group) and --unit says
what it is. Every round runs each program once, in an order that turns, so that a slow moment of the machine hits all of
them. The ratio of a round is peer / ours; what counts is the median over the rounds. --cpus keeps all programs on some
cores; given several times, every round runs on each set in turn, and the last table is of all of them: what shares a
core with the programs differs between sets. OMP_PROC_BIND pins the threads of peers that use OpenMP unless it is set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
ROUNDS_MIN = 5
Times = dict[str, list[float]]


def run(command: list[str]) -> str:
    """Output of a program, its threads pinned; ends the harness if it fails."""
    environment = {"OMP_PROC_BIND": "true", **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"side_by_side: {shlex.join(command)} failed with {done.returncode}:\n{done.stderr}")
    return done.stdout


def time_ours(tool: str, options: list[str]) -> dict[str, float]:
    """Median in ms of each recipe."""
    rows = json.loads(run([tool, "bench", "--json", *options]))
    return {f"{row['recipe']} ({row['isa']}, kv {row['kv']}, nq {row['nq']})": row["median_ms"] for row in rows}


def time_peer(command: list[str], pattern: str, unit: str) -> float:
    """The number that a peer prints, in ms."""
    text = run(command)
    found = re.search(pattern, text)
    if not found:
        sys.exit(f"side_by_side: no match of {pattern!r} in what {shlex.join(command)} prints:\n{text}")
    return float(found[1]) * UNIT_MS[unit]


def turned(items: list, by: int) -> list:
    """The list with its first `by` items moved to the end."""
    by %= len(items)
    return items[by:] + items[:by]


def measure_round(args: argparse.Namespace, peers: dict[str, list[str]], turn: int, ours: Times, theirs: Times) -> None:
    """Runs each program once and adds its times: ours by recipe, theirs by name."""
    for name in turned([None, *peers], turn):
        if name is None:
            for recipe, ms in time_ours(args.tool, args.options).items():
                ours.setdefault(recipe, []).append(ms)
        else:
            theirs.setdefault(name, []).append(time_peer(peers[name], args.pattern, args.unit))


def joined(sets: list[Times]) -> Times:
    """The rounds of all sets of cores."""
    return {name: [ms for times in sets for ms in times[name]] for name in sets[0]}


def measure(args: argparse.Namespace, peers: dict[str, list[str]]) -> None:
    """Runs all rounds and prints a table for each set of cores, and one for all."""
    cores = args.cpus or [os.sched_getaffinity(0)]
    ours: list[Times] = [{} for _ in cores]
    theirs: list[Times] = [{} for _ in cores]
    for turn in range(args.rounds):
        for i, cpus in enumerate(cores):
            os.sched_setaffinity(0, cpus)
            measure_round(args, peers, turn, ours[i], theirs[i])
    for i, cpus in enumerate(cores):
        print("cores", ", ".join(map(str, sorted(cpus))))
        report(ours[i], theirs[i])
    if len(cores) > 1:
        print("all")
        report(joined(ours), joined(theirs))


def report(ours: Times, theirs: Times) -> None:
    """The table: medians of both, and the ratio of each round."""
    print(f"{'ours':34} {'median ms':>10} {'least':>9}   {'peer':14} {'median ms':>10} {'least':>9}   "
          f"{'ratio':>6}  lowest..highest")
    for recipe, mine in ours.items():
        for name, other in theirs.items():
            ratios = [b / a for a, b in zip(mine, other)]
            print(f"{recipe:34} {statistics.median(mine):10.3f} {min(mine):9.3f}   {name:14} "
                  f"{statistics.median(other):10.3f} {min(other):9.3f}   {statistics.median(ratios):6.1f}  "
                  f"{min(ratios):.1f}..{max(ratios):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(ROOT / "build/bin/nibble"), help="our program (default: %(default)s)")
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--pattern", default=r"median_ms[\s:=]+([0-9.]+)",
                        help="what a peer prints (default: %(default)s)")
    parser.add_argument("--cpus", type=lambda text: {int(n) for n in text.split(",")}, metavar="N,...",
                        action="append", help="cores for all programs (default: those of the caller); repeatable")
    parser.add_argument("--unit", choices=UNIT_MS, default="ms", help="of the number (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help=f"at least {ROUNDS_MIN} (default: %(default)s)")
    parser.add_argument("options", nargs="*", help="options of nibble bench, after --")
    args = parser.parse_args()
    if args.rounds < ROUNDS_MIN:
        parser.error(f"--rounds is {args.rounds}; at least {ROUNDS_MIN} are needed for a median worth quoting")
    peers = {}
    for peer in args.peer:
        name, separator, command = peer.partition("=")
        if not separator or not shlex.split(command):
            parser.error(f"--peer {peer!r} is not NAME=COMMAND")
        peers[name] = shlex.split(command)
    measure(args, peers)


if __name__ == "__main__":
    main()
