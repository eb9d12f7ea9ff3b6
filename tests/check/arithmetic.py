#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One home for the codecs, and no approximate arithmetic (NUM 1.1).

Codec constants live in core/num. Compiler flags and functions that give up IEEE results, and libm's transcendental
functions, appear nowhere in the code whose bits are promised.
"""

from __future__ import annotations

import re
from pathlib import Path

from common import Case, main, place, sources, tree_files, without_comments

PROMISED = ("core/num/", "sim/", "backends/")
BANNED_FLAGS = re.compile(r"use_fast_math|(?<!no)-ffast-math|-funsafe-math-optimizations|-fassociative-math"
                          r"|-freciprocal-math|-ffp-contract=(?!off)|-Ofast")
BANNED_CALLS = re.compile(
    r"\b(__expf|__exp10f|__logf|__log2f|__powf|__fdividef|__tanhf"
    r"|_mm\d*_(?:mask\w*_)?(?:rcp|rsqrt|rcp14|rsqrt14|exp2a23|exp2)_\w+"
    r"|(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|tanh|sinh|cosh)f?l?)\s*\("
    r"|\b(rcp|lg2|sqrt|rsqrt|div|tanh)\.approx")
MAGIC = re.compile(r"0x4B400000|\b12582912(?:\.0?f?)?\b", re.IGNORECASE)
E2M1_TABLE = re.compile(r"\b0(?:\.0?)?f?, *(?:0?\.5f?, *1(?:\.0?)?f?, *1\.5f?|1, *2, *3, *4, *6, *8, *12)\b")
E8M0_CODEC = re.compile(r"\bfloat\b[^;{}]*\be8m0\w*\([^;]*\)\s*\{", re.IGNORECASE)


def hits(root: Path, path: Path, pattern: re.Pattern[str], text: str, what: str) -> list[str]:
    """One finding per match."""
    return [f"{place(root, path, text.count(chr(10), 0, hit.start()) + 1)}: {hit[0].strip()}: {what}"
            for hit in pattern.finditer(text)]


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    found = []
    for path in tree_files(root):
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            found += hits(root, path, BANNED_FLAGS, path.read_text(), "flag gives up IEEE results")
    for path in sources(root, "core", "sim", "backends", "abi"):
        name = path.relative_to(root).as_posix()
        text = without_comments(path.read_text(errors="replace"))
        if name.startswith(PROMISED):
            found += hits(root, path, BANNED_CALLS, text, "approximate, or not the same everywhere")
        if not name.startswith("core/num/"):
            found += hits(root, path, MAGIC, text, "magic-number conversion belongs in core/num")
            found += hits(root, path, E2M1_TABLE, text, "E2M1 values belong in core/num")
            found += hits(root, path, E8M0_CODEC, text, "an E8M0 codec belongs in core/num")
    return found


CASES = [
    Case({"CMakeLists.txt": "add_compile_options(-ffast-math)\n"}, "-ffast-math"),
    Case({"CMakeLists.txt": "add_compile_options(-fno-fast-math -ffp-contract=off)\n"}, None),
    Case({"CMakeLists.txt": "add_compile_options(-ffp-contract=fast)\n"}, "-ffp-contract="),
    Case({"sim/a.c": "float f(float x) { return exp2f(x); }\n"}, "exp2f"),
    Case({"sim/a.c": "/* exp2f(x) */ float exp2_grid(float x);\n"}, None),
    Case({"sim/isa/a.c": "x = _mm512_rcp14_ps(x);\n"}, "rcp14"),
    Case({"backends/cuda/a.cu": "y = __expf(x);\n"}, "__expf"),
    Case({"core/cli/a.c": "double f(double x) { return exp(x); }\n"}, None),
    Case({"sim/a.c": "float m = 12582912.0f;\n"}, "12582912"),
    Case({"core/num/a.h": "#define M 12582912.0f\n"}, None),
    Case({"sim/a.c": "static const float t[] = {0.0f, 0.5f, 1.0f, 1.5f, 2, 3, 4, 6};\n"}, "E2M1 values"),
    Case({"sim/a.c": "static const signed char t[] = {0, 1, 2, 3, 4, 6, 8, 12};\n"}, "E2M1 values"),
    Case({"sim/a.c": "static float e8m0_decode(unsigned char e)\n{\n}\n"}, "E8M0 codec"),
]

if __name__ == "__main__":
    main("arithmetic", check, CASES)
