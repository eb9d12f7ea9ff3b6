#!/usr/bin/env python3
"""Capture attention inputs (Q, K, V) of a small language model on a real text.

The tensors are exactly what the attention of each layer consumes: after the
projection, the per-head norm of Q and K, and RoPE. See README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import models
import tensorfile
import transformer

TOOL_VERSION = "1"
MAX_LOSS = 4.0


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tokenize(model: transformer.Model, text: str, count: int) -> list[int]:
    """First count tokens of text, begin marker included; checks the round trip."""
    tokenizer = model.tokenizer()
    ids = tokenizer.encode(text)
    if tokenizer.decode(ids) != text:
        raise ValueError("tokenizer round trip failed")
    if len(ids) + 1 < count:
        raise ValueError(f"text has only {len(ids) + 1} tokens, {count} needed")
    return [*model.begin, *ids][:count]


def checked_loss(model: transformer.Model, hidden: transformer.Array, tokens: list[int]) -> float:
    """Next-token loss, refused when it is not that of a working model."""
    value = transformer.loss(model, hidden, tokens)
    print(f"loss {value:.4f} nats per token, perplexity {math.exp(value):.2f}")
    if not value < MAX_LOSS:
        raise ValueError("implausible loss: the forward pass is wrong")
    return value


def tensors_of(kept: dict[int, transformer.Capture], q_rows: int,
               bits: list[int]) -> dict[str, np.ndarray]:
    """Named BF16 tensors; Q keeps the last q_rows positions."""
    out = {}
    for n, c in sorted(kept.items()):
        for name, x, kept_bits in zip("qkv", (c.q[-q_rows:], c.k, c.v), bits):
            out[f"layers.{n}.{name}"] = tensorfile.round_bf16(x, kept_bits)
    return out


def rounding_text(bits: list[int]) -> str:
    """Plain statement of the rounding applied."""
    text = "fp32 to BF16 in one rounding, to nearest, ties to even"
    short = [f"{n} {b}" for n, b in zip("qkv", bits) if b < 7]
    if short:
        text += ("; explicit mantissa bits kept, of 7: " + ", ".join(short)
                 + " (the dropped low bits are zero)")
    return text


def metadata_of(args: argparse.Namespace, model: transformer.Model, path: Path,
                value: float) -> dict[str, str]:
    """Provenance strings for the file header."""
    packages = [*models.SOURCES[args.model].packages, *(f"{p} {version(p)}" for p in ("gguf", "numpy"))]
    meta = {
        "model": f"{model.name} ({path.name})",
        "model_sha256": sha256(path),
        "layers": ",".join(map(str, args.layers)),
        "sm_scale": repr(model.sm_scale),
        "tokens": str(args.tokens),
        "q_rows": str(args.q_rows),
        "q_first_position": str(args.tokens - args.q_rows),
        "mantissa_bits": ",".join(map(str, args.mantissa_bits)),
        "rounding": rounding_text(args.mantissa_bits),
        "loss_nats_per_token": f"{value:.4f}",
        "text": args.text.name,
        "text_origin": args.text_origin,
        "text_sha256": sha256(args.text),
        "tool": f"capture.py {TOOL_VERSION}",
        "command": shlex.join(["tests/model/capture.py"] + sys.argv[1:]),
        "packages": ", ".join(packages) + f", Python {platform.python_version()}",
    }
    for n in args.layers:
        meta[f"layers.{n}.window"] = str(model.window_of(n))
    return meta


def parse_args() -> argparse.Namespace:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--layers", default="5,11,17", help="comma-separated layer numbers")
    p.add_argument("--tokens", type=int, default=2048, help="positions, BOS included")
    p.add_argument("--q-rows", type=int, default=64, help="last positions kept of Q")
    p.add_argument("--mantissa-bits", default="7,7,7",
                   help="explicit mantissa bits kept for q,k,v; 7 is full BF16")
    p.add_argument("--text", type=Path, required=True)
    p.add_argument("--text-origin", default="unspecified", help="for the provenance")
    p.add_argument("--model", choices=models.SOURCES, default=models.DEFAULT)
    p.add_argument("--gguf", type=Path, help="model file; default: that of the pinned packages")
    p.add_argument("--cache", type=Path, default=Path("build/model"),
                   help="where the packages' model file is assembled")
    p.add_argument("--out", type=Path, required=True)
    args = p.parse_args()
    try:
        args.layers = sorted({int(n) for n in args.layers.split(",")})
        args.mantissa_bits = [int(n) for n in args.mantissa_bits.split(",")]
    except ValueError:
        p.error("--layers and --mantissa-bits take comma-separated numbers")
    if len(args.mantissa_bits) != 3 or not set(args.mantissa_bits) <= set(range(1, 8)):
        p.error("--mantissa-bits takes three numbers from 1 to 7")
    if not 1 <= args.q_rows <= args.tokens:
        p.error("--q-rows must be 1..tokens")
    return args


def main() -> None:
    """Run the capture."""
    args = parse_args()
    model, path = models.load(args.model, args.cache, args.gguf)
    if not set(args.layers) <= set(range(model.layers)):
        raise SystemExit(f"layers must be 0..{model.layers - 1}")
    tokens = tokenize(model, args.text.read_text(encoding="utf-8"), args.tokens)
    hidden, kept = transformer.forward(model, tokens, args.layers)
    value = checked_loss(model, hidden, tokens)
    tensorfile.write(args.out, tensors_of(kept, args.q_rows, args.mantissa_bits),
                     metadata_of(args, model, path, value))
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
