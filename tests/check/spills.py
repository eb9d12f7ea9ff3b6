#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No CUDA kernel spills registers to memory, on any architecture it is built for.

Usage: spills.py BUILD. Reads what ptxas said while the plugin was built (backends/cuda/keep_report.sh). Every kernel of
HOT must be there for every architecture of the build, so that a report that was not written is no clean report. A
kernel of EXCEPTIONS may spill, up to its bytes and for its reason.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from common import Case, main

HOT = ("append_kernel", "append_coded_kernel", "append_recipe_kernel", "blackwell_kernel", "center_kernel",
       "decode_kernel", "decode_fold_kernel", "fold_kernel", "gather_kernel", "prefill_expand_kernel",
       "prefill_mma_kernel", "prefill_queries_kernel", "prefill_usual_queries_kernel", "prefill_wgmma_kernel",
       "prepare_kernel", "prepare_warps_kernel", "short_kernel", "team_kernel", "transcode_kernel")
# instance of a kernel, instances with these first arguments, or a kernel: (bytes of spill stores and loads together
# that are let pass, why)
EXCEPTIONS = {
    "append_kernel<1>": (16, "all formats and dimensions in one loop, of 1800 instructions: what is set before it"),
    "prefill_mma_kernel<128,128>": (20, "128 scores and elements of O a lane: 255 registers, as many as there are"),
    "decode_kernel<256,2>": (684, "head dimension 256 and two rows a lane: 255 registers, as many as there are"),
    "team_kernel": (12, "launch bounds for sm_90a, where it does not spill; one register on sm_100f and later"),
    "decode_kernel<128,2>": (276, "twelve warps that spill a little, once a tile, are faster than eight that do not"),
    "decode_kernel<128,1>": (104, "sixteen warps that spill a little, once a tile, are the fastest on sm_90a"),
    "decode_kernel": (80, "its launch bounds are those that are fastest on sm_90a, where it does not spill"),
}

# kernel: the architectures whose instructions it is written for; on others they are emulated, and it may spill
NATIVE = {"blackwell_kernel": ("sm_120f", "sm_121f")}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
ARCHITECTURES = re.compile(r"^NIBBLE_CUDA_ARCHS:\w+=(.*)$", re.MULTILINE)


def kernel_name(mangled: str) -> str:
    """The kernel's own name in a mangled one, the first of its identifiers (each after its length) that ends so, with
    the numbers of its template."""
    at = 0
    while number := re.compile(r"\d+").search(mangled, at):
        end = number.end() + int(number[0])
        if mangled[number.end():end].endswith("_kernel"):
            arguments = re.match(r"I((?:L[a-z]\d+E)+)E", mangled[end:])
            values = re.findall(r"\d+", arguments[1]) if arguments else []
            return mangled[number.end():end] + (f"<{','.join(values)}>" if values else "")
        at = end
    return mangled


def exception_of(kernel: str) -> str:
    """Name of an instance's entry in EXCEPTIONS: its own, that of its first arguments, or its kernel's, which may be
    missing."""
    name = kernel
    while name not in EXCEPTIONS and "," in name:
        name = name.rpartition(",")[0] + ">"
    return name if name in EXCEPTIONS else kernel.split("<")[0]


def architectures(build: Path) -> set[str]:
    """Architectures that the build was asked for, as ptxas names them."""
    found = ARCHITECTURES.search((build / "CMakeCache.txt").read_text())
    return {"sm_" + name.removesuffix("-real") for name in found[1].split(";")} if found else set()


def check_report(text: str, seen: set[tuple[str, str]]) -> list[str]:
    """Findings of one report; adds the (kernel, architecture) pairs it is about."""
    found, at = [], None
    for line in text.splitlines():
        entry, spills = ENTRY.search(line), SPILLS.search(line)
        if entry:
            at = (kernel_name(entry[1]), entry[2])
            seen.add((at[0].split("<")[0], at[1]))
        elif spills and at:
            spilled = int(spills[2]) + int(spills[3])
            if at[1] not in NATIVE.get(at[0].split("<")[0], (at[1],)):
                spilled = 0
            name = exception_of(at[0])
            limit, _ = EXCEPTIONS.get(name, (0, ""))
            if spilled > (limit if at[1] != "sm_90a" or "<" in name else 0):
                found.append(f"{at[0]} for {at[1]}: {spills[2]} bytes of spill stores, {spills[3]} of loads")
            at = None
    return found


def check(build: Path) -> list[str]:
    """Findings for a build folder."""
    if not (build / "CMakeCache.txt").exists():
        return [f"{build.name} is no build folder"]
    reports = sorted(build.glob("backends/cuda/**/*.ptxas"))
    seen: set[tuple[str, str]] = set()
    found = [finding for report in reports for finding in check_report(report.read_text(errors="replace"), seen)]
    wanted = architectures(build)
    if not wanted:
        found.append("the build names no architectures (NIBBLE_CUDA_ARCHS)")
    for kernel in HOT:
        for architecture in sorted(wanted):
            if (kernel, architecture) not in seen:
                found.append(f"no report about {kernel} for {architecture}")
    return found


NONE = "0 bytes spill stores, 0 bytes spill loads"


def tree(spills: str, names: tuple[str, ...] = HOT, archs: str = "80-real;90a-real") -> dict[str, str]:
    """A build folder of the self-test."""
    report = "".join(f"ptxas info    : Compiling entry function '_Z{len(name)}{name}6params' for 'sm_{arch}'\n"
                     f"    0 bytes stack frame, {spills if name == HOT[0] else NONE}\n"
                     for name in names for arch in ("80", "90a"))
    return {"CMakeCache.txt": f"NIBBLE_CUDA_ARCHS:STRING={archs}\n", "backends/cuda/x/a.cu.o.ptxas": report}


def templated(kernel: str, first: int, second: int, spilled: int, arch: str,
              more: str = "") -> dict[str, str]:
    """A build folder where one instance of a template spills."""
    name = f"{kernel}_kernel"
    arguments = f"ILi{first}ELi{second}E{more}E"
    report = (f"ptxas info    : Compiling entry function '_ZN3abc{len(name)}{name}{arguments}v6params' for "
              f"'sm_{arch}'\n    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n")
    return {**tree(NONE), "backends/cuda/x/b.cu.o.ptxas": report}


CASES = [
    Case(tree(NONE), None),
    Case(tree("8 bytes spill stores, 8 bytes spill loads"), f"{HOT[0]} for sm_90a: 8 bytes of spill stores"),
    Case(tree("0 bytes spill stores, 4 bytes spill loads"), f"{HOT[0]} for sm_80: 0 bytes of spill stores, 4 of loads"),
    Case(tree(NONE, HOT[:-1]), f"no report about {HOT[-1]} for sm_80"),
    Case(tree(NONE, HOT, "80-real;100f-real"), f"no report about {HOT[0]} for sm_100f"),
    Case({"CMakeCache.txt": ""}, "names no architectures"),
    Case(templated("decode", 256, 2, 16, "90a"), None),
    Case(templated("decode", 64, 2, 16, "80"), None),
    Case(templated("decode", 64, 2, 41, "80"), "decode_kernel<64,2> for sm_80: 41 bytes of spill stores"),
    Case(templated("decode", 64, 2, 16, "90a"), "decode_kernel<64,2> for sm_90a: 16 bytes of spill stores"),
    Case(templated("decode", 256, 2, 16, "90a", "Lj4ELj1E"), None),
    Case(templated("decode", 64, 2, 16, "90a", "Lj0ELj0E"), "decode_kernel<64,2,0,0> for sm_90a: 16 bytes of spill"),
    Case(templated("blackwell", 2, 1, 16, "90a"), None),
    Case(templated("blackwell", 2, 1, 16, "120f"), "blackwell_kernel<2,1> for sm_120f: 16 bytes of spill stores"),
    Case(templated("append", 1, 1, 16, "80"), "append_kernel<1,1> for sm_80: 16 bytes of spill stores"),
]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: spills.py BUILD")
    main("spills", check, CASES, Path(sys.argv[1]))
