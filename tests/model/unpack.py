#!/usr/bin/env python3
"""Restore a packed capture to a plain .safetensors file.

Standard library only. Both files are checked against the SHA-256 sums in the
manifest. pack.py describes the packed layout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import struct
from pathlib import Path


def field_widths(bits: int) -> list[int]:
    """Widths of the fields, 4, 2 or 1 bits, that make up a mantissa."""
    return [w for w in (4, 2, 1) if bits & w]


def merge_or(a: bytes, b: bytes) -> bytes:
    """Bitwise or of two byte strings of equal length."""
    whole = int.from_bytes(a, "little") | int.from_bytes(b, "little")
    return whole.to_bytes(len(a), "little")


def expand_field(plane: bytes, width: int, shift: int) -> bytes:
    """One byte per value from a packed plane, each value moved up by shift."""
    per, mask = 8 // width, (1 << width) - 1
    out = bytearray(len(plane) * per)
    for r in range(per):
        down = 8 - width * (r + 1)
        out[r::per] = plane.translate(bytes((b >> down & mask) << shift for b in range(256)))
    return bytes(out)


def table(values: list[int]) -> bytes:
    """Translation table that starts with values."""
    return bytes(values) + bytes(256 - len(values))


class Reader:
    """Takes consecutive pieces off a byte string."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """The next count bytes."""
        piece = self.data[self.at:self.at + count]
        if len(piece) != count:
            raise ValueError("packed file is too short")
        self.at += count
        return piece


def restore(shape: list[int], info: dict, symbols: bytes, planes: Reader) -> bytes:
    """Little-endian BF16 values of one tensor, in row-major order."""
    exponents, bits = info["exponents"], info["mantissa_bits"]
    high = symbols.translate(table([s << 7 | e >> 1 for e in exponents for s in (0, 1)]))
    low = symbols.translate(table([(e & 1) << 7 for e in exponents for _ in (0, 1)]))
    shift = 7
    for width in field_widths(bits):
        shift -= width
        field = expand_field(planes.take(len(symbols) * width // 8), width, shift)
        low = merge_or(low, field)
    rows, count = shape[0], values_in(shape)
    channels = count // rows
    out = bytearray(2 * count)
    for c in range(channels):
        out[2 * c::2 * channels] = low[c * rows:(c + 1) * rows]
        out[2 * c + 1::2 * channels] = high[c * rows:(c + 1) * rows]
    return bytes(out)


def values_in(shape: list[int]) -> int:
    """Number of values in a shape."""
    count = 1
    for n in shape:
        count *= n
    return count


def unpack(packed: bytes) -> bytes:
    """The safetensors file held in a packed one."""
    reader = Reader(lzma.decompress(packed, format=lzma.FORMAT_XZ))
    content = json.loads(reader.take(struct.unpack("<Q", reader.take(8))[0]))
    text = content["header"].encode()
    shapes = {name: entry["shape"] for name, entry in json.loads(text).items()
              if name != "__metadata__"}
    symbols = {name: reader.take((values_in(s) + 7) // 8 * 8) for name, s in shapes.items()}
    out = struct.pack("<Q", len(text)) + text
    return out + b"".join(restore(s, content["tensors"][name], symbols[name], reader)
                          for name, s in shapes.items())


def check(data: bytes, expected: str, what: str) -> None:
    """Stop when data does not have the expected SHA-256."""
    if hashlib.sha256(data).hexdigest() != expected:
        raise SystemExit(f"unpack: SHA-256 of the {what} file does not match the manifest")


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("source", type=Path, metavar="IN")
    p.add_argument("out", type=Path, metavar="OUT")
    p.add_argument("--manifest", type=Path, help="default: capture.json next to IN")
    args = p.parse_args()
    path = args.manifest or args.source.with_name("capture.json")
    record = json.loads(path.read_text())
    packed = args.source.read_bytes()
    check(packed, record["packed_sha256"], "packed")
    raw = unpack(packed)
    check(raw, record["unpacked_sha256"], "unpacked")
    args.out.write_bytes(raw)


if __name__ == "__main__":
    main()
