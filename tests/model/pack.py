#!/usr/bin/env python3
"""Pack a captured .safetensors file for the repository and write its manifest.

The packed file is an xz stream; its content is a container of bit planes:

    u64 little-endian   length of the JSON that follows
    JSON                {"header": the safetensors header, verbatim,
                         "tensors": {name: {"mantissa_bits", "exponents"}}}
    symbol planes       per tensor, in header order
    mantissa planes     per tensor, in header order

A tensor [T, ...] is taken as [T, C] and stored channel-major, padded with
zeros to a multiple of eight values. The symbol of a value is one byte, twice
the index of its exponent field in "exponents", plus its sign bit. The kept
mantissa bits are cut, from the top, into fields of 4, 2 and 1 bits; each field
makes one plane of 2, 4 or 8 values per byte, first value in the highest bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tensorfile
from unpack import field_widths

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME,
            "lc": 0, "lp": 0, "pb": 0}]
LICENSE_NOTES = {
    "text.txt": "public domain",
    "capture": "activations computed by running the model on text.txt; they hold "
               "no model weights",
    "model": "Gemma is provided under and subject to the Gemma Terms of Use found "
             "at ai.google.dev/gemma/terms; the model itself is not distributed here",
}


def pack_field(values: NDArray[np.uint16], width: int) -> bytes:
    """Pack values of width bits, 8 / width of them per byte."""
    per = 8 // width
    out = np.zeros(values.size // per, dtype=np.uint16)
    for r in range(per):
        out |= values[r::per] << np.uint16(8 - width * (r + 1))
    return out.astype(np.uint8).tobytes()


def split_tensor(t: NDArray[np.uint16]) -> tuple[dict[str, object], bytes, bytes]:
    """Description, symbol plane and mantissa planes of one BF16 tensor."""
    x = t.reshape(t.shape[0], -1).T.reshape(-1)
    x = np.concatenate([x, np.zeros(-x.size % 8, dtype=x.dtype)]).astype(np.uint16)
    exponent, sign, mantissa = x >> 7 & 255, x >> 15, x & 127
    palette, index = np.unique(exponent, return_inverse=True)
    if palette.size > 128:
        raise ValueError("too many distinct exponents")
    bits = 7 - next((n for n in range(7) if (mantissa >> n & 1).any()), 7)
    kept = mantissa >> np.uint16(7 - bits)
    planes, left = b"", bits
    for width in field_widths(bits):
        left -= width
        planes += pack_field(kept >> np.uint16(left) & np.uint16((1 << width) - 1), width)
    info = {"mantissa_bits": bits, "exponents": palette.tolist()}
    return info, (index * 2 + sign).astype(np.uint8).tobytes(), planes


def pack(raw: bytes, tensors: dict[str, NDArray[np.uint16]]) -> bytes:
    """Container of bit planes for a safetensors file, compressed."""
    length = struct.unpack_from("<Q", raw)[0]
    infos, symbols, mantissas = {}, [], []
    for name, t in tensors.items():
        infos[name], s, m = split_tensor(t)
        symbols.append(s)
        mantissas.append(m)
    text = json.dumps({"header": raw[8:8 + length].decode(), "tensors": infos}).encode()
    body = struct.pack("<Q", len(text)) + text + b"".join(symbols + mantissas)
    return lzma.compress(body, format=lzma.FORMAT_XZ, filters=FILTERS)


def manifest(name: str, packed: bytes, raw: bytes, meta: dict[str, str],
             text: Path) -> dict[str, object]:
    """Provenance record of the packed capture."""
    digest = hashlib.sha256(text.read_bytes()).hexdigest()
    if digest != meta["text_sha256"]:
        raise ValueError(f"{text} is not the text of the capture")
    return {
        "file": name,
        "packed_bytes": len(packed),
        "packed_sha256": hashlib.sha256(packed).hexdigest(),
        "unpacked_bytes": len(raw),
        "unpacked_sha256": hashlib.sha256(raw).hexdigest(),
        "command": meta["command"],
        "model": meta["model"],
        "model_sha256": meta["model_sha256"],
        "packages": meta["packages"],
        "text": text.name,
        "text_sha256": digest,
        "text_origin": meta["text_origin"],
        "tokens": int(meta["tokens"]),
        "q_rows": int(meta["q_rows"]),
        "layers": [int(n) for n in meta["layers"].split(",")],
        "loss_nats_per_token": float(meta["loss_nats_per_token"]),
        "mantissa_bits_kept": dict(zip("qkv", map(int, meta["mantissa_bits"].split(",")))),
        "rounding": meta["rounding"],
        "license_notes": LICENSE_NOTES,
    }


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("source", type=Path, help="file made by capture.py")
    p.add_argument("out", type=Path, help="packed file; capture.json goes next to it")
    p.add_argument("--text", type=Path, required=True, help="the text captured on")
    args = p.parse_args()
    raw = args.source.read_bytes()
    tensors, meta = tensorfile.read(args.source)
    packed = pack(raw, tensors)
    record = manifest(args.out.name, packed, raw, meta, args.text)
    args.out.write_bytes(packed)
    args.out.with_name("capture.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{args.out}: {len(packed)} bytes")


if __name__ == "__main__":
    main()
