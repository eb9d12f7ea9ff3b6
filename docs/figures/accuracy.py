#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""accuracy.csv and memory.csv for the figures, from what the tool measures and plans. Standard library only.

Usage: accuracy.py TOOL CAPTURE OUT_DIR
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

SHAPE = ["--layers", "32", "--hkv", "8", "--d", "128", "--kv", "131072"]


def tool(*command: str) -> dict:
    """JSON of a command of the tool."""
    return json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)


def write(path: Path, rows: list[dict], columns: list[str]) -> None:
    """Chosen columns of rows, numbers in six digits."""
    with path.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([f"{v:.6g}" if isinstance(v := row[c], float) else v for c in columns])


def main(name: str, capture: str, out: str) -> None:
    """Command line entry."""
    measured = tool(name, "compare", "--input", capture)["rows"]
    write(Path(out) / "accuracy.csv", measured, ["layer", "length", "recipe", "rel_l2", "lse_err"])
    planned = tool(name, "plan", *SHAPE)
    rows = [{"recipe": "bf16", "bytes": planned["bf16_bytes"]}]
    rows += [{"recipe": r["recipe"], "bytes": r["total_bytes"]} for r in planned["rows"]]
    write(Path(out) / "memory.csv", rows, ["recipe", "bytes"])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip().splitlines()[-1])
    main(*sys.argv[1:])
