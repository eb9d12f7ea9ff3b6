#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ABIs of a build against the frozen headers, by abidiff and abi-compliance-checker.

Each alone is blind to something: abidiff gives the same exit status for a field appended as for one inserted, so its
report is read; abi-compliance-checker lets a changed signature in a table slot pass. Both see nothing in a library
without debug information, so that comes first. The self-test changes headers in ways that must pass or fail, and says
which tool noticed.

Usage: compare.py LIBDIR WORK
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "abi/frozen/v1.0"
BREAKS = re.compile(r"offset changed|deletion|entity changed from|parameter \d+ .*was (?:added|removed)"
                    r"|return type changed|type name changed|enumerator changes?:|[1-9]\d* Removed")
GET, ENTER = "nbl_get_api", "nbl_backend_entry_v1"
ENTRIES = {
    GET: """#include <nibble/nibble.h>
static nbl_api_v1 api;
__attribute__((visibility("default"))) nbl_status nbl_get_api(const nbl_api_request *request,
                                                              const nbl_api_v1 **out_api, nbl_error *err)
{ (void)request, (void)err, *out_api = &api; return NBL_OK; }
""",
    ENTER: """#include <nibble/nibble_backend.h>
static nbl_backend_v1 backend;
nbl_status nbl_backend_entry_v1(const nbl_host *host, nbl_backend_request *request, const nbl_backend_v1 **out_backend,
                                nbl_error *err)
{ (void)host, (void)request, (void)err, *out_backend = &backend; return NBL_OK; }
"""}
CLOSE = "    nbl_status (*close)(nbl_device *device, nbl_error *err);\n"
LAST = "    nbl_status (*cache_attend)(nbl_cache *cache, const nbl_cache_attend_args *args, nbl_error *err);\n"
EXTRA = "    nbl_status (*extra)(nbl_cache *cache);\n"

# (name, file, old text, new text, passes)
CHANGES = [
    ("nothing", "nibble.h", CLOSE, CLOSE, True),
    ("slot appended", "nibble.h", LAST, LAST + EXTRA, True),
    ("field appended", "nibble_types.h", "} nbl_device_options;", "    uint64_t extra;\n} nbl_device_options;", True),
    ("slot inserted", "nibble.h", CLOSE, EXTRA + CLOSE, False),
    ("slot removed", "nibble.h", CLOSE, "", False),
    ("signature changed", "nibble.h", CLOSE, CLOSE.replace("device,", "device, uint64_t extra,"), False),
    ("field inserted", "nibble_types.h", "    uint32_t ordinal;\n", "    uint64_t extra;\n    uint32_t ordinal;\n",
     False),
    ("field of another type", "nibble_types.h", "    uint32_t ordinal;\n", "    float ordinal;\n", False),
    ("backend slot changed", "nibble_backend.h", "void (*device_close)(nbl_device *device);",
     "void (*device_close)(nbl_device *device, int extra);", False),
]


def tool(*command: object) -> tuple[int, str]:
    """(exit status, output) of a command."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    return done.returncode, done.stdout


def compile_headers(headers: Path, work: Path, symbol: str, name: str) -> Path:
    """A library with one entry, which reaches every type of its ABI, from these headers."""
    source, library = work / "entry.c", work / f"{name}-{symbol}.so"
    source.write_text(ENTRIES[symbol])
    status, text = tool("gcc", "-std=c11", "-g", "-Og", "-shared", "-fPIC", f"-I{headers}", source, "-o", library)
    if status:
        sys.exit(f"compare: {name} does not compile:\n{text}")
    return library


def by_abidiff(old: Path, new: Path) -> list[str]:
    """What breaks, in abidiff's words. The SONAME is none of its business here."""
    _, text = tool("abidiff", "--no-added-syms", "--no-corpus-path", old, new)
    if "summary:" not in text and text.strip():
        return [text.strip()]
    return [line.strip() for line in text.splitlines() if BREAKS.search(line)]


def dump(library: Path, work: Path) -> Path:
    """What abi-dumper makes of a library."""
    out = work / f"{library.stem}.dump"
    status, text = tool("abi-dumper", library, "-o", out, "-lver", library.stem)
    if status:
        sys.exit(f"compare: abi-dumper on {library.name}: {text}")
    return out


def by_checker(old: Path, new: Path, work: Path) -> list[str]:
    """What breaks, in the words of abi-compliance-checker."""
    status, text = tool("abi-compliance-checker", "-l", "nibble", "-old", dump(old, work), "-new", dump(new, work),
                        "-report-path", work / f"{new.stem}.html")
    return [] if status == 0 else [line for line in text.splitlines() if "binary compat" in line] or [text.strip()]


def check(library: Path, symbol: str, work: Path) -> list[str]:
    """Findings for one built library, against the frozen headers."""
    if ".debug_info" not in tool("readelf", "-SW", library)[1]:
        return [f"{library.name} has no debug information: nothing would be compared"]
    baseline = compile_headers(FROZEN, work, symbol, "frozen")
    found = by_abidiff(baseline, library) + by_checker(baseline, library, work)
    return [f"{library.name}: {line}" for line in found]


def change_headers(headers: Path, file: str, old: str, new: str) -> bool:
    """Writes the frozen headers with one change; False if the text to change is not there."""
    (headers / "nibble").mkdir(parents=True, exist_ok=True)
    done = False
    for path in (FROZEN / "nibble").glob("*.h"):
        text = path.read_text()
        if path.name == file and old in text:
            text, done = text.replace(old, new, 1), True
        (headers / "nibble" / path.name).write_text(text)
    return done


def self_test(work: Path) -> list[str]:
    """Changes that must pass or fail; says which came out wrong, and prints who noticed what."""
    wrong = []
    for number, (name, file, old, new, passes) in enumerate(CHANGES):
        symbol = ENTER if file == "nibble_backend.h" else GET
        baseline = compile_headers(FROZEN, work, symbol, "frozen")
        if not change_headers(work / f"headers{number}", file, old, new):
            wrong.append(f"self-test: {name}: the text to change is gone from {file}")
        library = compile_headers(work / f"headers{number}", work, symbol, f"change{number}")
        first, second = by_abidiff(baseline, library), by_checker(baseline, library, work)
        print(f"  {name:24} abidiff {'breaks' if first else 'passes'}, checker {'breaks' if second else 'passes'}")
        if (not first and not second) != passes:
            wrong.append(f"self-test: {name}: {first or second or 'nobody noticed'}")
    return wrong


def main() -> None:
    """Command line entry."""
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip().splitlines()[-1])
    libraries, work = Path(sys.argv[1]), Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    found = self_test(work)
    found += check(libraries / "libnibble.so.1", GET, work)
    found += check(libraries / "nibble/libnibble-backend-sim.so.1", ENTER, work)
    print("\n".join(f"compare: {line}" for line in found)
          or f"compare: ok ({len(CHANGES)} self-test cases, 0 findings)")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
