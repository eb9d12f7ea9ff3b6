#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python module of docs/examples/python. Without NumPy and PyTorch the parts that need them are left out, and said.

Usage: python_client.py LIBRARY BACKEND
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib.util
import os
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("nibble") is None:
    sys.path.insert(0, str(ROOT / "docs/examples/python"))

import nibble  # noqa: E402  (after the path is known)
from nibble import abi, dlpack  # noqa: E402

os.environ.pop("NIBBLE_BACKEND", None)  # it would go before BACKEND
LIBRARY, BACKEND = (sys.argv + ["", ""])[1:3]
HAS = {name: importlib.util.find_spec(name) is not None for name in ("numpy", "torch")}
DIM, TOKENS, ROWS, KV_HEADS, Q_HEADS = 64, 70, 3, 2, 4


def numbers(count: int, seed: int) -> list[float]:
    """Numbers in [-1, 1) without a pattern, exact in f32."""
    found = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % (1 << 32)
        found.append((seed >> 8) / 8388608.0 - 1.0)
    return found


class WithDevice(unittest.TestCase):
    """A device and a cache for each test."""

    def setUp(self) -> None:
        self.device = nibble.Device(BACKEND, library=LIBRARY)
        self.cache = nibble.Cache(self.device, "kv8", layers=2, kv_heads=KV_HEADS, head_dim=DIM, sequences=8,
                                  tokens=4096)

    def tearDown(self) -> None:
        gc.collect()
        self.cache.close()
        self.device.close()

    def tensor(self, heads: int, tokens: int, seed: int) -> nibble.Tensor:
        """A filled tensor of nibble's own."""
        made = nibble.Tensor(self.device, (tokens, heads, DIM))
        made.copy_from(array.array("f", numbers(tokens * heads * DIM, seed)).tobytes())
        return made


class Layout(unittest.TestCase):
    """ctypes against abi/include/nibble/nibble_asserts.h."""

    def test_structs(self) -> None:
        text = (ROOT / "abi/include/nibble/nibble_asserts.h").read_text()
        fields = re.findall(r"NBL_ASSERT_FIELD\((\w+), (\w+), (\d+)\);", text)
        sizes = dict(re.findall(r"#define NBL_V1_BYTES_(\w+) (\d+)u", text))
        grown = {name: int(size) for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)u", text)}
        checked = 0
        for name in (n for n in dir(abi) if n.startswith("nbl_")):
            struct = getattr(abi, name)
            self.assertIn(ctypes.sizeof(struct), (int(sizes[name]), grown.get(name)), name)
            for owner, field, offset in fields:
                known = owner == name and hasattr(struct, field)
                if known:
                    self.assertEqual(getattr(struct, field).offset, int(offset), f"{name}.{field}")
                    checked += 1
        self.assertGreater(checked, 150)


class Plain(WithDevice):
    """What needs no other package."""

    def test_attention_and_its_bits(self) -> None:
        k, v, q = self.tensor(KV_HEADS, TOKENS, 1), self.tensor(KV_HEADS, TOKENS, 2), self.tensor(Q_HEADS, ROWS, 3)
        first, second = self.cache.sequence(), self.cache.sequence()
        first.append(k, v)
        whole = first.attend(q)
        self.assertIsInstance(whole, nibble.Tensor)
        self.assertEqual(first.length(), TOKENS)
        second.append(k, v)
        out = nibble.Tensor(self.device, (ROWS, Q_HEADS, DIM))
        self.assertIs(second.attend(q, out=out), out)
        self.assertEqual(whole.tobytes(), out.tobytes())
        self.assertTrue(any(whole.tobytes()))
        narrow = first.attend(q, window=8)
        self.assertNotEqual(narrow.tobytes(), whole.tobytes())
        first.truncate(10)
        self.assertEqual(first.length(), 10)
        first.free()
        second.free()

    def test_policies_forks_and_statistics(self) -> None:
        k, v, q = self.tensor(KV_HEADS, TOKENS, 1), self.tensor(KV_HEADS, TOKENS, 2), self.tensor(Q_HEADS, ROWS, 3)
        answers = {}
        for policy in ("kv4,recent=64", "kv4,recent=64,layers=last1:kv8", "kv8"):
            with nibble.Cache(self.device, policy, layers=1, kv_heads=KV_HEADS, head_dim=DIM, sequences=2,
                              tokens=2 * TOKENS) as cache:
                sequence = cache.sequence()
                sequence.append(k, v)
                child = sequence.fork(TOKENS)
                answers[policy] = child.attend(q).tobytes()
                self.assertEqual(answers[policy], sequence.attend(q).tobytes())
                self.assertEqual(cache.stats().sequences, 2)
                self.assertEqual(cache.stats().tokens, 2 * TOKENS)
        self.assertEqual(answers["kv4,recent=64,layers=last1:kv8"], answers["kv8"])

    def test_a_workspace_that_is_too_small(self) -> None:
        k, q = self.tensor(1, 1100, 1), self.tensor(8, 1000, 2)
        for mib, works in ((1, False), (64, True)):
            with nibble.Cache(self.device, "kv8", layers=1, kv_heads=1, head_dim=DIM, sequences=1, tokens=1100,
                              workspace_mib=mib) as cache:
                sequence = cache.sequence()
                sequence.append(k, k)
                if works:
                    self.assertEqual(tuple(sequence.attend(q).shape), (1000, 8, DIM))
                else:
                    with self.assertRaisesRegex(nibble.Error, r"1000 query rows in a call needs .* is 1; raise it"):
                        sequence.attend(q)

    def test_the_query_form_is_the_recipes(self) -> None:
        k, v, q = self.tensor(KV_HEADS, TOKENS, 1), self.tensor(KV_HEADS, TOKENS, 2), self.tensor(Q_HEADS, ROWS, 3)
        answers = []
        for recipe in ("qk4v8", "mxfp4/int8"):  # they differ in the query alone
            with nibble.Cache(self.device, recipe, layers=1, kv_heads=KV_HEADS, head_dim=DIM, sequences=1,
                              tokens=TOKENS) as cache:
                sequence = cache.sequence()
                sequence.append(k, v)
                answers.append(sequence.attend(q).tobytes())
        self.assertNotEqual(*answers)

    def test_errors_are_nibbles_own_line(self) -> None:
        with self.assertRaisesRegex(nibble.Error, r'^nibble: unknown backend "nosuch"'):
            nibble.Device("nosuch", library=LIBRARY)
        with self.assertRaisesRegex(nibble.Error, r'^nibble: recipe "kv3" is unknown'):
            nibble.Cache(self.device, "kv3", layers=1, kv_heads=1, head_dim=DIM, sequences=1, tokens=64)
        with self.assertRaisesRegex(nibble.Error, r"^nibble: device still has open caches \(1\)"):
            self.device.close()
        sequence = self.cache.sequence()
        with self.assertRaises(nibble.Error) as caught:
            sequence.append(self.tensor(KV_HEADS + 1, 4, 1), self.tensor(KV_HEADS + 1, 4, 1))
        self.assertEqual(caught.exception.status, -1)
        with self.assertRaisesRegex(OSError, "nowhere"):
            nibble.Device("sim", library="/nowhere/libnibble.so.1")

    def test_capsules(self) -> None:
        tensor = self.tensor(1, 2, 5)
        lent = len(dlpack._lent)
        capsule = tensor.__dlpack__(max_version=(1, 0))
        self.assertEqual(len(dlpack._lent), lent + 1)
        del capsule
        self.assertEqual(len(dlpack._lent), lent, "a capsule that nobody took is not given back")
        with self.assertRaises(BufferError):
            tensor.__dlpack__()
        stream = self.device.stream()
        borrowed = self.device.borrow(tensor, stream)
        self.assertEqual(list(borrowed.view.shape)[:3], [2, 1, DIM])
        self.device.synchronize()
        borrowed.release()
        borrowed.release()
        self.assertEqual(len(dlpack._lent), lent)

    def test_what_is_no_tensor(self) -> None:
        sequence = self.cache.sequence()
        with self.assertRaises(AttributeError):
            sequence.append([1.0], [1.0])


def softmax_attention(numpy: object, q: object, k: object, v: object, causal: bool) -> object:
    """Attention in binary64: q [B, Hq, L, E], k and v [B, Hk, S, E]."""
    group = q.shape[1] // k.shape[1]
    k, v = (numpy.repeat(x.astype(numpy.float64), group, axis=1) for x in (k, v))
    logits = q.astype(numpy.float64) @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        hidden = numpy.arange(k.shape[2]) > numpy.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        logits[..., hidden] = -numpy.inf
    weights = numpy.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@unittest.skipUnless(HAS["numpy"] and BACKEND == "sim", "needs NumPy and a backend in host memory")
class NumPy(WithDevice):
    """Arrays in and out."""

    def setUp(self) -> None:
        super().setUp()
        import numpy
        self.numpy, self.random = numpy, numpy.random.default_rng(1)

    def normal(self, *shape: int) -> object:
        """Normal numbers in f32."""
        return self.random.standard_normal(shape, dtype=self.numpy.float32)

    def test_attention(self) -> None:
        k, v = self.normal(TOKENS, KV_HEADS, DIM), self.normal(TOKENS, KV_HEADS, DIM)
        q = self.normal(ROWS, Q_HEADS, DIM)
        sequence = self.cache.sequence()
        sequence.append(k, v)
        o = sequence.attend(q)
        self.assertIsInstance(o, self.numpy.ndarray)
        exact = softmax_attention(self.numpy, *(x.swapaxes(0, 1)[None] for x in (q, k, v)), True)[0].swapaxes(0, 1)
        self.assertLess(self.numpy.linalg.norm(o - exact) / self.numpy.linalg.norm(exact), 0.03)

    def test_strides_change_no_bit(self) -> None:
        k, v = self.normal(TOKENS, KV_HEADS, DIM), self.normal(TOKENS, KV_HEADS, DIM)
        q = self.normal(ROWS, Q_HEADS, DIM)
        first, second = self.cache.sequence(), self.cache.sequence()
        first.append(k, v)
        wide = self.numpy.zeros((KV_HEADS, TOKENS, 3 * DIM), self.numpy.float32)
        wide[:, :, DIM:2 * DIM] = k.swapaxes(0, 1)
        second.append(wide[:, :, DIM:2 * DIM].swapaxes(0, 1), v[::-1][::-1])
        self.assertEqual(first.attend(q).tobytes(), second.attend(q).tobytes())

    def test_half_and_read_only(self) -> None:
        k, v, q = (self.normal(*s).astype(self.numpy.float16) for s in ((9, KV_HEADS, DIM),) * 2 + ((1, Q_HEADS, DIM),))
        k.flags.writeable = v.flags.writeable = False
        sequence = self.cache.sequence()
        sequence.append(k, v)
        self.assertEqual(sequence.attend(q).dtype, self.numpy.float16)
        out = self.numpy.zeros((1, Q_HEADS, DIM), self.numpy.float16)
        out.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "read-only"):
            sequence.attend(q, out=out)
        with self.assertRaisesRegex(TypeError, "64 bits"):
            sequence.append(k.astype(self.numpy.float64), v)
        with self.assertRaisesRegex(ValueError, "every stride is 0"):
            sequence.append(self.numpy.broadcast_to(k[:1, :1, :1], k.shape), v)

    def test_result_outlives_its_tensor(self) -> None:
        k, q = self.normal(5, KV_HEADS, DIM), self.normal(1, Q_HEADS, DIM)
        sequence = self.cache.sequence()
        sequence.append(k, k)
        o = sequence.attend(q)
        before = o.tobytes()
        gc.collect()
        for _ in range(20):
            sequence.attend(q)
        self.assertEqual(o.tobytes(), before)

    def test_scaled_dot_product_attention(self) -> None:
        batch, more = 3, 5
        paged = nibble.PagedAttention(self.cache, batch)
        k, v = self.normal(batch, KV_HEADS, TOKENS, DIM), self.normal(batch, KV_HEADS, TOKENS, DIM)
        q = self.normal(batch, Q_HEADS, TOKENS, DIM)
        head = TOKENS - more
        parts = [nibble.scaled_dot_product_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], paged)
                 for a, b in [(0, head)] + [(head + i, head + i + 1) for i in range(more)]]
        o = self.numpy.concatenate(parts, axis=2)
        exact = softmax_attention(self.numpy, q, k, v, True)
        self.assertLess(self.numpy.linalg.norm(o - exact) / self.numpy.linalg.norm(exact), 0.03)
        with self.assertRaisesRegex(ValueError, "a batch of 2, but 3 sequences"):
            nibble.scaled_dot_product_attention(q[:2], k[:2], v[:2], paged)
        paged.free()


@unittest.skipUnless(HAS["torch"], "needs PyTorch")
class Torch(WithDevice):
    """Tensors in and out, on a stream of their own where the backend is a GPU."""

    def test_scaled_dot_product_attention(self) -> None:
        import torch
        place = "cuda" if self.device.is_cuda else "cpu"
        torch.manual_seed(1)
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            q = torch.randn(2, Q_HEADS, TOKENS, DIM, device=place).to(kind)
            k, v = (torch.randn(2, KV_HEADS, TOKENS, DIM, device=place).to(kind) for _ in "kv")
            side = torch.cuda.Stream() if self.device.is_cuda else None
            with torch.cuda.stream(side):
                paged = nibble.PagedAttention(self.cache, 2)
                o = nibble.scaled_dot_product_attention(q, k, v, paged)
            self.assertEqual((o.dtype, o.device.type, o.shape), (kind, place, q.shape))
            if side:
                self.device.synchronize(side.cuda_stream)
                torch.cuda.synchronize()
            wanted = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True,
                                                                      enable_gqa=True)
            self.assertLess(((o.float() - wanted).norm() / wanted.norm()).item(), 0.03)
            paged.free()


if __name__ == "__main__":
    for name, there in HAS.items():
        print(f"{name}: {'used' if there else 'not installed; what needs it is left out'}")
    unittest.main(argv=sys.argv[:1])
