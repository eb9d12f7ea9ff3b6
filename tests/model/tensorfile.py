"""BF16 rounding and the safetensors container, without further packages."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def round_bf16(x: NDArray[np.float32], mantissa_bits: int = 7) -> NDArray[np.uint16]:
    """Round fp32 to BF16 bit patterns that keep mantissa_bits explicit bits.

    One rounding, to nearest with ties to even; the dropped bits are zero, so
    the result is a valid BF16 tensor for any mantissa_bits from 1 to 7.
    """
    if not 1 <= mantissa_bits <= 7:
        raise ValueError("mantissa_bits must be 1..7")
    if not np.isfinite(x).all():
        raise ValueError("non-finite value in a captured tensor")
    shift = np.uint32(23 - mantissa_bits)
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    half = (np.uint32(1) << (shift - np.uint32(1))) - np.uint32(1)
    bits = bits + half + ((bits >> shift) & np.uint32(1))
    return ((bits >> shift << shift) >> np.uint32(16)).astype("<u2")


def bf16_to_fp32(x: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen BF16 bit patterns to fp32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def write(path: Path, tensors: dict[str, NDArray[np.uint16]],
          metadata: dict[str, str]) -> None:
    """Write BF16 tensors and string metadata as a safetensors file."""
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, t in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(t.shape),
                        "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(np.ascontiguousarray(t, dtype="<u2").tobytes())


def read(path: Path) -> tuple[dict[str, NDArray[np.uint16]], dict[str, str]]:
    """Read a file made by write()."""
    raw = path.read_bytes()
    n = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:8 + n])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        a, b = entry["data_offsets"]
        tensors[name] = np.frombuffer(raw, "<u2", (b - a) // 2, 8 + n + a) \
                          .reshape(entry["shape"])
    return tensors, metadata
