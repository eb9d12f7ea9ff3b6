# SPDX-License-Identifier: Apache-2.0
"""nibble from Python, without a compiler: ctypes over the ABI, tensors by DLPack.

    device = nibble.Device("sim")
    cache = nibble.Cache(device, layers=1, kv_heads=2, head_dim=64, sequences=4, tokens=4096)
    sequence = cache.sequence()
    sequence.append(k, v)             # [T, kv_heads, head_dim], anything with __dlpack__: NumPy, PyTorch, ...
    o = sequence.attend(q)            # [Tq, q_heads, head_dim], of q's kind

Inputs may have any strides and are never copied or changed. With "cuda" the calls go on the stream given, or for
PyTorch tensors on its current stream.
"""

from __future__ import annotations

import ctypes as c
import sys
from typing import Any

from . import abi, dlpack
from .abi import ATTEND_CAUSAL, ATTEND_WINDOW_LEFT, BF16, F16, F32

__all__ = ["BF16", "Cache", "Device", "Error", "F16", "F32", "PagedAttention", "Sequence", "Tensor",
           "scaled_dot_product_attention"]
LEGACY_STREAM = 1
HELD_MAX = 256


class Error(RuntimeError):
    """A call of nibble failed; its own line is the message."""

    def __init__(self, error: abi.nbl_error) -> None:
        super().__init__(error.message.decode(errors="replace"))
        self.status, self.origin, self.native_code = error.status, error.origin, error.native_code


class Library:
    """libnibble's table; one for the process, as the library is."""

    def __init__(self, path: str | None = None) -> None:
        library = c.CDLL(path or "libnibble.so.1", mode=c.RTLD_LOCAL)
        table, error = c.POINTER(abi.nbl_api_v1)(), abi.nbl_error()
        request = abi.nbl_api_request(abi_major=abi.ABI_MAJOR, abi_minor_min=abi.ABI_MINOR)
        if library.nbl_get_api(c.byref(request), c.byref(table), c.byref(error)) != 0:
            raise Error(error)
        self._table, self._slots = table.contents, {}

    def call(self, name: str, *arguments: object) -> None:
        """Calls a slot; raises Error with its line. The interpreter lock is free meanwhile."""
        function = self._slots.get(name) or self._slots.setdefault(name, abi.slot(self._table, name))
        error = abi.nbl_error()
        if function(*arguments, c.byref(error)) != 0:
            raise Error(error)


class Device:
    """A backend's device. backend: a name, a comma list in order, or None (then NIBBLE_BACKEND, else "cuda")."""

    def __init__(self, backend: str | None = None, *, ordinal: int = 0, threads: int = 0, isa: str | None = None,
                 library: str | None = None) -> None:
        self.library = Library(library)
        self._runtime, self._device, self._held = c.c_void_p(), c.c_void_p(), []
        options = abi.nbl_load_options(backend=backend.encode() if backend else None, client_name=b"nibble.py")
        wanted = abi.nbl_device_options(ordinal=ordinal, threads=threads, isa=isa.encode() if isa else None)
        self.library.call("load", c.byref(options), c.byref(self._runtime), None)
        try:
            self.library.call("open", self._runtime, c.byref(wanted), c.byref(self._device))
        except Error:
            self.library.call("runtime_destroy", self._runtime)
            raise
        caps = abi.nbl_caps()
        self.library.call("caps", self._device, c.byref(caps))
        self.name, self.isa, self.is_cuda = caps.device_name.decode(), caps.isa.decode(), caps.stream_kind != 0
        self.ordinal = ordinal

    def call(self, name: str, *arguments: object) -> None:
        """A slot whose first argument is the device."""
        self.library.call(name, self._device, *arguments)

    def stream(self, tensor: object = None, stream: int | None = None) -> abi.nbl_stream:
        """The stream of a call: the one given, else PyTorch's current one for its tensors, else the default."""
        if not self.is_cuda:
            return abi.nbl_stream(abi.STREAM_HOST, 0, None)
        torch = sys.modules.get("torch")
        if stream is None and torch and isinstance(tensor, torch.Tensor):
            stream = torch.cuda.current_stream(tensor.device).cuda_stream
        return abi.nbl_stream(abi.STREAM_CUDA, self.ordinal, stream or LEGACY_STREAM)

    def borrow(self, tensor: object, stream: abi.nbl_stream, output: bool = False) -> dlpack.Borrowed:
        """A tensor for one call; it is held until the stream has passed (synchronize)."""
        places = (dlpack.CUDA, dlpack.CUDA_HOST, dlpack.CUDA_MANAGED) if self.is_cuda else (
            dlpack.CPU, dlpack.CUDA_HOST, dlpack.CUDA_MANAGED)
        borrowed = dlpack.Borrowed(tensor, stream.handle if self.is_cuda else None, output, places)
        if self.is_cuda:
            if len(self._held) >= HELD_MAX:
                self.synchronize(stream.handle)
            self._held.append(borrowed)
        return borrowed

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for a stream and raises what went wrong on it. Call it before tensors on other streams are dropped."""
        self.call("check", self.stream(stream=stream))
        self._held.clear()

    def close(self) -> None:
        """Closes the device; its caches must be closed. Safe to call again."""
        if self._device:
            self.call("close")
            self._device = c.c_void_p()
            self.library.call("runtime_destroy", self._runtime)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tensor:
    """Packed device memory of nibble; others take it by DLPack: numpy.from_dlpack(t), torch.from_dlpack(t)."""

    def __init__(self, device: Device, shape: tuple[int, ...], kind: int = F32) -> None:
        self.device, self.shape, self.kind, self._memory = device, tuple(shape), kind, c.c_void_p()
        self.bytes = 4 if kind == F32 else 2
        for extent in shape:
            self.bytes *= extent
        device.call("memory_alloc", max(self.bytes, 1), c.byref(self._memory))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self.device.ordinal) if self.device.is_cuda else (dlpack.CPU, 0)

    def copy_from(self, data: bytes) -> None:
        """Fills the tensor from host bytes, and waits until they are there."""
        if len(data) != self.bytes:
            raise ValueError(f"{len(data)} bytes for a tensor of {self.bytes}")
        stream = self.device.stream()
        self.device.call("memory_copy", self._memory, bytes(data), self.bytes, abi.COPY_TO_DEVICE, stream)
        self.device.call("check", stream)

    def tobytes(self) -> bytes:
        """The tensor's bytes, on the host."""
        stream, data = self.device.stream(), c.create_string_buffer(max(self.bytes, 1))
        if self.bytes:
            self.device.call("memory_copy", data, self._memory, self.bytes, abi.COPY_TO_HOST, stream)
        self.device.call("check", stream)
        return data.raw[:self.bytes]

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   **_: object) -> object:
        """Lends the memory. With another stream than that of the call that wrote it, synchronize first."""
        if max_version is None or max_version[0] < 1:
            raise BufferError("nibble speaks DLPack 1.x; ask with max_version=(1, 0)")
        return dlpack.lend(self, self._memory.value, self.kind, self.shape, self.__dlpack_device__())

    def __del__(self) -> None:
        if getattr(self, "_memory", None) and self.device._device:
            self.device.call("memory_free", self._memory)
            self._memory = None


def _like(tensor: object, result: Tensor) -> Any:
    """The result as the library of tensor has it."""
    name = type(tensor).__module__.split(".")[0]
    module = sys.modules.get(name) if name in ("numpy", "torch", "cupy", "jax") else None
    return module.from_dlpack(result) if module else result


class Sequence:
    """One sequence of a cache."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self._handle = cache, c.c_uint64()
        cache.call("seq_create", c.byref(self._handle))

    def append(self, k: object, v: object, layer: int = 0, stream: int | None = None) -> None:
        """Adds tokens: k and v [T, kv_heads, head_dim]."""
        device = self.cache.device
        on = device.stream(k, stream)
        keys, values = device.borrow(k, on), device.borrow(v, on)
        cut = (c.c_int32 * 2)(0, keys.view.shape[0])
        arguments = abi.nbl_cache_append_args(sequences=c.pointer(self._handle), seq_indptr=cut, batch=1, layer=layer,
                                              k=keys.view, v=values.view, stream=on)
        self.cache.call("cache_append", c.byref(arguments))

    def attend(self, q: object, layer: int = 0, *, causal: bool = True, scale: float = 0.0, window: int = 0,
               out: object = None, stream: int | None = None) -> Any:
        """Attention of the last tokens' queries q [Tq, q_heads, head_dim] over the whole sequence.

        scale: of the logits, 0 is 1/sqrt(head_dim). window: keys that a query sees, itself included; 0 is all.
        out: written if given, else made; of q's kind.
        """
        device = self.cache.device
        on = device.stream(q, stream)
        queries = device.borrow(q, on)
        shape = tuple(queries.view.shape[:queries.view.rank])
        made = None if out is not None else Tensor(device, shape[:2] + (self.cache.head_dim,), queries.view.dtype)
        result = device.borrow(out if made is None else made, on, output=True)
        arguments = abi.nbl_cache_attend_args(
            flags=ATTEND_CAUSAL * causal | ATTEND_WINDOW_LEFT * (window > 0), sequences=c.pointer(self._handle),
            q_indptr=(c.c_int32 * 2)(0, shape[0]), batch=1, layer=layer, q_heads=shape[1] if len(shape) > 1 else 0,
            q_format=self.cache.q_format, q=queries.view, o=result.view, sm_scale=scale,
            window_left=max(window - 1, 0), stream=on)
        self.cache.call("cache_attend", c.byref(arguments))
        return out if made is None else _like(q, made)

    def length(self, layer: int = 0) -> int:
        """Tokens appended to a layer."""
        tokens = c.c_uint32()
        self.cache.call("seq_length", self._handle, layer, c.byref(tokens))
        return tokens.value

    def fork(self, tokens: int) -> Sequence:
        """A new sequence that shares the first tokens."""
        child = Sequence.__new__(Sequence)
        child.cache, child._handle = self.cache, c.c_uint64()
        self.cache.call("seq_fork", self._handle, tokens, c.byref(child._handle))
        return child

    def truncate(self, tokens: int) -> None:
        """Drops tokens from the end."""
        self.cache.call("seq_truncate", self._handle, tokens)

    def free(self) -> None:
        """Gives the pages back."""
        self.cache.call("seq_free", self._handle)


class Cache:
    """Managed pages for a number of sequences; keys and values of one head dimension."""

    def __init__(self, device: Device, policy: str = "default", *, layers: int, kv_heads: int, head_dim: int,
                 sequences: int, tokens: int, page_tokens: int = 64, workspace_mib: int = 0) -> None:
        """policy: "default", a recipe such as "kv4", or one with rules such as "kv4,recent=256,layers=last4:kv8".
        workspace_mib: scratch memory, 0 is 64; on CUDA long prefills need more, and are refused with the number."""
        self.device, self.head_dim, self._cache = device, head_dim, c.c_void_p()
        parsed = abi.nbl_policy()
        device.library.call("policy_parse", policy.encode(), layers, head_dim, head_dim, c.byref(parsed))
        self.q_format = parsed.q_format
        shape = abi.nbl_kv_shape(layers=layers, kv_heads=kv_heads, k_dim=head_dim, v_dim=head_dim,
                                 page_tokens=page_tokens, k_hadamard=parsed.k_hadamard, v_hadamard=parsed.v_hadamard,
                                 centering=parsed.centering, k_scale_rule=parsed.scale_rule,
                                 v_scale_rule=parsed.scale_rule)
        config = abi.nbl_cache_config(shape=shape, k_format=parsed.k_format, v_format=parsed.v_format,
                                      sink_tokens=parsed.sink_tokens, sequences_max=sequences, tokens_max=tokens,
                                      workspace_mib=workspace_mib, rules=parsed.rules, rule_count=parsed.rule_count)
        device.call("cache_create", c.byref(config), c.byref(self._cache))

    def call(self, name: str, *arguments: object) -> None:
        """A slot whose first argument is the cache."""
        self.device.library.call(name, self._cache, *arguments)

    def stats(self) -> abi.nbl_cache_stats:
        """Sizes, pages and counters."""
        found = abi.nbl_cache_stats()
        self.call("cache_stats", c.byref(found))
        return found

    def sequence(self) -> Sequence:
        """A new, empty sequence."""
        return Sequence(self)

    def close(self) -> None:
        """Frees all pages. Safe to call again."""
        if self._cache:
            self.call("cache_destroy")
            self._cache = c.c_void_p()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PagedAttention:
    """The keys and values of a batch, kept between calls of scaled_dot_product_attention."""

    def __init__(self, cache: Cache, batch: int) -> None:
        self.cache, self.sequences = cache, [cache.sequence() for _ in range(batch)]

    def free(self) -> None:
        """Gives the pages back."""
        for sequence in self.sequences:
            sequence.free()


def scaled_dot_product_attention(query: Any, key: Any, value: Any, paged: PagedAttention, *, is_causal: bool = True,
                                 scale: float | None = None, layer: int = 0) -> Any:
    """Shaped as PyTorch's function of this name: query [B, Hq, L, E], key and value [B, Hk, S, E], of NumPy or PyTorch.

    key and value are only the new tokens; they join those that paged holds. Hq may be a multiple of Hk (enable_gqa).
    The mask is PyTorch's lower-right one: the last query stands at the last key. Returns [B, Hq, L, E].
    """
    if len(query) != len(paged.sequences):
        raise ValueError(f"a batch of {len(query)}, but {len(paged.sequences)} sequences")
    rows = []
    for b, sequence in enumerate(paged.sequences):
        sequence.append(key[b].swapaxes(0, 1), value[b].swapaxes(0, 1), layer)
        rows.append(sequence.attend(query[b].swapaxes(0, 1), layer, causal=is_causal, scale=scale or 0.0))
    return sys.modules[type(query).__module__.split(".")[0]].stack([row.swapaxes(0, 1) for row in rows])
