#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""accuracy.csv, memory.csv and the tables of figures.md, from what the tool measures and plans. Standard library only.

Usage: accuracy.py TOOL CAPTURE OUT_DIR
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

RECIPES = ["bf16", "fp8", "nvfp4", "nvfp4_4over6", "mpfa", "mpfa,qcenter=0", "mpfa,center=0,qcenter=0",
           "qk4v8", "mxkv4", "kv4", "k4v8", "kv8"]
DISTRIBUTIONS = ["gaussian", "outlier-30", "outlier-100", "log-normal", "student-t"]
LENGTHS = [1024, 8192, 32768, 131072]
ROWS = ["--hq", "4", "--hkv", "1", "--d", "128", "--nq", "4"]
PLANNED = ["--layers", "32", "--hkv", "8", "--d", "128", "--kv", "131072"]
COLUMNS = ["source", "layer", "length", "recipe", "rel_l2", "gain", "cos_min", "lse_err"]
BEGIN, END = "<!-- tables: made by accuracy.py -->", "<!-- end of tables -->"


def tool(*command: str) -> dict:
    """JSON of a command of the tool."""
    return json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)


def compare(name: str, *options: str) -> list[dict]:
    """Rows of nibble compare."""
    return tool(name, "compare", "--recipes", ",".join(RECIPES), *options)["rows"]


def measure(name: str, capture: str) -> list[dict]:
    """The capture, every layer, and each distribution; a layer of None is left empty."""
    rows = [{**row, "source": "capture"} for row in compare(name, "--input", capture)]
    lengths = ",".join(map(str, LENGTHS))
    for source in DISTRIBUTIONS:
        rows += compare(name, "--generate", source, *ROWS, "--kv", str(LENGTHS[-1]), "--lengths", lengths)
    return rows


def write(path: Path, rows: list[dict], columns: list[str]) -> None:
    """Chosen columns of rows, numbers in six digits, recipes with a semicolon for a comma."""
    with path.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            values = [row[c] for c in columns]
            texts = [f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in values]
            writer.writerow([text.replace(",", ";") for text in texts])


def table(rows: list[dict], source: str, layer: int | None) -> str:
    """Relative L2 by recipe and length as a Markdown table."""
    found = {(r["recipe"], r["length"]): r["rel_l2"] for r in rows if (r["source"], r["layer"]) == (source, layer)}
    lengths = sorted({length for _, length in found})
    title = source if layer is None else f"{source}, layer {layer}"
    lines = [f"| {title} | " + " | ".join(map(str, lengths)) + " |", "|---|" + "---|" * len(lengths)]
    for recipe in RECIPES:
        lines.append(f"| `{recipe}` | " + " | ".join(f"{found[recipe, n]:.4f}" for n in lengths) + " |")
    return "\n".join(lines)


def write_tables(page: Path, rows: list[dict]) -> None:
    """Replaces what stands between the two marks of the page."""
    kinds = dict.fromkeys((row["source"], row["layer"]) for row in rows)
    tables = "\n\n".join(table(rows, *kind) for kind in kinds)
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.split(END)[1]}")


def main(name: str, capture: str, out: str) -> None:
    """Command line entry."""
    measured = measure(name, capture)
    write(Path(out) / "accuracy.csv", measured, COLUMNS)
    write_tables(Path(out).parent / "figures.md", measured)
    planned = tool(name, "plan", *PLANNED)
    rows = [{"recipe": "bf16", "bytes": planned["bf16_bytes"]}]
    rows += [{"recipe": r["recipe"], "bytes": r["total_bytes"]} for r in planned["rows"]]
    write(Path(out) / "memory.csv", rows, ["recipe", "bytes"])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip().splitlines()[-1])
    main(*sys.argv[1:])
