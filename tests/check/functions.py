#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No function over 70 lines (90 in sim/isa and in kernels, whose loops are long on purpose). Needs universal-ctags."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

from common import ROOT, Case, main, place, sources

LIMIT, LOOP_LIMIT = 70, 90


def lengths(root: Path) -> list[tuple[Path, int, str, int]]:
    """(file, line, name, lines) of every function."""
    paths = sources(root)
    if not paths:
        return []
    out = subprocess.run(["ctags", "--output-format=json", "--fields=+ne", "--kinds-C=f", "--kinds-C++=f",
                          "--langmap=C:.c.h.inc,C++:.cu.cuh.cpp", "-L", "-", "-f", "-"],
                         input="\n".join(map(str, paths)), check=True, capture_output=True, text=True).stdout
    tags = (json.loads(line) for line in out.splitlines())
    return [(Path(t["path"]), t["line"], t["name"], t["end"] - t["line"] + 1) for t in tags
            if t["_type"] == "tag" and "end" in t]


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    found = []
    for path, line, name, count in lengths(root):
        rel = path.relative_to(root).as_posix()
        limit = LOOP_LIMIT if rel.startswith("sim/isa/") or "/kernels/" in rel else LIMIT
        if count > limit:
            found.append(f"{place(root, path, line)}: {name} has {count} lines, {limit} are allowed")
    return found


def body(lines: int) -> str:
    """A function of that many lines."""
    return "int f(int x)\n{\n" + "    x++;\n" * (lines - 4) + "    return x;\n}\n"


CASES = [
    Case({"core/a.c": body(70)}, None),
    Case({"core/a.c": body(71)}, "f has 71 lines"),
    Case({"sim/isa/a.c": body(90)}, None),
    Case({"sim/isa/a.c": body(91)}, "f has 91 lines"),
    Case({"core/num/a.h": "static inline " + body(71)}, "f has 71 lines"),
]


def summary(root: Path) -> str:
    """Median and longest of the product's functions."""
    product = [n for p, _, _, n in lengths(root)
               if p.relative_to(root).parts[0] in ("core", "sim", "backends", "abi")]
    return (f"functions: {len(product)} in the product, median {statistics.median(product or [0]):g} lines, "
            f"longest {max(product or [0])}")


if __name__ == "__main__":
    print(summary(ROOT))
    main("functions", check, CASES)
