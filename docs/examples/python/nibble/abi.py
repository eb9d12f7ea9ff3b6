# SPDX-License-Identifier: Apache-2.0
"""The structs and the table of nibble.h as ctypes sees them; tests compare them with the header."""

from __future__ import annotations

import ctypes as c

ABI_MAJOR, ABI_MINOR = 1, 1
F32, F16, BF16 = 1, 2, 3
STREAM_HOST, STREAM_CUDA = 0, 1
COPY_TO_DEVICE, COPY_TO_HOST = 0, 1
ATTEND_CAUSAL, ATTEND_WINDOW_LEFT = 1, 2

_u32, _u64, _i32, _i64, _p = c.c_uint32, c.c_uint64, c.c_int32, c.c_int64, c.c_void_p
_HEADER = [("struct_size", _u32), ("flags", _u32), ("next", _p)]


class Struct(c.Structure):
    """A struct that starts with its own size."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=c.sizeof(type(self)), **fields)


class nbl_error(Struct):
    _fields_ = [("struct_size", _u32), ("status", _i32), ("origin", _u32), ("native_code", _i32), ("truncated", _u32),
                ("reserved", _u32), ("message", c.c_char * 480)]


class nbl_tensor(c.Structure):
    _fields_ = [("data", _p), ("dtype", _u32), ("rank", _u32), ("shape", _u64 * 5), ("stride_bytes", _i64 * 5)]


class nbl_stream(c.Structure):
    _fields_ = [("kind", _u32), ("device", _i32), ("handle", _p)]


class nbl_api_request(Struct):
    _fields_ = [("struct_size", _u32), ("abi_major", _u32), ("abi_minor_min", _u32), ("reserved", _u32)]


class nbl_load_options(Struct):
    _fields_ = _HEADER + [("backend", c.c_char_p), ("backend_dir", c.c_char_p), ("log", _p), ("log_user", _p),
                          ("client_name", c.c_char_p)]


class nbl_device_options(Struct):
    _fields_ = _HEADER + [("ordinal", _u32), ("threads", _u32), ("isa", c.c_char_p)]


class nbl_caps(Struct):
    _fields_ = _HEADER + [("formats", _u32), ("k_dim_max", _u32), ("v_dim_max", _u32), ("page_tokens_max", _u32),
                          ("kv_tokens_max", _u64), ("memory_bytes", _u64), ("stream_kind", _u32), ("threads", _u32),
                          ("deterministic", _u32), ("graph_capture", _u32), ("device_name", c.c_char * 64),
                          ("isa", c.c_char * 32)]


class nbl_recipe(Struct):
    _fields_ = _HEADER + [("q_format", _u32), ("k_format", _u32), ("v_format", _u32), ("k_hadamard", _u32),
                          ("v_hadamard", _u32), ("centering", _u32), ("sink_tokens", _u32), ("reserved", _u32),
                          ("name", c.c_char * 32), ("scale_rule", _u32), ("q_centering", _u32)]


class nbl_policy_rule(c.Structure):
    _fields_ = [("layer_begin", _u32), ("layer_end", _u32), ("scope", _u32), ("tokens", _u32), ("k_format", _u32),
                ("v_format", _u32), ("k_hadamard", _u32), ("v_hadamard", _u32)]


class nbl_policy(Struct):
    _fields_ = _HEADER + [("q_format", _u32), ("k_format", _u32), ("v_format", _u32), ("k_hadamard", _u32),
                          ("v_hadamard", _u32), ("centering", _u32), ("sink_tokens", _u32), ("rule_count", _u32),
                          ("rules", nbl_policy_rule * 16), ("scale_rule", _u32), ("q_centering", _u32)]


class nbl_kv_shape(Struct):
    _fields_ = _HEADER + [("layers", _u32), ("kv_heads", _u32), ("k_dim", _u32), ("v_dim", _u32), ("page_tokens", _u32),
                          ("k_hadamard", _u32), ("v_hadamard", _u32), ("k_scale_rule", _u32), ("v_scale_rule", _u32),
                          ("centering", _u32)]


class nbl_cache_config(Struct):
    _fields_ = _HEADER + [("shape", nbl_kv_shape), ("k_format", _u32), ("v_format", _u32), ("sink_tokens", _u32),
                          ("sequences_max", _u32), ("tokens_max", _u64), ("sequence_tokens_max", _u32),
                          ("workspace_mib", _u32), ("center_tokens", _u32), ("prefix_roots_max", _u32),
                          ("hash_key", _u64 * 2), ("on_event", _p), ("event_user", _p),
                          ("rules", c.POINTER(nbl_policy_rule)), ("rule_count", _u32), ("append_tokens_max", _u32),
                          ("host_bytes", _u64), ("file_bytes", _u64), ("file_folder", c.c_char_p),
                          ("k_scale", c.POINTER(c.c_float)), ("v_scale", c.POINTER(c.c_float))]


class nbl_quant_stats(c.Structure):
    _fields_ = [("vectors", _u64), ("nan_inputs", _u64), ("inf_inputs", _u64), ("saturated", _u64), ("flushed", _u64)]


class nbl_cache_stats(Struct):
    _fields_ = _HEADER + [("code_bytes", _u64), ("scale_bytes", _u64), ("center_bytes", _u64),
                          ("metadata_bytes", _u64), ("workspace_bytes", _u64), ("total_bytes", _u64),
                          ("used_bytes", _u64), ("pages_total", _u32 * 8), ("pages_used", _u32 * 8),
                          ("region_count", _u32), ("sequences", _u32), ("tokens", _u64), ("quant", nbl_quant_stats)]


class nbl_cache_append_args(Struct):
    _fields_ = _HEADER + [("sequences", c.POINTER(_u64)), ("seq_indptr", c.POINTER(_i32)), ("batch", _u32),
                          ("layer", _u32), ("k", nbl_tensor), ("v", nbl_tensor), ("stream", nbl_stream)]


class nbl_cache_attend_args(Struct):
    _fields_ = _HEADER + [("sequences", c.POINTER(_u64)), ("q_indptr", c.POINTER(_i32)), ("batch", _u32),
                          ("layer", _u32), ("q_heads", _u32), ("q_format", _u32), ("q", nbl_tensor), ("o", nbl_tensor),
                          ("lse", nbl_tensor), ("sm_scale", c.c_float), ("soft_cap", c.c_float), ("window_left", _u32),
                          ("window_right", _u32), ("tree_mask_stride", _u32), ("reserved", _u32), ("alibi_slopes", _p),
                          ("sinks", _p), ("tree_mask", _p), ("stream", nbl_stream), ("q_centers", nbl_tensor)]


_SLOTS = """load runtime_destroy report_count report_get report_free status_name status_text build_info
            open close caps supports workspace_size kv_layout memory_alloc memory_free memory_copy check
            append attend gather copy_pages transcode merge
            recipe_parse cache_plan cache_create cache_destroy cache_stats seq_create seq_free seq_length seq_truncate
            cache_append cache_attend
            seq_fork seq_truncate_batch seq_drop_prefix cache_verify
            prefix_publish prefix_match seq_adopt prefix_pin prefix_unpin prefix_clear
            snapshot_size snapshot_write snapshot_save snapshot_read snapshot_load
            policy_parse cache_stats_text append_coded cache_append_coded""".split()


class nbl_api_v1(c.Structure):
    _fields_ = [("struct_size", _u32), ("abi_minor", _u32)] + [(slot, _p) for slot in _SLOTS]


_error = c.POINTER(nbl_error)
_SIGNATURES = {
    "load": (c.POINTER(nbl_load_options), c.POINTER(_p), c.POINTER(_p), _error),
    "runtime_destroy": (_p, _error),
    "open": (_p, c.POINTER(nbl_device_options), c.POINTER(_p), _error),
    "close": (_p, _error),
    "caps": (_p, c.POINTER(nbl_caps), _error),
    "memory_alloc": (_p, _u64, c.POINTER(_p), _error),
    "memory_free": (_p, _p, _error),
    "memory_copy": (_p, _p, _p, _u64, _u32, nbl_stream, _error),
    "check": (_p, nbl_stream, _error),
    "policy_parse": (c.c_char_p, _u32, _u32, _u32, c.POINTER(nbl_policy), _error),
    "cache_stats": (_p, c.POINTER(nbl_cache_stats), _error),
    "seq_fork": (_p, _u64, _u32, c.POINTER(_u64), _error),
    "cache_create": (_p, c.POINTER(nbl_cache_config), c.POINTER(_p), _error),
    "cache_destroy": (_p, _error),
    "seq_create": (_p, c.POINTER(_u64), _error),
    "seq_free": (_p, _u64, _error),
    "seq_length": (_p, _u64, _u32, c.POINTER(_u32), _error),
    "seq_truncate": (_p, _u64, _u32, _error),
    "cache_append": (_p, c.POINTER(nbl_cache_append_args), _error),
    "cache_attend": (_p, c.POINTER(nbl_cache_attend_args), _error),
}


def slot(table: nbl_api_v1, name: str) -> object:
    """A slot of the table as a callable that returns the status."""
    return c.CFUNCTYPE(_i32, *_SIGNATURES[name])(getattr(table, name))
