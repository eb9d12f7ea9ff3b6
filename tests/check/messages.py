#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md speaks of messages that exist: each text in the first column of its tables is part of a
string in the product's sources. Texts of the dynamic loader are named here."""

from __future__ import annotations

import re
from pathlib import Path

from common import C_SUFFIXES, Case, main, tree_files

PAGE = "docs/troubleshooting.md"
ROW = re.compile(r"^\| (`.*?`)(?: after `.*?`)? \|", re.MULTILINE)
JOINED = re.compile(r'"\s*\n\s*"')
FOREIGN = {"undefined symbol"}
LEAST_BYTES = 4


def sources(root: Path) -> str:
    """All product sources as one text, strings that continue on the next line joined, quotes as users see them."""
    folders = ("core/", "sim/", "backends/", "abi/include/")
    text = "\n".join(p.read_text(errors="replace") for p in tree_files(root)
                     if p.suffix in C_SUFFIXES and p.relative_to(root).as_posix().startswith(folders))
    return JOINED.sub("", text).replace('\\"', '"')


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    page = root / PAGE
    if not page.is_file():
        return [f"{PAGE} is gone"]
    text = sources(root)
    shown = [hit.strip("`") for hit in ROW.findall(page.read_text())]
    found = [f"{PAGE}: nothing says {words!r}" for words in shown if words not in text and words not in FOREIGN]
    found += [f"{PAGE}: {words!r} could be part of anything" for words in shown if len(words) < LEAST_BYTES]
    return found if shown else [f"{PAGE}: no message in its tables"]


TABLE = "| message | means | do |\n|---|---|---|\n| `%s` | x | y |\n"
CODE = 'f("%s has no nibble "\n  "note", "unknown backend \\"%s\\" in");\n'
CASES = [
    Case({PAGE: TABLE % "has no nibble note", "core/a.c": CODE}, None),
    Case({PAGE: TABLE % 'unknown backend "', "core/a.c": CODE}, None),
    Case({PAGE: TABLE % "undefined symbol", "core/a.c": CODE}, None),
    Case({PAGE: TABLE % "has no note", "core/a.c": CODE}, "nothing says 'has no note'"),
    Case({PAGE: TABLE % "has no nibble note", "tests/a.c": CODE}, "nothing says"),
    Case({PAGE: TABLE % "no", "core/a.c": CODE}, "could be part of anything"),
    Case({PAGE: "text\n", "core/a.c": CODE}, "no message"),
    Case({"core/a.c": CODE}, "is gone"),
]

if __name__ == "__main__":
    main("messages", check, CASES)
