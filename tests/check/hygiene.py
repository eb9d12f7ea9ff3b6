#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text that belongs in no tree: paths of one machine, unfinished marks, stray white space, unlicensed sources."""

from __future__ import annotations

import re
from pathlib import Path

from common import C_SUFFIXES, Case, main, place, tree_files

TOP_LEVEL = {"CMakeLists.txt", "core", "backends", "sim", "abi", "tests", "docs", "README.md", "dev", "LICENSE"}
BINARY = (".xz", ".npy", ".safetensors", ".bin", ".png")
# Written in pieces, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile("(?<![A-Za-z0-9._-])/(?:" + "|".join(
    ["wo" + "rk/", "ro" + "ot/", "fa" + "rm/", "ho" + "me/[a-z]", "tm" + "p/[a-z]+-probe"]) + ")")
UNFINISHED = re.compile("TO" + "DO|FIX" + "ME|\\bXX" + "X\\b|HA" + "CK|not implem" + "ented|\\bst" + "ub")
LINE_MAX = 120
FILE_BYTES_MAX = 4 << 20


def check_line(name: str, text: str) -> list[str]:
    """What is wrong with one line of a text file."""
    found = []
    if MACHINE_PATH.search(text):
        found.append("path of one machine")
    if text != text.rstrip():
        found.append("white space at the end of the line")
    code = name.endswith(C_SUFFIXES + (".py",)) or name == "dev"
    if code and "\t" in text:
        found.append("tab")
    if code and len(text) > LINE_MAX:
        found.append(f"{len(text)} characters, {LINE_MAX} are allowed")
    if name.startswith(("core/", "sim/", "backends/", "abi/")) and UNFINISHED.search(text):
        found.append("unfinished, or said to be")
    return found


def check_file(root: Path, path: Path) -> list[str]:
    """Findings for one file."""
    name = path.relative_to(root).as_posix()
    found = [] if path.stat().st_size <= FILE_BYTES_MAX else [f"{name}: larger than 4 MiB"]
    if path.suffix in BINARY:
        return found
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return found + [f"{name}: not UTF-8 text, and not one of {', '.join(BINARY)}"]
    if "\r" in text:
        found.append(f"{name}: carriage return")
    if text and not text.endswith("\n"):
        found.append(f"{name}: no newline at the end")
    lines = text.split("\n")
    if name.endswith(C_SUFFIXES) and "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        found.append(f"{name}: the first line is not the SPDX line")
    for number, line in enumerate(lines, 1):
        found += [f"{place(root, path, number)}: {what}" for what in check_line(name, line)]
    return found


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    found = []
    tops = set()
    for path in tree_files(root):
        tops.add(path.relative_to(root).parts[0])
        if path.name != "LICENSE" and path.relative_to(root).as_posix() != "tests/data/text.txt":
            found += check_file(root, path)
    found += [f"{top}: does not belong at the top level" for top in sorted(tops - TOP_LEVEL) if top[0] != "."]
    return found


SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
CASES = [
    Case({"core/a.c": SPDX + "int x;\n", "README.md": "text\n", ".editorconfig": "root = true\n"}, None),
    Case({"core/a.c": "int x;\n"}, "SPDX"),
    Case({"core/a.c": SPDX + "int x; \n"}, "core/a.c:2: white space"),
    Case({"core/a.c": SPDX + "\tint x;\n"}, "tab"),
    Case({"core/a.c": SPDX + "int x;"}, "no newline"),
    Case({"core/a.c": SPDX + "int x; /* " + "TO" + "DO */\n"}, "unfinished"),
    Case({"core/a.c": SPDX + "int x; /* XX" + "X */\n"}, "unfinished"),
    Case({"core/a.c": SPDX + 'char name[] = "a-' + "X" * 6 + '"; /* for mkstemp */\n'}, None),
    Case({"core/a.c": SPDX + "/* " + "x" * 120 + " */\n"}, "120 are allowed"),
    Case({"docs/a.md": "see /" + "ro" + "ot/x\n"}, "path of one machine"),
    Case({"docs/a.md": "a\r\n"}, "carriage return"),
    Case({"Makefile": "all:\n"}, "top level"),
    Case({"docs/a.txt": "x" * ((4 << 20) + 1) + "\n"}, "larger than 4 MiB"),
]

if __name__ == "__main__":
    main("hygiene", check, CASES)
