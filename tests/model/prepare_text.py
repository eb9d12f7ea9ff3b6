#!/usr/bin/env python3
"""Cut the sample text out of alice29.txt (Canterbury corpus).

The excerpt is one run of whole paragraphs that starts at a chapter heading.
Line wrapping and indentation are removed; the words are untouched.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def paragraphs(text: str) -> list[str]:
    """Split at blank lines and unwrap each paragraph."""
    blocks = text.replace("\r", "").replace("\x1a", "").split("\n\n")
    return [p for p in (" ".join(b.split()) for b in blocks) if p]


def excerpt(text: str, chapter: str, size: int) -> str:
    """Whole paragraphs from a chapter heading on, at least size bytes."""
    blocks = paragraphs(text)
    start = blocks.index(chapter)
    out = ""
    for block in blocks[start:]:
        if len(out) >= size:
            break
        out += block + "\n\n"
    return out[:-1]


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("source", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--chapter", default="CHAPTER VI")
    p.add_argument("--size", type=int, default=12000)
    a = p.parse_args()
    text = a.source.read_text(encoding="ascii")
    a.out.write_text(excerpt(text, a.chapter, a.size), encoding="ascii")


if __name__ == "__main__":
    main()
