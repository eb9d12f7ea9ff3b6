#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C engine gives the same tokens on every instruction set, thread count and backend (NIBBLE_BACKEND), whatever the
recipe.

Usage: engine.py ENGINE LIBRARY [MODEL.gguf PROMPT [REFERENCE_IDS...]]

Without a model it makes a small one, with weights from a fixed generator, in the types of the real file. With one (see
tests/model/README.md) it runs that, and compares the first tokens of recipe kv8 with those given.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

VOCABULARY, DIM, HEADS, HEAD_DIM, HIDDEN, LAYERS, WINDOW = 300, 256, 4, 64, 512, 7, 24
F32, Q5_0, Q8_0, Q4_K, Q6_K = 0, 6, 8, 12, 14
BLOCKS = {F32: (1, 4), Q5_0: (32, 22), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}
RECIPES = ("kv8", "k4v8", "kv4", "mxkv4", "qk4v8")


def text(value: str) -> bytes:
    """A string of the file format."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def metadata() -> list[bytes]:
    """Keys and values of the small model."""
    def number(key: str, value: int) -> bytes:
        return text(key) + struct.pack("<II", 4, value)

    def real(key: str, value: float) -> bytes:
        return text(key) + struct.pack("<If", 6, value)

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += [chr(ord("a") + i) for i in range(26)] + ["\u2581", "th", "the", "\u2581t", "\u2581the", "ca", "cat"]
    pieces += [f"<unused{i}>" for i in range(VOCABULARY - len(pieces))]
    kinds = [3, 3, 3, 2] + [6] * 256 + [1] * (VOCABULARY - 260)
    scores = [-float(i) for i in range(VOCABULARY)]

    def items(key: str, kind: int, body: bytes) -> bytes:
        return text(key) + struct.pack("<IIQ", 9, kind, VOCABULARY) + body

    return [text("general.architecture") + struct.pack("<I", 8) + text("gemma3"),
            number("gemma3.block_count", LAYERS), number("gemma3.embedding_length", DIM),
            number("gemma3.attention.head_count", HEADS), number("gemma3.attention.head_count_kv", 1),
            number("gemma3.attention.key_length", HEAD_DIM), number("gemma3.feed_forward_length", HIDDEN),
            number("gemma3.attention.sliding_window", WINDOW), real("gemma3.rope.freq_base", 1e6),
            real("gemma3.attention.layer_norm_rms_epsilon", 1e-6),
            items("tokenizer.ggml.tokens", 8, b"".join(map(text, pieces))),
            items("tokenizer.ggml.scores", 6, struct.pack(f"<{VOCABULARY}f", *scores)),
            items("tokenizer.ggml.token_type", 5, struct.pack(f"<{VOCABULARY}i", *kinds)),
            number("tokenizer.ggml.bos_token_id", 2), number("tokenizer.ggml.eos_token_id", 1)]


def tensors() -> list[tuple[str, int, int, int, float]]:
    """(name, columns, rows, type, size of the numbers) of the small model."""
    found = [("token_embd", DIM, VOCABULARY, Q8_0, 0.05), ("output_norm", DIM, 1, F32, 1.0)]
    for n in range(LAYERS):
        found += [(f"blk.{n}.{name}", columns, rows, kind, size) for name, columns, rows, kind, size in [
            ("attn_q", DIM, HEADS * HEAD_DIM, Q5_0, 0.1), ("attn_k", DIM, HEAD_DIM, Q5_0, 0.1),
            ("attn_v", DIM, HEAD_DIM, Q8_0, 0.1), ("attn_output", HEADS * HEAD_DIM, DIM, Q4_K, 0.1),
            ("ffn_gate", DIM, HIDDEN, Q5_0, 0.1), ("ffn_up", DIM, HIDDEN, Q5_0, 0.1),
            ("ffn_down", HIDDEN, DIM, Q6_K, 0.1), ("attn_norm", DIM, 1, F32, 1.0),
            ("attn_q_norm", HEAD_DIM, 1, F32, 3.0), ("attn_k_norm", HEAD_DIM, 1, F32, 1.0),
            ("post_attention_norm", DIM, 1, F32, 1.0),
            ("ffn_norm", DIM, 1, F32, 1.0), ("post_ffw_norm", DIM, 1, F32, 3.0)]]
    return found


def block(kind: int, size: float, numbers: random.Random) -> bytes:
    """One block with random codes; its scales give numbers of about this size."""
    if kind == F32:
        return struct.pack("<f", size * numbers.uniform(0.5, 1.5))
    codes = numbers.randbytes(BLOCKS[kind][1])
    if kind == Q8_0:
        return struct.pack("<e", size / 128) + codes[2:]
    if kind == Q5_0:
        return struct.pack("<e", size / 16) + codes[2:]
    if kind == Q4_K:
        return struct.pack("<ee", size / 256, size / 64) + codes[4:]
    return codes[:208] + struct.pack("<e", size / 2048)


def write_model(path: Path) -> None:
    """A small model file."""
    numbers, keys, described, body = random.Random(7), metadata(), b"", b""
    for name, columns, rows, kind, size in tensors():
        described += text(name + ".weight") + struct.pack("<IQQIQ", 2, columns, rows, kind, len(body))
        body += b"".join(block(kind, size, numbers) for _ in range(columns * rows // BLOCKS[kind][0]))
        body += bytes(-len(body) % 32)
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors()), len(keys)) + b"".join(keys) + described
    path.write_bytes(head + bytes(-len(head) % 32) + body)


def generate(engine: str, library: str, model: Path, prompt: str, tokens: int, recipe: str,
             **variables: str) -> list[str]:
    """Token ids that the engine gives."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NIBBLE_")}
    done = subprocess.run([engine, "-l", library, "-r", recipe, "-n", str(tokens), "-i", str(model), prompt],
                          env={**clean, "OMP_WAIT_POLICY": "passive", **variables},
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"engine: {recipe} {variables}: exit status {done.returncode}: {done.stderr}")
    return done.stdout.split()


def compare(engine: str, library: str, model: Path, prompt: str, tokens: int, recipes: tuple[str, ...]) -> list[str]:
    """Ids of the first recipe; ends the test where an instruction set or thread count changes them."""
    first: list[str] = []
    backend = os.environ.get("NIBBLE_BACKEND", "sim")
    for recipe in recipes:
        wanted = generate(engine, library, model, prompt, tokens, recipe, NIBBLE_BACKEND="sim", NIBBLE_SIM_ISA="scalar")
        found = generate(engine, library, model, prompt, tokens, recipe, NIBBLE_BACKEND=backend, NIBBLE_SIM_THREADS="3")
        if not wanted or found != wanted:
            sys.exit(f"engine: {recipe}: scalar gives {wanted}, {backend} {found}")
        if len(set(wanted)) < 3:
            sys.exit(f"engine: {recipe}: {wanted} could be anything")
        print(f"engine: {recipe}: {' '.join(wanted)}")
        first = first or wanted
    return first


def refuse(engine: str, library: str, model: Path, work: Path) -> None:
    """What the engine says when it cannot."""
    cases = [([work / "none", "x"], f"engine: cannot read {work}/none\n"),
             ([__file__, "x"], f"engine: {__file__} is no whole GGUF file of version 3\n"),
             (["-r", "kv3", model, "x"], 'nibble: recipe "kv3" is unknown (known: qk4v8, mxkv4, kv4, k4v8, kv8, bf16, '
                                         'fp16, fp8, nvfp4, nvfp4_4over6, mpfa, default; or K/V of int8, mxfp4, '
                                         'mxfp4_16, int4p, bf16, fp16, fp8_e4m3, nvfp4)\n')]
    for cut in (30, 2000, 9000):
        (work / "cut").write_bytes(model.read_bytes()[:cut])
        cases.append(([work / "cut", "x"], f"engine: {work}/cut is no whole GGUF file of version 3\n"))
    for words, wanted in cases:
        done = subprocess.run([engine, "-l", library, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode != 1 or done.stderr.split("\n")[0] + "\n" != wanted:
            sys.exit(f"engine {words}: exit status {done.returncode}: {done.stderr!r}, not {wanted!r}")


def main(engine: str, library: str, *real: str) -> None:
    """Command line entry."""
    if real:
        found = compare(engine, library, Path(real[0]), real[1], max(8, len(real) - 2), ("kv8", "kv4"))
        if found[:len(real) - 2] != list(real[2:]):
            sys.exit(f"engine: kv8 gives {found}, the reference {real[2:]}")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "small.gguf"
        write_model(model)
        compare(engine, library, model, "the cat\n\u00e9" + " the cat" * 20, 12, RECIPES)
        refuse(engine, library, model, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
