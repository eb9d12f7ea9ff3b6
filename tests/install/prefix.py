#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`cmake --install` to a fresh prefix: what lies there, programs built against it, the tree moved, a backend gone.

Usage: prefix.py BUILD
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from common import HERE, check_consumers, expect, only, run


def check_tool(prefix: Path) -> None:
    """The tool finds the library and the backend beside it; its page and completion are there."""
    tool = prefix / "bin" / "nibble"
    if "ok    sim: " not in run(tool, "doctor", NIBBLE_BACKEND="sim"):
        sys.exit("nibble doctor does not find sim")
    if ".Ss nibble doctor" not in only(prefix, "nibble.1").read_text():
        sys.exit("the manual page does not tell of nibble doctor")
    for line in run("bash", HERE / "completion.sh", only(prefix, "completions/nibble"), tool.parent).splitlines():
        expect("completion", line, "ok")


def check_template(prefix: Path, work: Path) -> None:
    """The template for backends, built alone against the installed tree, loads."""
    source = HERE.parents[1] / "backends" / "null"
    run("cmake", "-S", source, "-B", work, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", work)
    text = run(prefix / "bin" / "nibble", "info", "--backend", "null", "--backend-dir", work)
    if f"{work}/libnibble-backend-null.so.1" not in text:
        sys.exit(f"the template does not load:\n{text}")


def check_missing(prefix: Path) -> None:
    """Without the backend, the message says what is missing and where it was looked for."""
    tool, library = prefix / "bin" / "nibble", only(prefix, "libnibble.so.1").parent
    only(prefix, "libnibble-backend-sim.so.1").unlink()
    text = run(tool, "info", "--backend", "sim", status=3)
    wanted = f'nibble: --backend: backend "sim": no libnibble-backend-sim.so.1 in: {library}/nibble'
    if wanted not in text:
        sys.exit(f"the message is {text!r}, expected {wanted!r}")


def main(build: Path) -> None:
    """Installs, uses, moves, uses, removes."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        first, second = work / "first place", work / "second"
        run("cmake", "--install", build, "--prefix", first)
        check_tool(first)
        first.rename(second)
        check_tool(second)
        check_consumers(second, work / "user")
        check_template(second, work / "template")
        check_missing(second)
    print("prefix: installed, used, moved, used, and missed")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    main(Path(sys.argv[1]))
