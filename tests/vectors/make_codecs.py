#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of the codecs with libraries that are not ours, and MANIFEST with their hashes.

Needs the versions pinned in requirements.txt. Every file is lines of two hexadecimal words, "input output"; lines that
start with # are comments. Run it only to add cases or after a change of docs/numerics.md; the output is committed.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import ml_dtypes
import mpmath
import numpy as np

HERE = Path(__file__).resolve().parent
FILES: list[str] = []
RANDOM_PER_CODEC = 1000


def write(name: str, comment: str, rows: list[tuple[int, int]], widths: tuple[int, int]) -> None:
    """Writes one vector file."""
    lines = [f"# {line}" for line in comment.split("\n")]
    lines += [f"{a:0{widths[0]}x} {b:0{widths[1]}x}" for a, b in rows]
    (HERE / name).write_text("\n".join(lines) + "\n")
    FILES.append(name)


def f32_bits(values: np.ndarray) -> list[int]:
    """Bits of an array of binary32."""
    return [int(x) for x in np.asarray(values, dtype=np.float32).view(np.uint32)]


def decode_rows(dtype: type, codes: list[int], width: type) -> list[tuple[int, int]]:
    """(code, binary32 bits) of codes of a small type."""
    values = np.array(codes, dtype=width).view(dtype).astype(np.float32)
    return list(zip(codes, f32_bits(values)))


def encode_rows(dtype: type, inputs: list[int], width: type) -> list[tuple[int, int]]:
    """(binary32 bits, code) of inputs that are no NaN."""
    values = np.array(inputs, dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        codes = values.astype(dtype).view(width)
    return [(a, int(b)) for a, b in zip(inputs, codes)]


def neighbours(values: list[float]) -> list[int]:
    """Bits of finite values of both signs, each with one binary32 step either way."""
    found = set()
    for bits in f32_bits(np.array(values, dtype=np.float32)):
        for near in (bits - 1, bits, bits + 1):
            if 0 <= near <= 0x7F7FFFFF:
                found |= {near, near | 0x80000000}
    return sorted(found)


def ties(values: list[float]) -> list[float]:
    """Consecutive finite values and the points half-way between them."""
    return values + [(a + b) / 2 for a, b in zip(values, values[1:])]


def random_bits(seed: int, low: float, high: float) -> list[int]:
    """Bits of values whose logarithm is uniform, both signs."""
    rng = random.Random(seed)
    values = [rng.choice((-1, 1)) * 2 ** rng.uniform(low, high) for _ in range(RANDOM_PER_CODEC)]
    return f32_bits(np.array(values, dtype=np.float32))


SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000,
           0xFF800000]


def make_e2m1() -> None:
    """All codes; all ties with neighbours; random values."""
    dtype = ml_dtypes.float4_e2m1fn
    decoded = decode_rows(dtype, list(range(16)), np.uint8)
    write("e2m1_decode.txt", "E2M1 code, binary32 bits (ml_dtypes.float4_e2m1fn).", decoded, (1, 8))
    values = ties([0, 0.5, 1, 1.5, 2, 3, 4, 6]) + [7, 7.25, 8, 12, 100]
    inputs = SPECIAL + neighbours(values) + random_bits(1, -6, 4)
    write("e2m1_encode.txt",
          "binary32 bits, E2M1 code (ml_dtypes.float4_e2m1fn: RNE, saturating).\n"
          "The library keeps negative zero (code 8); NUM 3.4 stores code 0 instead. NaN is left out: NUM 3.1 maps it\n"
          "to 0 before.",
          encode_rows(dtype, inputs, np.uint8), (8, 1))


def make_e8m0() -> None:
    """All codes. 255 is NaN, which no stored exponent is."""
    write("e8m0_decode.txt", "E8M0 code, binary32 bits (ml_dtypes.float8_e8m0fnu); ff is NaN.",
          decode_rows(ml_dtypes.float8_e8m0fnu, list(range(256)), np.uint8), (2, 8))


def make_e4m3() -> None:
    """All codes; ties around the largest values and in the subnormals."""
    dtype = ml_dtypes.float8_e4m3fn
    write("e4m3_decode.txt", "E4M3 (fn) code, binary32 bits (ml_dtypes.float8_e4m3fn); 7f and ff are NaN.",
          decode_rows(dtype, list(range(256)), np.uint8), (2, 8))
    small = [i * 2.0 ** -9 for i in range(18)]
    large = [240, 256, 288, 320, 352, 384, 416, 448]
    inputs = SPECIAL + neighbours(ties(small) + ties(large) + [464, 479, 480, 500, 1e30]) + random_bits(2, -11, 9)
    write("e4m3_encode.txt",
          "binary32 bits, E4M3 (fn) code (ml_dtypes.float8_e4m3fn: RNE). The library does not saturate: beyond 464,\n"
          "and for infinity, it gives NaN (7f or ff).",
          encode_rows(dtype, inputs, np.uint8), (8, 2))


def half_codes(mantissa_bits: int) -> list[int]:
    """Codes of a 16-bit type: both signs, exponents at the ends and in the middle, mantissas likewise."""
    top = (1 << mantissa_bits) - 1
    exponents = 1 << (15 - mantissa_bits)
    middle = exponents // 2
    chosen = sorted({0, 1, 2, 3, middle - 2, middle - 1, middle, exponents - 3, exponents - 2, exponents - 1})
    highs = chosen + [exponents + e for e in chosen]
    return [high << mantissa_bits | m for high in highs for m in (0, 1, top >> 1, (top >> 1) + 1, top)]


def make_half(name: str, dtype: type, mantissa_bits: int, infinity: int, seed: int, low: float, high: float) -> None:
    """Decode and encode files of a 16-bit type, without NaN."""
    codes = [c for c in half_codes(mantissa_bits) if c & 0x7FFF <= infinity]
    write(f"{name}_decode.txt", f"{name} code, binary32 bits ({dtype.__module__}.{dtype.__name__}).",
          decode_rows(dtype, codes, np.uint16), (4, 8))
    starts = [c for c in codes if c < infinity - 1]
    values = np.array([[c, c + 1] for c in starts], dtype=np.uint16).view(dtype).astype(np.float64)
    points = sorted({float(x) for pair in values for x in (pair[0], (pair[0] + pair[1]) / 2)})
    last = np.array([infinity - 1], dtype=np.uint16).view(dtype).astype(np.float64)[0]
    overflow = last * (1 + 2.0 ** -(mantissa_bits + 2))
    finite = [x for x in points + [last, overflow] if x < 2.0 ** 128]
    inputs = SPECIAL + neighbours(finite) + random_bits(seed, low, high)
    write(f"{name}_encode.txt", f"binary32 bits, {name} code ({dtype.__module__}.{dtype.__name__}: RNE).",
          encode_rows(dtype, inputs, np.uint16), (8, 4))


def make_exp2_table() -> None:
    """RNE to binary32 of 2^(f/256), from 200 bits."""
    mpmath.mp.prec = 200
    rows = []
    for f in range(256):
        scaled = mpmath.power(2, mpmath.mpf(f) / 256) * 2 ** 23
        mantissa = int(mpmath.nint(scaled))
        rows.append((f, 127 << 23 | mantissa - (1 << 23)))
    write("exp2_table.txt", "f, bits of RNE to binary32 of 2^(f/256) (mpmath, 200 bits); NUM 5.5.", rows, (2, 8))


def write_manifest() -> None:
    """sha256 of every file, in the form that sha256sum --check reads."""
    lines = [f"{hashlib.sha256((HERE / name).read_bytes()).hexdigest()}  {name}" for name in sorted(FILES)]
    (HERE / "MANIFEST").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    make_e2m1()
    make_e8m0()
    make_e4m3()
    make_half("bf16", ml_dtypes.bfloat16, 7, 0x7F80, 3, -135, 127)
    make_half("f16", np.float16, 10, 0x7C00, 4, -26, 16)
    make_exp2_table()
    write_manifest()
