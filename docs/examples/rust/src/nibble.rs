// SPDX-License-Identifier: Apache-2.0
//! nibble's ABI for Rust: the structs and slots that a small engine needs, and safe owners around them.
//! The library is opened with dlopen; nothing is linked.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::rc::Rc;

extern "C" {
    fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;
const ABI_MAJOR: u32 = 1;
const ATTEND_CAUSAL: u32 = 1;
const F32: u32 = 1;

type Status = i32;
type Handle = *mut c_void;

/// Declares a `#[repr(C)]` struct and `new()`, which zeroes it and sets struct_size.
macro_rules! sized_struct {
    ($name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        #[repr(C)]
        pub struct $name { struct_size: u32, $(pub $field: $type),* }

        impl $name {
            fn new() -> Self {
                // SAFETY: integers, floats, arrays of them and nullable pointers; all zero is valid.
                let mut value: Self = unsafe { zeroed() };
                value.struct_size = size_of::<Self>() as u32;
                value
            }
        }
    };
}

sized_struct!(ErrorText { status: Status, origin: u32, native_code: i32, truncated: u32, reserved: u32,
    message: [c_char; 480] });
sized_struct!(Request { abi_major: u32, abi_minor_min: u32, reserved: u32 });
sized_struct!(LoadOptions { flags: u32, next: Handle, backend: *const c_char, backend_dir: *const c_char,
    log: Handle, log_user: Handle, client_name: *const c_char });
sized_struct!(Recipe { flags: u32, next: Handle, q_format: u32, k_format: u32, v_format: u32, k_hadamard: u32,
    v_hadamard: u32, centering: u32, sink_tokens: u32, reserved: u32, name: [c_char; 32],
    scale_rule: u32, q_centering: u32 });
sized_struct!(KvShape { flags: u32, next: Handle, layers: u32, kv_heads: u32, k_dim: u32, v_dim: u32,
    page_tokens: u32, k_hadamard: u32, v_hadamard: u32, k_scale_rule: u32, v_scale_rule: u32, centering: u32 });
sized_struct!(CacheConfig { flags: u32, next: Handle, shape: KvShape, k_format: u32, v_format: u32,
    sink_tokens: u32, sequences_max: u32, tokens_max: u64, sequence_tokens_max: u32, workspace_mib: u32 });
sized_struct!(AppendArgs { flags: u32, next: Handle, sequences: *const u64, seq_indptr: *const i32, batch: u32,
    layer: u32, k: TensorView, v: TensorView, stream: Stream });
sized_struct!(AttendArgs { flags: u32, next: Handle, sequences: *const u64, q_indptr: *const i32, batch: u32,
    layer: u32, q_heads: u32, q_format: u32, q: TensorView, o: TensorView, lse: TensorView, sm_scale: f32,
    soft_cap: f32, window_left: u32, window_right: u32, tree_mask_stride: u32, reserved: u32,
    alibi_slopes: *const f32, sinks: *const f32, tree_mask: *const u32, stream: Stream });

#[repr(C)]
pub struct TensorView { data: *mut c_void, dtype: u32, rank: u32, shape: [u64; 5], stride_bytes: [i64; 5] }

#[repr(C)]
pub struct Stream { kind: u32, device: i32, handle: Handle }

/// Sizes as abi/include/nibble/nibble_asserts.h publishes them; of the table those slots that version 1.0 has.
const _: () = {
    assert!(size_of::<ErrorText>() == 504 && size_of::<Request>() == 16 && size_of::<LoadOptions>() == 56);
    assert!(size_of::<Recipe>() == 88 && size_of::<KvShape>() == 56 && size_of::<CacheConfig>() == 104);
    assert!(size_of::<AppendArgs>() == 248 && size_of::<AttendArgs>() == 400 && size_of::<TensorView>() == 96);
    assert!(size_of::<Api>() == 288);
};

type Err<'a> = &'a mut ErrorText;
type Unused = Handle;

/// The table; slots that this example does not call are plain pointers.
#[repr(C)]
pub struct Api {
    struct_size: u32,
    abi_minor: u32,
    load: extern "C" fn(&LoadOptions, &mut Handle, Handle, Err) -> Status,
    runtime_destroy: extern "C" fn(Handle, Handle) -> Status,
    report: [Unused; 3],
    status_name: extern "C" fn(Status) -> *const c_char,
    texts: [Unused; 2],
    open: extern "C" fn(Handle, Handle, &mut Handle, Err) -> Status,
    close: extern "C" fn(Handle, Handle) -> Status,
    device: [Unused; 8],
    operations: [Unused; 6],
    recipe_parse: extern "C" fn(*const c_char, u32, u32, &mut Recipe, Err) -> Status,
    cache_plan: Unused,
    cache_create: extern "C" fn(Handle, &CacheConfig, &mut Handle, Err) -> Status,
    cache_destroy: extern "C" fn(Handle, Handle) -> Status,
    cache_stats: Unused,
    seq_create: extern "C" fn(Handle, &mut u64, Err) -> Status,
    seq_free: extern "C" fn(Handle, u64, Handle) -> Status,
    seq_length: Unused,
    seq_truncate: Unused,
    cache_append: extern "C" fn(Handle, &AppendArgs, Err) -> Status,
    cache_attend: extern "C" fn(Handle, &AttendArgs, Err) -> Status,
}

/// A call failed; the text is nibble's own line.
#[derive(Debug)]
pub struct Error { pub status: Status, text: String }

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result { f.write_str(&self.text) }
}

fn text_of(bytes: *const c_char) -> String {
    // SAFETY: nibble's and libc's texts end with NUL.
    unsafe { CStr::from_ptr(bytes) }.to_string_lossy().into_owned()
}

/// Runs a call with an error struct of its own.
fn call(f: impl FnOnce(&mut ErrorText) -> Status) -> Result<(), Error> {
    let mut error = ErrorText::new();
    match f(&mut error) {
        0 => Ok(()),
        status => Err(Error { status, text: text_of(error.message.as_ptr()) }),
    }
}

fn c_text(text: &str) -> CString { CString::new(text).expect("no NUL in a name") }

/// A backend's device; closed with its last owner.
pub struct Device { api: &'static Api, runtime: Handle, device: Handle }

impl Device {
    /// Opens the library, loads the backend (NIBBLE_BACKEND goes before it) and opens its device 0.
    pub fn open(library: &str, backend: &str) -> Result<Rc<Device>, Error> {
        let api = open_library(library)?;
        let name = c_text(backend);
        let mut options = LoadOptions::new();
        options.backend = name.as_ptr();
        let mut opened = Device { api, runtime: null_mut(), device: null_mut() };
        call(|e| (api.load)(&options, &mut opened.runtime, null_mut(), e))?;
        call(|e| (api.open)(opened.runtime, null_mut(), &mut opened.device, e))?;
        Ok(Rc::new(opened))
    }

    /// Name of a status, such as "NBL_E_RANGE".
    pub fn status_name(&self, status: Status) -> String { text_of((self.api.status_name)(status)) }
}

impl Drop for Device {
    fn drop(&mut self) {
        (self.api.close)(self.device, null_mut());
        (self.api.runtime_destroy)(self.runtime, null_mut());
    }
}

fn open_library(path: &str) -> Result<&'static Api, Error> {
    let failed = |text: String| Error { status: -5, text: format!("libnibble cannot be opened: {text}") };
    let path = c_text(path);
    // SAFETY: the texts end with NUL; the table lives as long as the process.
    unsafe {
        let library = dlopen(path.as_ptr(), RTLD_NOW);
        if library.is_null() {
            return Err(failed(text_of(dlerror())));
        }
        let symbol = dlsym(library, c"nbl_get_api".as_ptr());
        if symbol.is_null() {
            return Err(failed(text_of(dlerror())));
        }
        let get: extern "C" fn(&Request, &mut *const Api, Err) -> Status = std::mem::transmute(symbol);
        let mut request = Request::new();
        request.abi_major = ABI_MAJOR;
        let mut table: *const Api = std::ptr::null();
        call(|e| get(&request, &mut table, e))?;
        Ok(&*table)
    }
}

/// Rows of a packed f32 tensor [tokens, heads, dim]; of the simulator, whose memory is the process's own.
pub struct View<'a> { pub data: &'a [f32], pub heads: usize, pub dim: usize }

impl View<'_> {
    fn tokens(&self) -> usize { self.data.len() / (self.heads * self.dim) }
}

fn tensor(data: *const f32, tokens: usize, heads: usize, dim: usize) -> TensorView {
    TensorView {
        data: data as *mut c_void,
        dtype: F32,
        rank: 3,
        shape: [tokens as u64, heads as u64, dim as u64, 0, 0],
        stride_bytes: [0; 5],
    }
}

/// Managed pages with one sequence.
pub struct Cache { device: Rc<Device>, cache: Handle, sequence: u64, kv_heads: usize, dim: usize }

impl Cache {
    /// workspace_mib: scratch memory, 0 is 64; on CUDA long prefills need more, and are refused with the number.
    pub fn new(device: Rc<Device>, recipe: &str, kv_heads: usize, dim: usize, tokens: u64, workspace_mib: u32)
        -> Result<Cache, Error> {
        let (api, recipe) = (device.api, c_text(recipe));
        let mut parsed = Recipe::new();
        call(|e| (api.recipe_parse)(recipe.as_ptr(), dim as u32, dim as u32, &mut parsed, e))?;
        let mut config = CacheConfig::new();
        config.shape = KvShape::new();
        (config.shape.layers, config.shape.kv_heads, config.shape.page_tokens) = (1, kv_heads as u32, 64);
        (config.shape.k_dim, config.shape.v_dim) = (dim as u32, dim as u32);
        (config.shape.k_hadamard, config.shape.v_hadamard) = (parsed.k_hadamard, parsed.v_hadamard);
        config.shape.centering = parsed.centering;
        (config.shape.k_scale_rule, config.shape.v_scale_rule) = (parsed.scale_rule, parsed.scale_rule);
        (config.k_format, config.v_format) = (parsed.k_format, parsed.v_format);
        (config.sink_tokens, config.sequences_max, config.tokens_max) = (parsed.sink_tokens, 1, tokens);
        config.workspace_mib = workspace_mib;
        let mut made = Cache { device, cache: null_mut(), sequence: 0, kv_heads, dim };
        call(|e| (api.cache_create)(made.device.device, &config, &mut made.cache, e))?;
        call(|e| (api.seq_create)(made.cache, &mut made.sequence, e))?;
        Ok(made)
    }

    pub fn append(&mut self, k: &[f32], v: &[f32]) -> Result<(), Error> {
        let tokens = k.len() / (self.kv_heads * self.dim);
        assert!(k.len() == v.len() && k.len() == tokens * self.kv_heads * self.dim, "k and v are [tokens, heads, dim]");
        let cut = [0, tokens as i32];
        let mut args = AppendArgs::new();
        (args.sequences, args.seq_indptr, args.batch) = (&self.sequence, cut.as_ptr(), 1);
        args.k = tensor(k.as_ptr(), tokens, self.kv_heads, self.dim);
        args.v = tensor(v.as_ptr(), tokens, self.kv_heads, self.dim);
        call(|e| (self.device.api.cache_append)(self.cache, &args, e))
    }

    /// Causal attention of the last rows.
    pub fn attend(&mut self, q: View) -> Result<Vec<f32>, Error> {
        let mut o = vec![0.0f32; q.data.len()];
        let cut = [0, q.tokens() as i32];
        let mut args = AttendArgs::new();
        (args.flags, args.q_heads) = (ATTEND_CAUSAL, q.heads as u32);
        (args.sequences, args.q_indptr, args.batch) = (&self.sequence, cut.as_ptr(), 1);
        args.q = tensor(q.data.as_ptr(), q.tokens(), q.heads, q.dim);
        args.o = tensor(o.as_mut_ptr(), q.tokens(), q.heads, self.dim);
        call(|e| (self.device.api.cache_attend)(self.cache, &args, e))?;
        Ok(o)
    }
}

impl Drop for Cache {
    fn drop(&mut self) { (self.device.api.cache_destroy)(self.cache, null_mut()); }
}
