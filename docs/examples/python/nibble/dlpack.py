# SPDX-License-Identifier: Apache-2.0
"""DLPack 1.x by hand: tensors of others as nbl_tensor, ours as capsules. The rules are those of nibble_dlpack.h."""

from __future__ import annotations

import ctypes as c

from .abi import BF16, F16, F32, nbl_tensor

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY = 1
CAPSULE, USED = b"dltensor_versioned", b"used_dltensor_versioned"
TYPES = {(2, 32): F32, (2, 16): F16, (4, 16): BF16}
CODES = {kind: code for code, kind in TYPES.items()}


class _Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class _Managed(c.Structure):
    pass


_Deleter = c.CFUNCTYPE(None, c.POINTER(_Managed))
_Managed._fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", _Deleter),
                     ("flags", c.c_uint64), ("tensor", _Tensor)]

_is_valid = c.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c.c_int, (c.py_object, c.c_char_p)
_pointer = c.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)
_rename = c.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = c.c_int, (c.py_object, c.c_char_p)
_Destructor = c.CFUNCTYPE(None, c.c_void_p)
_new = c.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = c.py_object, (c.c_void_p, c.c_char_p, _Destructor)
_raw_is_valid = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)(("PyCapsule_IsValid", c.pythonapi))
_raw_pointer = c.PYFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(("PyCapsule_GetPointer", c.pythonapi))


class Borrowed:
    """A tensor of somebody else, held until released or forgotten."""

    def __init__(self, owner: object, stream: int | None, output: bool, places: tuple[int, ...]) -> None:
        self._managed = None
        try:
            capsule = owner.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError as error:
            raise TypeError(f"{type(owner).__name__} does not speak DLPack 1.x: {error}") from error
        if not _is_valid(capsule, CAPSULE):
            raise TypeError(f"{type(owner).__name__} gave a DLPack capsule without a version")
        managed = c.cast(_pointer(capsule, CAPSULE), c.POINTER(_Managed))
        _rename(capsule, USED)  # from here on the deleter is ours to call
        self._managed = managed
        if managed.contents.major != 1:
            major = managed.contents.major
            self.release()
            raise TypeError(f"DLPack version {major}.x; 1.x is needed")
        try:
            self.device_id = managed.contents.tensor.device_id
            self.view = self._make_view(output, places)
        except Exception:
            self.release()
            raise

    def _make_view(self, output: bool, places: tuple[int, ...]) -> nbl_tensor:
        t, flags = self._managed.contents.tensor, self._managed.contents.flags
        kind = TYPES.get((t.code, t.bits))
        if kind is None or t.lanes != 1:
            raise TypeError(f"DLPack type code {t.code}, {t.bits} bits, {t.lanes} lanes; f32, f16 or bf16 are needed")
        if t.device_type not in places:
            raise ValueError(f"memory of DLPack device type {t.device_type} is not the backend's (allowed: {places})")
        if not 1 <= t.ndim <= 5:
            raise ValueError(f"{t.ndim} dimensions; 1 to 5 are allowed")
        if output and flags & READ_ONLY:
            raise ValueError("the tensor is read-only and cannot be an output")
        view, size, packed = nbl_tensor(dtype=kind, rank=t.ndim), t.bits // 8, t.bits // 8
        view.data = (t.data or 0) + t.byte_offset
        strides = [t.strides[i] for i in range(t.ndim)] if t.strides else None
        for i in reversed(range(t.ndim)):
            stride = packed // size if strides is None or t.shape[i] <= 1 else strides[i]
            if output and stride == 0:
                raise ValueError(f"dimension {i} of an output is broadcast")
            view.shape[i], view.stride_bytes[i] = t.shape[i], stride * size
            packed *= t.shape[i]
        if packed and not any(view.stride_bytes[i] for i in range(t.ndim)):
            raise ValueError("every stride is 0; give one dimension that is not broadcast")
        return view

    def release(self) -> None:
        """Gives the tensor back to its producer; once."""
        managed, self._managed = self._managed, None
        if managed and managed.contents.deleter:
            managed.contents.deleter(managed)

    __del__ = release


_lent: dict[int, tuple] = {}


@_Deleter
def _delete(managed: object) -> None:
    _lent.pop(c.addressof(managed.contents), None)


@_Destructor
def _destroy_capsule(capsule: int) -> None:
    if _raw_is_valid(capsule, CAPSULE):  # nobody took it
        _lent.pop(_raw_pointer(capsule, CAPSULE), None)


def lend(owner: object, data: int, kind: int, shape: tuple[int, ...], device: tuple[int, int]) -> object:
    """A capsule of packed memory; owner lives as long as the capsule or what was made of it."""
    extents, strides, step = (c.c_int64 * len(shape))(*shape), (c.c_int64 * len(shape))(), 1
    for i in reversed(range(len(shape))):
        strides[i], step = step, step * shape[i]
    code, bits = CODES[kind]
    tensor = _Tensor(data, device[0], device[1], len(shape), code, bits, 1, extents, strides, 0)
    managed = _Managed(1, 0, None, _delete, 0, tensor)
    address = c.addressof(managed)
    _lent[address] = (managed, extents, strides, owner)
    return _new(address, CAPSULE, _destroy_capsule)
