#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The short examples print what they should, and one clear line when there is no library.

Usage: outputs.py LANGUAGE LIBRARY PROGRAM [COMPILER SOURCE]
"""

from __future__ import annotations

import os
import subprocess
import sys

FULL = "NBL_E_RANGE: nibble: sequences[0] would have 1001 tokens (allowed: 1000)\n"
OUTPUT = {"c": "o = 0.7111 (0x1.6c112p-1)\n", "cpp": "CPU simulator\n1000 tokens, o = 0x1.6c112p-1\n" + FULL,
          "rust": "o = 0.7111 (0x3f360890)\n" + FULL}
MISSING = ("libnibble cannot be opened: /nowhere/libnibble.so.1: cannot open shared object file: "
           "No such file or directory\n")


def run(program: str, library: str) -> tuple[int, str]:
    """(exit status, output) of an example."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NIBBLE_")}
    done = subprocess.run([program, library], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**clean, "NIBBLE_BACKEND": "sim"})
    return done.returncode, done.stdout


def main(language: str, library: str, program: str, compiler: str = "", source: str = "") -> None:
    """Command line entry."""
    if language == "rust":
        if not os.access(compiler, os.X_OK):
            print("there is no rustc on this machine")
            sys.exit(77)
        subprocess.run([compiler, "--edition", "2021", "-O", "-D", "warnings", "-o", program, source], check=True)
    found, missing = run(program, library), run(program, "/nowhere/libnibble.so.1")
    if found != (0, OUTPUT[language]):
        sys.exit(f"{language}: {found}, not {OUTPUT[language]!r}")
    if missing[0] != 1 or missing[1].removeprefix("nibble: ") != MISSING:
        sys.exit(f"{language} without a library: {missing}, not {MISSING!r}")
    print(f"{language}: {found[1]}", end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
