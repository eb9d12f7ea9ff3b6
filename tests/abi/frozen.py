#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C file that fails to compile, against the headers of today, if anything of the frozen ones has moved:
offsets of fields and slots, least sizes, values of enumerators and constants. Appending passes.

Usage: frozen.py FROZEN_DIR OUT.c
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# These grow by intention: minors, masks of all flags, the draft number of the numerics.
GROWS = re.compile(r"_ABI_MINOR$|_ALL$|_MAX_ENUM$|^NBL_NUMERICS_VERSION$")
FIELD = re.compile(r"^NBL_ASSERT_FIELD\((\w+), (\w+), (\d+)\);$", re.MULTILINE)
LEAST = re.compile(r"^#define (NBL_V1_BYTES_\w+) (\d+u)$", re.MULTILINE)
ENUM = re.compile(r"\b(NBL_\w+) = (0x[0-9a-f]+|-?\d+)\b")
NUMBER = re.compile(r"^#define (NBL_\w+) (0x[0-9a-f]+u?|-?\d+u?)\b", re.MULTILINE)
STATUS = re.compile(r"^ +X\((\w+), (-?\d+),", re.MULTILINE)


def statements(folder: Path) -> list[str]:
    """One static assertion per frozen fact."""
    text = "\n".join(p.read_text() for p in sorted(folder.glob("*.h")))
    values = dict(ENUM.findall(text)) | dict(NUMBER.findall(text)) | {f"NBL_{n}": v for n, v in STATUS.findall(text)}
    found = [f'_Static_assert(offsetof({t}, {f}) == {o}, "{t}.{f} has moved");' for t, f, o in FIELD.findall(text)]
    found += [f'_Static_assert({n} == {v}, "{n} has changed");' for n, v in LEAST.findall(text)]
    found += [f'_Static_assert({n} == {v}, "{n} has changed");' for n, v in sorted(values.items())
              if not GROWS.search(n) and not n.startswith("NBL_V1_BYTES_")]
    return found


def main() -> None:
    """Command line entry."""
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip().splitlines()[-1])
    found = statements(Path(sys.argv[1]))
    if len(found) < 400:
        sys.exit(f"frozen: only {len(found)} facts found in {sys.argv[1]}")
    head = "#include <stddef.h>\n#include <nibble/nibble.h>\n#include <nibble/nibble_backend.h>\n"
    Path(sys.argv[2]).write_text(head + "#include <nibble/nibble_asserts.h>\n" + "\n".join(found) + "\n")


if __name__ == "__main__":
    main()
