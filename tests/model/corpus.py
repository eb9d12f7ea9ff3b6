# SPDX-License-Identifier: Apache-2.0
"""Long texts for evaluations, from the brotli source distribution on PyPI: its test data, which are works in the public
domain, and, for models of code, one of its source files."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "brotli==1.2.0"
TEXTS = {
    "prose": "/testdata/alice29.txt",  # Alice's Adventures in Wonderland
    "technical": "/testdata/lcet10.txt",  # proceedings of a workshop on electronic texts
    "verse": "/testdata/plrabn12.txt",  # Paradise Lost
    "play": "/testdata/asyoulik.txt",  # As You Like It
    "code": "/c/dec/decode.c",  # brotli's decoder
}


def fetch(folder: Path) -> Path:
    """The source archive, downloaded once."""
    found = sorted(folder.glob("[Bb]rotli-*.tar.gz"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps",
                        "--dest", str(folder), PACKAGE], check=True)
        found = sorted(folder.glob("[Bb]rotli-*.tar.gz"))
    return found[0]


def unwrap(text: str) -> str:
    """Paragraphs as one line each, as models see prose."""
    blocks = text.replace("\r", "").replace("\x1a", "").split("\n\n")
    joined = (" ".join(line.strip() for line in block.splitlines()) for block in blocks)
    return "\n\n".join(block for block in joined if block)


def read(folder: Path, name: str) -> str:
    """One of TEXTS; prose is unwrapped, the others keep their lines."""
    file = TEXTS[name]
    with tarfile.open(fetch(folder)) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith(file))
        text = archive.extractfile(member).read().decode("latin-1")
    return unwrap(text) if name in ("prose", "technical") else text.replace("\r", "")
