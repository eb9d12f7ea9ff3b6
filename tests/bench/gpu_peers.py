#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention on one GPU beside torch's SDPA in bf16 (cuDNN and flash), in the same run; prints ratios against the bars.

usage: gpu_peers.py [--build DIR] [--only WORD] [--json FILE]

Both sides: inputs random; caches go round copies that exceed the second-level cache together; calls of a run are
queued behind something that holds the stream, and timed by events; a figure is the median of the runs. The recipes of
a shape take turns; torch is measured before and after them and all its runs count, so that a clock that moves in
between hits both. Decode is `attend` over a cache that is already quantized; prefill counts the quantization of Q, K
and V. Needs torch; exits with 77 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

EXIT_SKIPPED = 77
RUNS = 4  # of torch, before and after nibble
NIBBLE_RUNS = 7
CACHE_BYTES = 2 * 60 * 2**20  # what the copies must exceed together
HOLD_CYCLES = 20_000_000  # about 10 ms: longer than it takes to queue the calls of a run


class Case(NamedTuple):
    """One row of the table."""

    kind: str  # decode or prefill
    recipe: str
    batch: int
    q_heads: int
    kv_heads: int
    tokens: int
    causal: bool
    bar: float
    stretch: float

    @property
    def calls(self) -> int:
        """Calls of a run: enough work to time, not too long."""
        return 20 if self.kind == "decode" else 2

    @property
    def name(self) -> str:
        """What the row is."""
        mask = "" if self.kind == "decode" else " causal" if self.causal else " full"
        return f"{self.kind}{mask} B{self.batch} Hq{self.q_heads} Hkv{self.kv_heads} L{self.tokens} {self.recipe}"


def cases() -> list[Case]:
    """The workloads and the ratios they are held to."""
    rows = [Case("decode", recipe, 16, 32, 8, 32768, False, bar, stretch)
            for recipe, bar, stretch in (("kv4", 3.2, 3.5), ("mxkv4", 3.2, 3.5), ("k4v8", 2.35, 2.55),
                                         ("qk4v8", 2.35, 2.55))]
    rows += [Case("decode", "kv4", 1, 32, 8, 131072, False, 2.8, 3.2),
             Case("decode", "kv4", 64, 32, 8, 4096, False, 3.0, 3.4),
             Case("decode", "kv4", 16, 64, 8, 32768, False, 2.9, 3.3)]
    rows += [Case("decode", "kv4", batch, 32, 8, tokens, False, 1.0, 1.0)
             for tokens in (512, 1024, 2048) for batch in (1, 4, 8)]
    rows += [Case("prefill", recipe, batch, 32, 8, tokens, causal, bar, stretch)
             for tokens, batch, bar, stretch in ((4096, 8, 0.85, 1.0), (16384, 2, 0.95, 1.15), (65536, 1, 0.95, 1.15))
             for recipe in ("qk4v8", "k4v8") for causal in (False, True)]
    return rows


# ------------------------------------------------------------------------------------------------ torch

class Peer:
    """torch's SDPA at the shape of a case."""

    def __init__(self, torch, case: Case) -> None:
        self.torch, self.case = torch, case
        rows = 1 if case.kind == "decode" else case.tokens
        one = 2 * 2 * case.batch * case.kv_heads * case.tokens * 128
        self.copies = max(2, CACHE_BYTES // one + 2) if case.kind == "decode" else 1

        def make(heads: int, tokens: int):
            return torch.randn(case.batch, heads, tokens, 128, device="cuda", dtype=torch.bfloat16)

        self.q = make(case.q_heads, rows)
        self.kv = [(make(case.kv_heads, case.tokens), make(case.kv_heads, case.tokens)) for _ in range(self.copies)]

    def call(self, i: int) -> None:
        """One attention over the next copy."""
        k, v = self.kv[i % self.copies]
        self.torch.nn.functional.scaled_dot_product_attention(self.q, k, v, enable_gqa=True,
                                                              is_causal=self.case.causal)

    def runs_ms(self, backend) -> list[float]:
        """Times per call of some runs on one backend; empty if it does not take the shape."""
        torch, times = self.torch, []
        try:
            with torch.nn.attention.sdpa_kernel(backend):
                for run in range(RUNS + 1):
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    if run == 0:
                        self.call(0)
                        torch.cuda.synchronize()
                    torch.cuda._sleep(HOLD_CYCLES)
                    start.record()
                    for i in range(self.case.calls):
                        self.call(run * self.case.calls + i)
                    end.record()
                    end.synchronize()
                    times.append(start.elapsed_time(end) / self.case.calls)
        except RuntimeError as problem:
            print(f"{self.case.name}: {backend}: {str(problem).splitlines()[0]}", file=sys.stderr)
            return []
        return times[1:]


# ------------------------------------------------------------------------------------------------ nibble

def nibble_ms(build: Path, cases: list[Case]) -> dict[str, float]:
    """Medians of `nibble bench` by recipe, for cases of one shape; the recipes take turns."""
    case = cases[0]
    rows = 1 if case.kind == "decode" else case.tokens
    command = [build / "bin/nibble", "bench", "--backend", "cuda", "--json", "--cold", "--d", "128", "--page", "64",
               "--op", "attend" if case.kind == "decode" else "prefill", "--recipe",
               ",".join(each.recipe for each in cases), "--batch", case.batch, "--hq", case.q_heads, "--hkv",
               case.kv_heads, "--kv", case.tokens, "--nq", rows,
               "--runs", NIBBLE_RUNS, "--calls", case.calls]
    if not case.causal:
        command.append("--full")
    environment = {**os.environ, "NIBBLE_BACKEND_DIR": str((build / "lib/nibble").resolve())}
    out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, env=environment)
    return {row["recipe"]: row["median_ms"] for row in json.loads(out.stdout)}


# ------------------------------------------------------------------------------------------------ report

def row_of(case: Case, ours: float, theirs: dict[str, list[float]]) -> dict:
    """One row: times in milliseconds and ratios."""
    row = {"case": case.name, "bar": case.bar, "stretch": case.stretch, "nibble_ms": ours}
    for name, times in theirs.items():
        row[f"{name}_ms"] = statistics.median(times) if times else None
        row[f"{name}_ratio"] = row[f"{name}_ms"] / ours if times else None
    return row


def measure(torch, build: Path, cases: list[Case]) -> list[dict]:
    """The rows of cases of one shape."""
    backends = {"cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
                "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION}
    peer = Peer(torch, cases[0])
    theirs = {name: peer.runs_ms(backend) for name, backend in backends.items()}
    ours = nibble_ms(build, cases)
    for name, backend in backends.items():
        theirs[name] += peer.runs_ms(backend)
    del peer
    torch.cuda.empty_cache()
    return [row_of(case, ours[case.recipe], theirs) for case in cases]


def by_shape(some: list[Case]) -> list[list[Case]]:
    """Cases that differ in nothing but the recipe, together."""
    shapes: dict[tuple, list[Case]] = {}
    for case in some:
        shapes.setdefault((case.kind, case.batch, case.q_heads, case.tokens, case.causal), []).append(case)
    return list(shapes.values())


def cell(value: float | None, width: int, digits: int) -> str:
    """A number, or a dash."""
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def verdict(row: dict) -> str:
    """What the ratio to cuDNN says."""
    ratio = row["cudnn_ratio"]
    if ratio is None:
        return "no peer"
    return "stretch" if ratio >= row["stretch"] else "met" if ratio >= row["bar"] else "SHORT"


def show(row: dict) -> None:
    """One line of the table."""
    times = " ".join(cell(row[name], 9, 4) for name in ("nibble_ms", "cudnn_ms", "flash_ms"))
    ratios = " ".join(cell(row[name], 7, 2) for name in ("cudnn_ratio", "flash_ratio"))
    print(f"{row['case']:<44} {times} {ratios} {row['bar']:5.2f} {row['stretch']:5.2f} {verdict(row)}", flush=True)


def main() -> int:
    """Measures all cases, or those whose name holds a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/gpu"), help="build folder of nibble")
    parser.add_argument("--only", default="", help="only cases whose name holds this")
    parser.add_argument("--json", type=Path, help="write the rows to a file as well")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("gpu_peers: skipped: no torch here")
        return EXIT_SKIPPED
    if not torch.cuda.is_available():
        print("gpu_peers: skipped: no GPU here")
        return EXIT_SKIPPED
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; "
          "ms per call, ratio = torch / nibble")
    print(f"{'case':<44} {'nibble':>9} {'cuDNN':>9} {'flash':>9} {'x cuDNN':>7} {'x flash':>7} {'bar':>5} {'goal':>5}")
    rows = []
    for group in by_shape([case for case in cases() if options.only in case.name]):
        for row in measure(torch, options.build, group):
            rows.append(row)
            show(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
