#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documents keep their word: the README's example is the file that CI compiles, links lead somewhere, and every
`./dev` command, NIBBLE_ variable and test suite (`PROGRAM: SUITE`) that a document names exists; so does every test
(`SUITE/TEST`) that the table of public reports names. The README and the manual page name every variable."""

from __future__ import annotations

import re
from pathlib import Path

from common import C_SUFFIXES, Case, main, place, tree_files

EXAMPLE = re.compile(r"<!-- (docs/examples/\S+) -->\n+```c\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
DEV = re.compile(r"\./dev ([a-z]+)")
DEV_COMMAND = re.compile(r"^cmd_([a-z]+)\(\)", re.MULTILINE)
SUITE = re.compile(r"`test[-_]\w+: (\w+)`")
SUITE_HERE = re.compile(r"Test\((?:[\w ]+\*\w+, *)?(\w+), *(\w+)")
NAMED_TEST = re.compile(r"`(\w+/\w+)`")
TEST_TABLE = "REPORTS.md"  # a document that names single tests
VARIABLE = re.compile(r"`(NIBBLE_[A-Z_]+)")
VARIABLE_READ = re.compile(r'"(NIBBLE_[A-Z_]+)"')
VARIABLES = "core/env.c"  # the one list of them


def check_document(root: Path, path: Path, commands: set[str], code: str) -> list[str]:
    """Findings for one document."""
    text, found = path.read_text(), []
    for hit in EXAMPLE.finditer(text):
        example = root / hit[1]
        if not example.is_file() or example.read_text() != hit[2]:
            found.append(f"{place(root, path)}: the listing differs from {hit[1]}")
    for hit in LINK.finditer(text):
        if not (path.parent / hit[1]).exists():
            found.append(f"{place(root, path)}: link to {hit[1]} leads nowhere")
    for command in sorted(set(DEV.findall(text)) - commands):
        found.append(f"{place(root, path)}: there is no ./dev {command}")
    tests = SUITE_HERE.findall(code)
    for suite in sorted(set(SUITE.findall(text)) - {suite for suite, _ in tests}):
        found.append(f"{place(root, path)}: there is no suite {suite}")
    if path.name == TEST_TABLE:
        for name in sorted(set(NAMED_TEST.findall(text)) - {"/".join(test) for test in tests}):
            found.append(f"{place(root, path)}: there is no test {name}")
    for variable in sorted(set(VARIABLE.findall(text))):
        if variable not in code:
            found.append(f"{place(root, path)}: nothing reads {variable}")
    return found


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    files = tree_files(root)
    dev = (root / "dev").read_text()
    commands = set(DEV_COMMAND.findall(dev))
    code = dev + "".join(p.read_text(errors="replace") for p in files
                         if p.suffix in C_SUFFIXES or p.name == "CMakeLists.txt")
    found = []
    for path in files:
        if path.suffix == ".md":
            found += check_document(root, path, commands, code)
    for page in ("README.md", "core/install/manpage.py"):
        for variable in VARIABLE_READ.findall((root / VARIABLES).read_text()):
            if variable not in (root / page).read_text():
                found.append(f"{page}: {variable} is missing")
    if not EXAMPLE.search((root / "README.md").read_text()):
        found.append("README.md: the listing of docs/examples/embed.c is gone")
    return found


GOOD = ("<!-- docs/examples/embed.c -->\n```c\nint x;\n```\nRun `./dev test`. See [it](docs/a.md). `NIBBLE_LOG`"
        " `test-x: merge`\n")


def case(readme: str, finding: str | None, table: str = "`merge/states`\n",
         variable: str = "NIBBLE_LOG") -> Case:
    """A tree with a README and a table of tests."""
    return Case({"README.md": readme, "tests/REPORTS.md": table, "docs/a.md": "a\n",
                 "docs/examples/embed.c": "int x;\n", VARIABLES: f'getenv("{variable}");\n',
                 "core/install/manpage.py": ".It Ev NIBBLE_LOG\n", "core/log.c": "/* NIBBLE_LOG */\n",
                 "tests/a.c": "Test(merge, states)\n", "dev": "cmd_test() {\n"}, finding)


CASES = [
    case(GOOD, None),
    case(GOOD.replace("int x", "int y"), "the listing differs"),
    case(GOOD.replace("<!--", "<!- "), "is gone"),
    case(GOOD.replace("a.md", "b.md"), "leads nowhere"),
    case(GOOD.replace("dev test", "dev best"), "there is no ./dev best"),
    case(GOOD.replace(": merge", ": purge"), "there is no suite purge"),
    case(GOOD.replace("NIBBLE_LOG", "NIBBLE_FOG"), "nothing reads NIBBLE_FOG"),
    case(GOOD, "there is no test merge/gone", "`merge/states`, `merge/gone`\n"),
    case(GOOD + "NIBBLE_ISA\n", "core/install/manpage.py: NIBBLE_ISA is missing", variable="NIBBLE_ISA"),
]

if __name__ == "__main__":
    main("documents", check, CASES)
