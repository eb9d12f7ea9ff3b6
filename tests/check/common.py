# SPDX-License-Identifier: Apache-2.0
"""What the check scripts share: the list of files, the report, and the self-test.

A check is a function that takes the root of a tree and returns findings, one line each. It comes with cases: small
trees that are broken on purpose, each with the words its finding must hold (or None for a tree that must pass). The
cases run before the check itself, so a check that has gone blind fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
C_SUFFIXES = (".c", ".h", ".cu", ".cuh", ".inc")


class Case(NamedTuple):
    """One tree of the self-test: relative path -> text, and what must be found there."""

    files: dict[str, str]
    finding: str | None


def tree_files(root: Path) -> list[Path]:
    """Files of the tree that git would track, or all of them where there is no git directory; sorted."""
    if (root / ".git").exists():
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
                                check=True, capture_output=True).stdout.decode()
        paths = [root / name for name in listed.split("\0") if name]
    else:
        paths = [p for p in root.rglob("*") if "build" not in p.relative_to(root).parts[0]]
    return sorted(p for p in paths if p.is_file())


def sources(root: Path, *tops: str) -> list[Path]:
    """C and CUDA files, of the named top-level folders only if any are named."""
    return [p for p in tree_files(root)
            if p.suffix in C_SUFFIXES and (not tops or p.relative_to(root).parts[0] in tops)]


def place(root: Path, path: Path, line: int | None = None) -> str:
    """Relative path, with the line if there is one."""
    name = path.relative_to(root).as_posix()
    return f"{name}:{line}" if line else name


def without_comments(text: str) -> str:
    """C text with comments and string contents blanked; line numbers stay."""
    out, i, state = [], 0, "code"
    while i < len(text):
        two, one = text[i:i + 2], text[i]
        if state == "code" and two in ("/*", "//"):
            state, i = two, i + 2
        elif state == "/*" and two == "*/":
            state, i = "code", i + 2
        elif state == "//" and one == "\n" or state == '"' and one == '"':
            state, i = "code", i + 1
            out.append(one)
        elif state == '"' and one == "\\":
            i += 2
        else:
            state = '"' if state == "code" and one == '"' and text[i - 1:i] != "'" else state
            out.append(one if state == "code" or one in '"\n' else " ")
            i += 1
    return "".join(out)


def run_case(check: Callable[[Path], list[str]], case: Case) -> str | None:
    """None if the check says about one self-test tree what it must say, else what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in case.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = check(root)
    if case.finding is None:
        return f"false alarm: {found[0]}" if found else None
    return None if any(case.finding in f for f in found) else f"did not find {case.finding!r}, only {found}"


def main(name: str, check: Callable[[Path], list[str]], cases: list[Case], root: Path = ROOT) -> None:
    """Runs the self-test, then the check on the tree; exits 1 with one line per finding."""
    broken = [f"self-test case {i}: {why}" for i, case in enumerate(cases) if (why := run_case(check, case))]
    found = broken or check(root)
    for line in found:
        print(f"{name}: {line}")
    state = "FAILED" if found else "ok"
    print(f"{name}: {state} ({len(cases)} self-test cases, {len(found)} findings)")
    sys.exit(1 if found else 0)
