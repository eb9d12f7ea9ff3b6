#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""golden.py NIBBLE [--update]: the accuracy of recipes on captured layers, held against tests/model/golden.json.

Fails if a figure is off by more than NOISE, for the worse or the better: then quality has changed, and --update writes
what is measured now. Global and sliding-window layers are both in, because what helps one can harm the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/model/golden.json"
CAPTURES = {"global": "tests/data/gemma3-270m.planes.xz", "local": "tests/data/local/gemma3-270m.planes.xz"}
RECIPES = "qk4v8,mxkv4,kv4,k4v8,kv8,int8/int4p,mxfp4_16/mxfp4_16,kv4,recent=128"
NOISE = 0.01  # relative; results are exact, so only the reference's libm moves a figure, and far less than that


def measured(nibble: str) -> dict[str, float]:
    """rel_l2 by "kind layer recipe"."""
    found: dict[str, float] = {}
    for kind, packed in CAPTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            capture = Path(folder) / "capture.safetensors"
            subprocess.run([sys.executable, ROOT / "tests/model/unpack.py", ROOT / packed, capture], check=True,
                           stdout=subprocess.DEVNULL)
            length = "2048" if kind == "global" else "640"
            out = subprocess.run([nibble, "compare", "--input", str(capture), "--json", "--recipes", RECIPES,
                                  "--lengths", length], check=True, capture_output=True, text=True).stdout
        for row in json.loads(out)["rows"]:
            found[f"{kind} {row['layer']} {row['recipe']}"] = row["rel_l2"]
    return found


def findings(golden: dict[str, float], now: dict[str, float]) -> list[str]:
    """Figures that moved, or are not in both."""
    found = [f"{key}: only {'on file' if key in golden else 'measured'}" for key in sorted(golden.keys() ^ now.keys())]
    for key in sorted(golden.keys() & now.keys()):
        change = now[key] / golden[key] - 1
        if not abs(change) <= NOISE:
            found.append(f"{key}: {now[key]:.6f}, on file {golden[key]:.6f} ({100 * change:+.1f} %)")
    return found


def main(nibble: str, *options: str) -> int:
    """Command line entry."""
    now = measured(nibble)
    if "--update" in options:
        FILE.write_text(json.dumps({key: round(value, 6) for key, value in now.items()}, indent=1) + "\n")
        print(f"golden: {FILE.name} holds {len(now)} figures")
        return 0
    golden = json.loads(FILE.read_text())
    moved = findings(golden, now)
    for line in moved:
        print(f"golden: {line}")
    print(f"golden: {len(golden)} figures, {len(moved)} findings")
    return 1 if moved or not golden else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip().splitlines()[0])
    sys.exit(main(*sys.argv[1:]))
