#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One exported symbol per library, and no dependency that the layer must not have.

Usage: symbols.py LIBDIR (build/lib). The self-test builds broken libraries with the C compiler.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

RUNTIME_NEEDS = re.compile(r"^(libc|libdl|libpthread|ld-linux-x86-64|ld-linux-aarch64)\.so")
PLUGIN_BANS = re.compile(r"^(libnibble|libcuda|libcudart)\b")


def tool(*command: str) -> str:
    """Output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(path: Path) -> list[str]:
    """Dynamic symbols that a library defines."""
    return sorted(line.split()[-1].split("@")[0] for line in tool("nm", "-D", "--defined-only", str(path)).splitlines())


def needed(path: Path) -> list[str]:
    """Libraries that a library names as its dependencies, sanitizer runtimes left out."""
    names = re.findall(r"\(NEEDED\).*\[(.+)\]", tool("readelf", "-dW", str(path)))
    return [n for n in names if not re.match(r"lib(asan|ubsan|tsan|lsan)\.", n)]


def check_library(path: Path, symbol: str) -> list[str]:
    """Findings for one library."""
    found, symbols = [], exported(path)
    if symbols != [symbol]:
        found.append(f"{path.name} exports {', '.join(symbols) or 'nothing'}; only {symbol} is allowed")
    for name in needed(path):
        bad = not RUNTIME_NEEDS.match(name) if symbol == "nbl_get_api" else PLUGIN_BANS.match(name)
        if bad:
            found.append(f"{path.name} depends on {name}")
    if symbol != "nbl_get_api" and ".note.nibble.abi" not in tool("readelf", "-SW", str(path)):
        found.append(f"{path.name} has no .note.nibble.abi section")
    return found


def check(folder: Path) -> list[str]:
    """Findings for a library folder."""
    runtime = folder / "libnibble.so.1"
    plugins = sorted((folder / "nibble").glob("libnibble-backend-*.so.1"))
    if not runtime.exists() or not plugins:
        return [f"{folder.name} lacks libnibble.so.1 or a backend; build first"]
    found = check_library(runtime, "nbl_get_api")
    for plugin in plugins:
        found += check_library(plugin, "nbl_backend_entry_v1")
    return found


def self_test() -> list[str]:
    """Builds a good pair and three broken ones; says which were judged wrongly."""
    note = '__attribute__((section(".note.nibble.abi"), used)) static const int note = 1;'
    runtime, plugin = "int nbl_get_api(void) { return 0; }", "int nbl_backend_entry_v1(void) { return 0; }"
    cases = [(runtime, plugin + note, None),
             (runtime + "int extra;", plugin + note, "exports extra, nbl_get_api"),
             (runtime, plugin, "has no .note.nibble.abi"),
             (runtime, plugin + note + "int f(void) { return 1; }", "exports f")]
    wrong = []
    for i, (main_text, plugin_text, finding) in enumerate(cases):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            (out / "nibble").mkdir()
            for text, name in ((main_text, "libnibble.so.1"), (plugin_text, "nibble/libnibble-backend-x.so.1")):
                subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(out / name)], input=text, text=True,
                               check=True)
            found = check(out)
        if bool(found) != bool(finding) or (finding and not any(finding in f for f in found)):
            wrong.append(f"self-test case {i}: expected {finding!r}, found {found}")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: symbols.py LIBDIR")
    findings = self_test() or check(Path(sys.argv[1]))
    for line in findings:
        print(f"symbols: {line}")
    print(f"symbols: {'FAILED' if findings else 'ok'} (4 self-test cases, {len(findings)} findings)")
    sys.exit(1 if findings else 0)
