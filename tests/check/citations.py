#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every citation of a clause resolves, and every normative clause is cited by a test.

`NUM 5.3`, `NUM 2` and lists such as `NUM 5.6, 5.8` cite docs/numerics.md; `F3` cites docs/formats.md. Clauses of the
groups in TESTED must be cited by a test (the oracle is none) as soon as tests cite any clause at all.
"""

from __future__ import annotations

import re
from pathlib import Path

from common import C_SUFFIXES, Case, main, place, tree_files

NUMERICS, FORMATS = "docs/numerics.md", "docs/formats.md"
CLAUSE = re.compile(r"^\*\*(\d+\.\d+) ", re.MULTILINE)
GROUP = re.compile(r"^## (\d+)\. ", re.MULTILINE)
FORMAT_CLAUSE = re.compile(r"^## (F\d+)\. ", re.MULTILINE)
CITE = re.compile(r"\bNUM (\d+(?:\.\d+)?(?:(?:, and|,| and| or|-)[ \n]?\d+\.\d+)*)")
INNER = re.compile(r"\((\d\.\d+(?:, \d\.\d+)*)\)")
FORMAT_CITE = re.compile(r"(?<!reports )(?<!report )(?<![\w.\-#/])(F\d)(?![\w.])")
TESTED = ("2", "3", "4", "5")
TEXT = C_SUFFIXES + (".md", ".py", ".txt", ".cmake", ".cpp")


def clauses(root: Path) -> set[str]:
    """All clause names: "5", "5.3", "F3"."""
    numerics = (root / NUMERICS).read_text()
    return (set(CLAUSE.findall(numerics)) | set(GROUP.findall(numerics))
            | set(FORMAT_CLAUSE.findall((root / FORMATS).read_text())))


def citations(path: str, text: str) -> list[tuple[int, str]]:
    """(offset, clause) of all citations in one file."""
    found = [(hit.start(), number) for hit in CITE.finditer(text) for number in re.findall(r"\d+(?:\.\d+)?", hit[1])]
    if path == NUMERICS:
        found += [(hit.start(), number) for hit in INNER.finditer(text) for number in hit[1].split(", ")]
    return found + [(hit.start(), hit[1]) for hit in FORMAT_CITE.finditer(text)]


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    known, tested, found = clauses(root), set(), []
    for path in tree_files(root):
        name = path.relative_to(root).as_posix()
        if path.suffix not in TEXT or name.startswith("tests/check/") or name.startswith("tests/data/"):
            continue
        text = path.read_text(errors="replace")
        for offset, clause in citations(name, text):
            if clause not in known:
                found.append(f"{place(root, path, text.count(chr(10), 0, offset) + 1)}: there is no clause {clause}")
            if name.startswith("tests/") and not name.startswith("tests/oracle/") and path.suffix in C_SUFFIXES:
                tested.add(clause)
    missing = sorted(c for c in known if "." in c and c.split(".")[0] in TESTED and c not in tested)
    if tested:
        found += [f"{NUMERICS}: no test cites NUM {clause}" for clause in missing]
    return found


def case(files: dict[str, str], finding: str | None) -> Case:
    """A tree with three clauses and the files given."""
    return Case({NUMERICS: "## 2. Formats\n**2.1 Form.** a\n**2.2 Range.** b (2.1)\n", FORMATS: "## F1. Vectors\n",
                 **files}, finding)


CASES = [
    case({"sim/a.c": "/* NUM 2.1 and F1, NUM 2 */"}, None),
    case({"sim/a.c": "/* x\n NUM 2.9 */"}, "sim/a.c:2: there is no clause 2.9"),
    case({"sim/a.c": "/* NUM 2.1, 2.7 */"}, "no clause 2.7"),
    case({"sim/a.c": "/* docs/formats.md F4 */"}, "no clause F4"),
    case({"sim/a.c": "/* report F5; F16, F32 and NBL_F32 are types */"}, None),
    case({"tests/unit/a.c": "/* NUM 2.1 */"}, "no test cites NUM 2.2"),
    case({"tests/unit/a.c": "/* NUM 2.1, 2.2 */"}, None),
    case({"tests/unit/a.c": "/* NUM 2.1 */", "tests/oracle/a.c": "/* NUM 2.2 */"}, "no test cites NUM 2.2"),
    case({NUMERICS: "## 2. Formats\n**2.1 Form.** a (2.4)\n"}, "no clause 2.4"),
]

if __name__ == "__main__":
    main("citations", check, CASES)
