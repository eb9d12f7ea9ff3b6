#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Binaries of version 1.0 (tests/abi/v1) and of today, in every mixture that must work.

Usage: stored.py RUNTIME SIM_DIR MOCK_DIR CLIENT, all of today.
"""

from __future__ import annotations

import lzma
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

V1 = Path(__file__).resolve().parent / "v1"
TYPES = Path(__file__).resolve().parents[2] / "abi/include/nibble/nibble_types.h"
MAGIC = struct.pack("<I", 0x314C424E)
NUMERICS, LAYOUT = 20, 24  # offsets in the payload of the note
MOCK = """load: NBL_OK
report_get: NBL_OK
%s, phase 5
open: NBL_OK
caps: NBL_OK
memory_alloc: NBL_OK
memory_copy: NBL_OK
memory_copy: NBL_OK
version
memory_free: NBL_OK
check: NBL_OK
"""
END = "close: NBL_OK\nruntime_destroy: NBL_OK\n"
failures: list[str] = []


def today(name: str) -> int:
    """A version number of the current headers."""
    return int(re.search(rf"#define {name} (\d+)u", TYPES.read_text())[1])


def with_note(plugin: bytes, numerics: int, layout: int) -> bytes:
    """A plugin whose note has these numbers."""
    at = plugin.index(MAGIC)
    changed = bytearray(plugin)
    struct.pack_into("<II", changed, at + NUMERICS, numerics, layout)
    return bytes(changed)


def note_of(plugin: bytes) -> tuple[int, int]:
    """(numerics, layout) of a plugin's note."""
    return struct.unpack_from("<II", plugin, plugin.index(MAGIC) + NUMERICS)


def place(folder: Path, name: str, data: bytes) -> Path:
    """Writes a file that can be run or opened."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o755)
    return path


def run(client: Path, runtime: Path, directory: Path, backend: str) -> tuple[int, str]:
    """(exit status, output) of a client."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NIBBLE_")}
    done = subprocess.run([client, runtime, directory, backend], capture_output=True, text=True, env=clean, check=False)
    return done.returncode, done.stdout


def expect(what: str, found: tuple[int, str], status: int, text: str) -> None:
    """Notes a failure unless a client came to this end."""
    if found != (status, text):
        failures.append(f"{what}: exit status {found[0]}, not {status}:\n{found[1]}expected:\n{text}")


def check(runtime: Path, sim: Path, mock: Path, client: Path, work: Path) -> None:
    """All mixtures."""
    old_client = place(work, "client", (V1 / "client.bin").read_bytes())
    old_runtime = place(work, "libnibble.so.1", lzma.decompress((V1 / "runtime.xz").read_bytes()))
    stored = (V1 / "plugin.bin").read_bytes()
    name = "libnibble-backend-v1.so.1"
    place(work / "stored", name, stored)
    place(work / "of today", name, with_note(stored, today("NBL_NUMERICS_VERSION"), today("NBL_LAYOUT_VERSION")))
    other = place(work / "of another day", name, with_note(stored, 77, today("NBL_LAYOUT_VERSION")))
    good = "nbl_get_api: NBL_OK\n"
    plain = good + MOCK % "v1" + END
    sim_text = run(client, runtime, sim, "sim")
    if sim_text[0] != 0 or "tokens, o = 0x" not in sim_text[1] and "tokens, o = -0x" not in sim_text[1]:
        failures.append(f"today's client with today's runtime: {sim_text}")
    expect("old client, new runtime, sim", run(old_client, runtime, sim, "sim"), 0, sim_text[1])
    expect("old client and backend, new runtime", run(old_client, runtime, work / "of today", "v1"), 0, plain)
    expect("old backend, new runtime and client", run(client, runtime, work / "of today", "v1"), 0, plain)
    expect("old runtime and backend, new client", run(client, old_runtime, work / "stored", "v1"), 0, plain)
    expect("all old", run(old_client, old_runtime, work / "stored", "v1"), 0, plain)
    expect("old backend of other numerics", run(old_client, runtime, work / "of another day", "v1"), 1,
           f"{good}load: NBL_E_ABI\nnibble: {other} implements numerics 77, runtime needs "
           f"{today('NBL_NUMERICS_VERSION')} (results would differ)\n")
    new = mock / "libnibble-backend-mock.so.1"
    place(work / "of that day", new.name, with_note(new.read_bytes(), *note_of(stored)))
    status, text = run(old_client, old_runtime, work / "of that day", "mock")
    if today("NBL_NUMERICS_VERSION") == note_of(stored)[0]:
        expect("new backend, old runtime", (status, text), 0, good + MOCK % "mock" + END)
    elif "implements numerics" not in text:
        failures.append(f"new backend of other numerics, old runtime: exit status {status}:\n{text}")


def main() -> None:
    """Command line entry."""
    if len(sys.argv) != 5:
        sys.exit(__doc__.strip().splitlines()[-1])
    if os.uname().machine != "x86_64":
        print("the stored binaries are for x86-64")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        check(*map(Path, sys.argv[1:]), Path(folder))
    print("\n".join(failures) or "stored binaries of version 1.0: all mixtures work")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
