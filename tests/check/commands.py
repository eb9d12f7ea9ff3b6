#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./dev refuses what it does not know before it does anything: nothing on standard output, a last line that begins
with "dev: " on standard error, exit status 1."""

from __future__ import annotations

import subprocess
from pathlib import Path

from common import Case, main

LIMIT_S = 60
WRONG = ["frobnicate", "build --release", "demo --recipe", "check all", "doc x", "clients sim", "figures x",
         "instructions x", "format --chekc", "test --fast", "test --lanes", "test --lanes asan,valgrind",
         "lanes valgrind", "lanes asan ../x", "fuzz soon", "fuzz 0", "fuzz 5 nothing", "fuzz 5 .."]


def refusal(root: Path, words: str) -> str | None:
    """What is wrong with how the script refuses the words, or None."""
    run = subprocess.run(["bash", root / "dev", *words.split()], stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=LIMIT_S)
    lines = run.stderr.splitlines()
    if run.returncode == 1 and not run.stdout and lines and lines[-1].startswith("dev: "):
        return None
    return f"./dev {words}: exit {run.returncode}, said {(run.stdout + run.stderr)[-200:]!r}"


def check(root: Path) -> list[str]:
    """Findings for a tree."""
    return [text for words in WRONG if (text := refusal(root, words))]


CASES = [
    Case({"dev": "echo dev: no >&2; exit 1\n"}, None),
    Case({"dev": "[ $1 != format ] || exit 0; echo dev: no >&2; exit 1\n"}, "./dev format --chekc: exit 0"),
    Case({"dev": "echo working; echo dev: no >&2; exit 1\n"}, "said 'working"),
    Case({"dev": "echo line 9: parameter null >&2; exit 1\n"}, "parameter null"),
]

if __name__ == "__main__":
    main("commands", check, CASES)
