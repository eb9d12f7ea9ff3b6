#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom: the layers of docs/SOUNDNESS.md, "Layers".

abi sees itself. core sees abi and core, of core/num only layout.h, and core/cli only the application ABI and the time
model, sim/model, which itself sees layout.h and nibble_types.h. sim and each
backend see the backend ABI, core/num and themselves, never each other. tests/oracle sees nibble_types.h and itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from common import Case, main, place, sources, tree_files

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
SYSTEM_ONLY_IN = {"omp.h": ("sim/", "tests/"), "cuda.h": ("backends/",), "cuda_runtime.h": ("backends/",),
                  "cuda_fp16.h": ("backends/", "core/num/"), "immintrin.h": ("sim/", "tests/")}


def layer(path: str) -> str:
    """Layer of a file: its longest known folder."""
    if path.startswith("backends/"):
        return "/".join(path.split("/")[:2])
    known = ("abi/include", "core/num", "core/cli", "core", "sim/model", "sim", "tests/oracle", "tests", "docs")
    return next((k for k in known if path.startswith(k + "/")), "")


def allowed(source: str, target: str) -> bool:
    """True if the file source may include the file target, both relative to the root."""
    here, there = layer(source), layer(target)
    file = target.rsplit("/", 1)[-1]
    if here in ("tests", "docs"):
        return True
    if here == there:
        return True
    if there == "abi/include":
        if here in ("core/num", "tests/oracle", "sim/model"):
            return file == "nibble_types.h"
        if here == "core/cli":
            return file != "nibble_backend.h"
        return here == "core" or file in ("nibble_types.h", "nibble_backend.h")
    if there == "core/num":
        if here in ("core", "core/cli", "sim/model"):
            return file == "layout.h"
        return here == "sim" or here.startswith("backends/")
    return there == "sim/model" and here == "core/cli"


def resolve(root: Path, source: Path, name: str, ours: dict[str, list[str]]) -> str | None:
    """Our file that an include names, or None for a system header."""
    beside = (source.parent / name).resolve()
    if beside.is_file() and beside.is_relative_to(root):
        return beside.relative_to(root).as_posix()
    ends = [p for p in ours.get(name.rsplit("/", 1)[-1], []) if p == name or p.endswith("/" + name)]
    here = layer(source.relative_to(root).as_posix())
    ends.sort(key=lambda p: (layer(p) != here, len(p)))
    return ends[0] if ends else None


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    root = root.resolve()
    ours: dict[str, list[str]] = {}
    for path in tree_files(root):
        ours.setdefault(path.name, []).append(path.relative_to(root).as_posix())
    found = []
    for path in sources(root):
        text = path.read_text(errors="replace")
        source = path.relative_to(root).as_posix()
        for hit in INCLUDE.finditer(text):
            at = place(root, path, text.count("\n", 0, hit.start()) + 1)
            target = resolve(root, path, hit[2], ours)
            if target is None:
                if hit[1] == '"':
                    found.append(f'{at}: "{hit[2]}" is not in this tree')
                only = SYSTEM_ONLY_IN.get(hit[2])
                if only and not source.startswith(only):
                    found.append(f"{at}: <{hit[2]}> belongs only in {', '.join(only)}")
            elif not allowed(source, target):
                found.append(f"{at}: {layer(source)} may not include {target}")
    return found


NUM = {"core/num/e2m1.h": "", "core/num/layout.h": "", "abi/include/nibble/nibble_backend.h": "",
       "abi/include/nibble/nibble.h": "", "abi/include/nibble/nibble_types.h": "", "core/loader.h": "",
       "sim/team.h": "", "sim/model/model.h": "", "tests/oracle/oracle.h": "", "backends/cuda/device.h": ""}


def case(source: str, include: str, finding: str | None) -> Case:
    """A tree whose one source has one include."""
    return Case({**NUM, source: f"#include {include}\n"}, finding)


CASES = [
    case("core/a.c", '"num/e2m1.h"', "core may not include core/num/e2m1.h"),
    case("core/a.c", '"num/layout.h"', None),
    case("core/a.c", "<nibble/nibble_backend.h>", None),
    case("core/cli/a.c", "<nibble/nibble_backend.h>", "core/cli may not include"),
    case("core/cli/a.c", '"loader.h"', "core/cli may not include core/loader.h"),
    case("core/num/a.h", '"loader.h"', "core/num may not include"),
    case("sim/ops/a.c", '"loader.h"', "sim may not include core/loader.h"),
    case("sim/ops/a.c", '"../../backends/cuda/device.h"', "sim may not include backends/cuda/device.h"),
    case("sim/ops/a.c", "<nibble/nibble.h>", "sim may not include"),
    case("sim/ops/a.c", '"e2m1.h"', None),
    case("sim/model/a.c", '"e2m1.h"', "sim/model may not include core/num/e2m1.h"),
    case("sim/ops/a.c", '"model/model.h"', "sim may not include sim/model/model.h"),
    case("core/cli/a.c", '"model.h"', None),
    case("core/a.c", '"model.h"', "core may not include sim/model/model.h"),
    case("backends/cuda/a.cu", '"team.h"', "backends/cuda may not include sim/team.h"),
    case("abi/include/nibble/x.h", '"../../../core/loader.h"', "abi/include may not include"),
    case("tests/oracle/a.c", '"core/num/e2m1.h"', "tests/oracle may not include"),
    case("tests/oracle/a.c", "<nibble/nibble.h>", "tests/oracle may not include"),
    case("tests/unit/a.c", '"core/num/e2m1.h"', None),
    case("core/a.c", '"gone.h"', "is not in this tree"),
    case("core/a.c", "<omp.h>", "belongs only in"),
    case("core/a.c", '"../tests/oracle/oracle.h"', "core may not include tests/oracle/oracle.h"),
]

if __name__ == "__main__":
    main("includes", check, CASES)
