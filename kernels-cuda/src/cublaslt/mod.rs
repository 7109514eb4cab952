//! cuBLASLt, bound at run time: matrix products `out = x Wᵀ (+ bias)` with the first answer of its heuristics.
//!
//! The answer is asked for once a shape; the number of tokens is rounded up to a bucket, so that a server with
//! requests of every length asks a few dozen times. Asking is host work and may happen while a graph is recorded.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use parking_lot::Mutex;
use quire_kernels::DType;

use crate::Error;
use crate::capture::Relaxed;
use crate::ffi::CUstream;
use crate::trampoline::Library;

/// Device memory that a product may ask for.
pub(crate) static WORKSPACE_BYTES: usize = 32 << 20;

/// Bytes that the addresses of all matrices are multiples of, and the lengths of their rows.
pub(crate) const ALIGN: usize = 16;

const FILES: [&str; 4] = [
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "/usr/local/cuda/lib64/libcublasLt.so.13",
    "/usr/local/cuda/lib64/libcublasLt.so.12",
];

const COMPUTE_32F: c_int = 68;
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
/// A transposed matrix. Static, as the next: the library reads them through pointers.
static OP_T: c_int = 1;

const DESC_TRANSA: c_int = 3;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
static EPILOGUE_BIAS: c_int = 4;

const PREFERENCE_WORKSPACE: c_int = 1;
const PREFERENCE_ALIGN_A: c_int = 5;

const ALGO_ID: c_int = 0;
const ALGO_TILE: c_int = 1;
const ALGO_SPLIT_K: c_int = 2;
const ALGO_STAGES: c_int = 6;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Algo([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Answer {
    algo: Algo,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Handle = *mut c_void;

/// The functions of the library.
struct Functions {
    create: unsafe extern "C" fn(*mut Handle) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    version: unsafe extern "C" fn() -> usize,
    desc_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int,
    desc_destroy: unsafe extern "C" fn(Handle) -> c_int,
    desc_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int,
    layout_destroy: unsafe extern "C" fn(Handle) -> c_int,
    preference_create: unsafe extern "C" fn(*mut Handle) -> c_int,
    preference_destroy: unsafe extern "C" fn(Handle) -> c_int,
    preference_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    heuristic: unsafe extern "C" fn(
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        c_int,
        *mut Answer,
        *mut c_int,
    ) -> c_int,
    algo_get: unsafe extern "C" fn(*const Algo, c_int, *mut c_void, usize, *mut usize) -> c_int,
    #[allow(clippy::type_complexity)]
    matmul: unsafe extern "C" fn(
        Handle,
        Handle,
        *const c_void,
        *const c_void,
        Handle,
        *const c_void,
        Handle,
        *const c_void,
        *const c_void,
        Handle,
        *mut c_void,
        Handle,
        *const Algo,
        *mut c_void,
        usize,
        CUstream,
    ) -> c_int,
}

/// A handle of the library, and the answers it gave.
pub(crate) struct CublasLt {
    functions: Functions,
    handle: Handle,
    answers: Mutex<HashMap<Shape, Option<Algorithm>>>,
}

// SAFETY: the handle may be used from several threads at once, as the library documents.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// What the choice of an algorithm hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Of the weight.
    pub(crate) rows: usize,
    /// Of the weight.
    pub(crate) columns: usize,
    /// Rows of the input.
    pub(crate) num_tokens: usize,
    /// Type of weight and input.
    pub(crate) dtype: DType,
    /// Type of the output.
    pub(crate) out_dtype: DType,
    /// Whether a bias of the output's type is added.
    pub(crate) has_bias: bool,
}

/// The matrices of a product, row-major, with the elements between two rows.
#[derive(Clone, Copy)]
pub(crate) struct Matrices {
    /// `[rows, columns]`.
    pub(crate) weight: (u64, usize),
    /// `[num_tokens, columns]`.
    pub(crate) x: (u64, usize),
    /// `[num_tokens, rows]`.
    pub(crate) out: (u64, usize),
    /// `[rows]`, where the shape has one.
    pub(crate) bias: u64,
}

/// An algorithm of the library.
#[derive(Clone, Copy)]
pub(crate) struct Algorithm {
    algo: Algo,
    /// Device memory that it takes.
    pub(crate) workspace_bytes: usize,
}

impl CublasLt {
    /// Loads the library and makes a handle for the current device.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`], [`Error::NoFunction`]; a status of the library as a lack of it.
    pub(crate) fn open() -> Result<Self, Error> {
        let library = Library::open("cuBLASLt", &FILES)?;
        let functions = Functions::load(&library)?;
        let mut handle = null_mut();
        // SAFETY: one handle is written.
        let status = unsafe { (functions.create)(&mut handle) };
        if status != 0 {
            let reason = format!("cublasLtCreate returned status {status}");
            return Err(Error::NoLibrary { library: "cuBLASLt", tried: library.name().to_owned(), reason });
        }
        Ok(Self { functions, handle, answers: Mutex::default() })
    }

    /// The library's version, e.g. 130100.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: no argument.
        unsafe { (self.functions.version)() }
    }

    /// The algorithm for a shape; `None` where the library has none.
    pub(crate) fn algorithm(&self, shape: Shape) -> Option<Algorithm> {
        let key = Shape { num_tokens: bucket(shape.num_tokens), ..shape };
        *self.answers.lock().entry(key).or_insert_with(|| {
            let answer = self.ask(key);
            self.log(key, answer.as_ref());
            answer
        })
    }

    /// Enqueues a product; the library's status where it refuses.
    ///
    /// # Safety
    ///
    /// The addresses are those of live matrices of this shape, aligned to [`ALIGN`]; the workspace has the bytes that the
    /// algorithm, which was chosen for this shape, asks for.
    pub(crate) unsafe fn multiply(
        &self,
        stream: CUstream,
        shape: Shape,
        matrices: Matrices,
        algorithm: &Algorithm,
        workspace: u64,
    ) -> Result<(), c_int> {
        let Matrices { weight, x, out, bias } = matrices;
        let problem = Problem::new(&self.functions, shape, [weight.1, x.1, out.1], bias)?;
        let (one, zero) = (1.0f32, 0.0f32);
        let _relaxed = Relaxed::enter();
        // SAFETY: the descriptors live through the call; the memory is as the caller promises.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                problem.desc.0,
                (&raw const one).cast(),
                weight.0 as *const c_void,
                problem.weight.0,
                x.0 as *const c_void,
                problem.x.0,
                (&raw const zero).cast(),
                out.0 as *const c_void,
                problem.out.0,
                out.0 as *mut c_void,
                problem.out.0,
                &algorithm.algo,
                workspace as *mut c_void,
                algorithm.workspace_bytes,
                stream,
            )
        };
        ok(status)
    }

    fn ask(&self, shape: Shape) -> Option<Algorithm> {
        let problem = Problem::new(&self.functions, shape, shape.dense_strides(), 0).ok()?;
        let preference = Preference::new(&self.functions).ok()?;
        let mut answer =
            Answer { algo: Algo([0; 8]), workspace_bytes: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let mut num_answers = 0;
        let _relaxed = Relaxed::enter();
        // SAFETY: room for the one answer that is asked for; the descriptors live through the call.
        let status = unsafe {
            (self.functions.heuristic)(
                self.handle,
                problem.desc.0,
                problem.weight.0,
                problem.x.0,
                problem.out.0,
                problem.out.0,
                preference.0.0,
                1,
                &mut answer,
                &mut num_answers,
            )
        };
        let is_usable =
            status == 0 && num_answers == 1 && answer.state == 0 && answer.workspace_bytes <= WORKSPACE_BYTES;
        is_usable.then_some(Algorithm { algo: answer.algo, workspace_bytes: answer.workspace_bytes })
    }

    /// Says what was chosen: part of what a result can depend on.
    fn log(&self, shape: Shape, algorithm: Option<&Algorithm>) {
        let Shape { rows, columns, num_tokens, out_dtype, .. } = shape;
        let Some(algorithm) = algorithm else {
            tracing::warn!(
                target: "quire::kernels",
                "[dispatch] linear {rows}x{columns} of {num_tokens} tokens to {out_dtype}: cuBLASLt has no \
                 algorithm; own kernels, slower"
            );
            return;
        };
        let [id, tile, split_k, stages] = [ALGO_ID, ALGO_TILE, ALGO_SPLIT_K, ALGO_STAGES]
            .map(|attribute| self.attribute(&algorithm.algo, attribute));
        tracing::debug!(
            target: "quire::kernels",
            "[dispatch] linear {rows}x{columns} of {num_tokens} tokens to {out_dtype}: cuBLASLt algorithm {id}, \
             tile {tile}, stages {stages}, split {split_k}, {} bytes of workspace",
            algorithm.workspace_bytes
        );
    }

    fn attribute(&self, algo: &Algo, attribute: c_int) -> c_int {
        let (mut value, mut written): (c_int, usize) = (-1, 0);
        // SAFETY: at most the four bytes of `value` are written.
        unsafe {
            (self.functions.algo_get)(
                algo,
                attribute,
                (&raw mut value).cast(),
                size_of::<c_int>(),
                &mut written,
            )
        };
        value
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: nobody uses the handle any more.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

impl Shape {
    fn dense_strides(&self) -> [usize; 3] {
        [self.columns, self.columns, self.rows]
    }
}

/// Numbers of tokens that share an algorithm: that of the largest of them. Each number of a decode batch has its own.
fn bucket(num_tokens: usize) -> usize {
    let step = match num_tokens {
        0..=64 => 1,
        65..=512 => 16,
        513..=2048 => 64,
        _ => 256,
    };
    num_tokens.next_multiple_of(step)
}

fn ok(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

fn type_of(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => R_32F,
        DType::F16 => R_16F,
        _ => R_16BF,
    }
}

/// A descriptor that is destroyed when dropped.
struct Owned(Handle, unsafe extern "C" fn(Handle) -> c_int);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was made by the matching function and nobody else has it.
        unsafe { (self.1)(self.0) };
    }
}

/// The descriptors of a product. The library's matrices are column-major: `outᵀ [rows, num_tokens] = W · xᵀ`, where W is
/// its transposed `[columns, rows]`.
struct Problem {
    desc: Owned,
    weight: Owned,
    x: Owned,
    out: Owned,
}

impl Problem {
    fn new(
        functions: &Functions,
        shape: Shape,
        [weight_stride, x_stride, out_stride]: [usize; 3],
        bias: u64,
    ) -> Result<Self, c_int> {
        let Shape { rows, columns, num_tokens, dtype, out_dtype, has_bias } = shape;
        let layout = |dtype, rows: usize, columns: usize, stride: usize| {
            let mut raw = null_mut();
            // SAFETY: one handle is written.
            let status = unsafe {
                (functions.layout_create)(
                    &mut raw,
                    type_of(dtype),
                    rows as u64,
                    columns as u64,
                    stride as i64,
                )
            };
            ok(status).map(|()| Owned(raw, functions.layout_destroy))
        };
        let mut raw = null_mut();
        // SAFETY: one handle is written.
        ok(unsafe { (functions.desc_create)(&mut raw, COMPUTE_32F, R_32F) })?;
        let desc = Owned(raw, functions.desc_destroy);
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has that many bytes.
            ok(unsafe { (functions.desc_set)(desc.0, attribute, value, bytes) })
        };
        set(DESC_TRANSA, (&raw const OP_T).cast(), size_of::<c_int>())?;
        if has_bias {
            set(DESC_EPILOGUE, (&raw const EPILOGUE_BIAS).cast(), size_of::<c_int>())?;
            set(DESC_BIAS_POINTER, (&raw const bias).cast(), size_of::<u64>())?;
        }
        Ok(Self {
            weight: layout(dtype, columns, rows, weight_stride)?,
            x: layout(dtype, columns, num_tokens, x_stride)?,
            out: layout(out_dtype, rows, num_tokens, out_stride)?,
            desc,
        })
    }
}

/// What the heuristics may count on.
struct Preference(Owned);

impl Preference {
    fn new(functions: &Functions) -> Result<Self, c_int> {
        let mut raw = null_mut();
        // SAFETY: one handle is written.
        ok(unsafe { (functions.preference_create)(&mut raw) })?;
        let preference = Owned(raw, functions.preference_destroy);
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has that many bytes.
            ok(unsafe { (functions.preference_set)(preference.0, attribute, value, bytes) })
        };
        set(PREFERENCE_WORKSPACE, (&raw const WORKSPACE_BYTES).cast(), size_of::<usize>())?;
        let align = ALIGN as u32;
        for matrix in 0..4 {
            set(PREFERENCE_ALIGN_A + matrix, (&raw const align).cast(), size_of::<u32>())?;
        }
        Ok(Self(preference))
    }
}

impl Functions {
    fn load(library: &Library) -> Result<Self, Error> {
        let find = |symbol: &'static str| {
            library
                .symbol(symbol)
                .ok_or_else(|| Error::NoFunction { library: library.name().to_owned(), symbol })
        };
        /// The function at an address.
        ///
        /// # Safety
        ///
        /// It has the type `F`, a function pointer.
        unsafe fn function<F>(address: *mut c_void) -> F {
            assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function pointer");
            // SAFETY: as the caller promises; the sizes are the same.
            unsafe { std::mem::transmute_copy(&address) }
        }
        // SAFETY: the types are those of cublasLt.h, the same in versions 12 and 13.
        unsafe {
            Ok(Self {
                create: function(find("cublasLtCreate")?),
                destroy: function(find("cublasLtDestroy")?),
                version: function(find("cublasLtGetVersion")?),
                desc_create: function(find("cublasLtMatmulDescCreate")?),
                desc_destroy: function(find("cublasLtMatmulDescDestroy")?),
                desc_set: function(find("cublasLtMatmulDescSetAttribute")?),
                layout_create: function(find("cublasLtMatrixLayoutCreate")?),
                layout_destroy: function(find("cublasLtMatrixLayoutDestroy")?),
                preference_create: function(find("cublasLtMatmulPreferenceCreate")?),
                preference_destroy: function(find("cublasLtMatmulPreferenceDestroy")?),
                preference_set: function(find("cublasLtMatmulPreferenceSetAttribute")?),
                heuristic: function(find("cublasLtMatmulAlgoGetHeuristic")?),
                algo_get: function(find("cublasLtMatmulAlgoConfigGetAttribute")?),
                matmul: function(find("cublasLtMatmul")?),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_tokens_with_little_room() {
        for num_tokens in 1..10_000 {
            let bucket = bucket(num_tokens);
            assert!(bucket >= num_tokens && bucket - num_tokens < 16.max(num_tokens / 7), "{num_tokens}");
        }
        assert_eq!(bucket(37), 37, "a decode batch has its own");
    }

    #[test]
    fn structs_are_as_large_as_the_librarys() {
        assert_eq!((size_of::<Algo>(), size_of::<Answer>()), (64, 96));
    }
}
