#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""accuracy.py NIBBLE: what the recipes promise, held against the captured tensors of a real model.

Fails unless, for every layer and length of the capture: kv8 stays below 0.03 in relative L2, kv4 below mxkv4, k4v8
below kv4, and mxkv4 below qk4v8.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KV8_MAX = 0.03
ORDER = ("kv8", "k4v8", "kv4", "mxkv4", "qk4v8")


def errors(nibble: str, capture: Path) -> dict[tuple[int, int], dict[str, float]]:
    """Relative L2 by (layer, length) and recipe."""
    out = subprocess.run([nibble, "compare", "--input", str(capture), "--json"], check=True, capture_output=True,
                         text=True).stdout
    table: dict[tuple[int, int], dict[str, float]] = {}
    for row in json.loads(out)["rows"]:
        table.setdefault((row["layer"], row["length"]), {})[row["recipe"]] = row["rel_l2"]
    return table


def findings(table: dict[tuple[int, int], dict[str, float]]) -> list[str]:
    """What does not hold."""
    found = []
    for (layer, length), row in sorted(table.items()):
        at = f"layer {layer}, {length} tokens"
        if not row["kv8"] < KV8_MAX:
            found.append(f"{at}: kv8 has {row['kv8']:.4f}, below {KV8_MAX} is promised")
        for better, worse in zip(ORDER, ORDER[1:]):
            if not row[better] < row[worse]:
                found.append(f"{at}: {better} has {row[better]:.4f}, {worse} {row[worse]:.4f}")
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture.safetensors"
        subprocess.run([sys.executable, ROOT / "tests/model/unpack.py", ROOT / "tests/data/gemma3-270m.planes.xz",
                        capture], check=True, stdout=subprocess.DEVNULL)
        table = errors(sys.argv[1], capture)
    found = findings(table) if table else ["the capture gave no rows"]
    for line in found:
        print(f"accuracy: {line}")
    print(f"accuracy: {len(table)} layers x lengths, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
