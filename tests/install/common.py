# SPDX-License-Identifier: Apache-2.0
"""Running commands for the installation tests, and the user's project built against an installed tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "docs" / "examples" / "embed.c"
ANSWER = "o = 0.7111 (0x1.6c112p-1)\n"


def run(*command: object, status: int = 0, **variables: str) -> str:
    """Output of a command that must end with this status; NIBBLE_ and loader variables of the caller do not count."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NIBBLE_", "LD_LIBRARY_PATH", "PKG_CONFIG"))}
    done = subprocess.run([str(c) for c in command], env={**clean, **variables}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}, not {status}\n{done.stdout[-3000:]}")
    return done.stdout


def expect(what: str, found: str, wanted: str) -> None:
    """Ends the test unless two texts are equal."""
    if found != wanted:
        sys.exit(f"{what}:\n{found!r}\nexpected:\n{wanted!r}")


def only(folder: Path, pattern: str) -> Path:
    """The one file of a tree that matches."""
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        sys.exit(f"{len(found)} files {pattern} under {folder}")
    return found[0]


def check_consumers(prefix: Path, work: Path) -> None:
    """Builds the user's two programs by pkg-config and by CMake, and runs them."""
    library = only(prefix, "libnibble.so.1").parent
    flags = {"PKG_CONFIG_PATH": str(library / "pkgconfig")}
    expect("backenddir", run("pkg-config", "--variable=backenddir", "nibble", **flags).strip(),
           f"{library}/pkgconfig/../../{library.name}/nibble")
    cflags = run("pkg-config", "--cflags", "nibble", **flags).split()
    libs = run("pkg-config", "--libs", "nibble", **flags).split()
    if any("omp" in f or "cuda" in f for f in libs):
        sys.exit(f"pkg-config --libs gives {libs}")
    work.mkdir(parents=True)
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run("cc", *warnings, *cflags, EXAMPLE, "-o", work / "opened", "-ldl")
    run("cc", *warnings, *cflags, HERE / "consumer/linked.c", "-o", work / "linked", *libs)
    run("cmake", "-S", HERE / "consumer", "-B", work / "cmake", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DEXAMPLE={EXAMPLE}")
    run("cmake", "--build", work / "cmake")
    for folder in (work, work / "cmake"):
        where = {"LD_LIBRARY_PATH": str(library)}
        expect("opened by name", run(folder / "opened", **where), ANSWER)
        expect("opened by path", run(folder / "opened", library / "libnibble.so.1"), ANSWER)
        expect("linked", run(folder / "linked", **where), f"{library}/nibble/libnibble-backend-sim.so.1\n")
