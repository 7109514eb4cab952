//! cuBLASLt, bound at run time: matrix products `out = x Wᵀ (+ bias)` with the first answer of its heuristics, or with one
//! that was measured to be faster ([`crate::KernelTuning`]).
//!
//! The answer is asked for once a shape; the number of tokens is rounded up to a bucket, so that a server with
//! requests of every length asks a few dozen times. Asking is host work and may happen while a graph is recorded. The
//! answer hangs on the shape, the library's version and the device alone.

mod algorithm;
mod functions;
mod problem;
mod shape;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use parking_lot::Mutex;

use self::algorithm::Answer;
pub(crate) use self::algorithm::{Algo, Algorithm, AlgorithmName};
use self::functions::{Functions, Handle, ok};
use self::problem::{Preference, Problem};
pub(crate) use self::shape::Shape;
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

/// A handle of the library, and the answers it gave.
pub(crate) struct CublasLt {
    functions: Functions,
    handle: Handle,
    answers: Mutex<HashMap<Shape, Option<Algorithm>>>,
    /// Algorithms that are taken rather than the first answer, by the shape as it is rounded.
    tuned: HashMap<Shape, Algo>,
}

// SAFETY: the handle may be used from several threads at once, as the library documents.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

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
            let tried = format!("{}: {reason}", library.name());
            return Err(Error::NoLibrary { library: "cuBLASLt", tried });
        }
        Ok(Self { functions, handle, answers: Mutex::default(), tuned: HashMap::new() })
    }

    /// Takes these algorithms rather than the first answers.
    pub(crate) fn tune(&mut self, products: impl IntoIterator<Item = (Shape, Algo)>) {
        self.tuned = products.into_iter().map(|(shape, algo)| (shape.bucketed(), algo)).collect();
        self.answers.lock().clear();
    }

    /// The library's version, e.g. 130100.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: no argument.
        unsafe { (self.functions.version)() }
    }

    /// The algorithm for a shape; `None` where the library has none.
    pub(crate) fn algorithm(&self, shape: Shape) -> Option<Algorithm> {
        let shape = shape.bucketed();
        *self.answers.lock().entry(shape).or_insert_with(|| {
            let tuned = self.tuned.get(&shape).and_then(|algo| self.checked(shape, algo));
            let answer = tuned.or_else(|| self.candidates(shape, 1).pop());
            log(shape, answer.map(|answer| self.name(&answer)), tuned.is_some());
            answer
        })
    }

    /// The first answers of the heuristics, the best first: those that can be used.
    pub(crate) fn candidates(&self, shape: Shape, max_candidates: usize) -> Vec<Algorithm> {
        self.ask(shape.bucketed(), max_candidates).unwrap_or_default()
    }

    /// What an algorithm is.
    pub(crate) fn name(&self, algorithm: &Algorithm) -> AlgorithmName {
        AlgorithmName::of(&self.functions, &algorithm.algo)
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

    fn ask(&self, shape: Shape, max_candidates: usize) -> Result<Vec<Algorithm>, c_int> {
        let problem = Problem::new(&self.functions, shape, shape.dense_strides(), 0)?;
        let preference = Preference::new(&self.functions)?;
        let mut answers = vec![Answer::BLANK; max_candidates];
        let mut num_answers: c_int = 0;
        let _relaxed = Relaxed::enter();
        // SAFETY: room for the answers that are asked for; the descriptors live through the call.
        ok(unsafe {
            (self.functions.heuristic)(
                self.handle,
                problem.desc.0,
                problem.weight.0,
                problem.x.0,
                problem.out.0,
                problem.out.0,
                preference.0.0,
                max_candidates as c_int,
                answers.as_mut_ptr(),
                &mut num_answers,
            )
        })?;
        answers.truncate(usize::try_from(num_answers).unwrap_or(0));
        Ok(answers.iter().filter_map(|answer| answer.algorithm(WORKSPACE_BYTES)).collect())
    }

    /// An algorithm that came from a file, where the library takes it for the shape.
    fn checked(&self, shape: Shape, algo: &Algo) -> Option<Algorithm> {
        let problem = Problem::new(&self.functions, shape, shape.dense_strides(), 0).ok()?;
        let mut answer = Answer::BLANK;
        let _relaxed = Relaxed::enter();
        // SAFETY: one answer is written; the descriptors live through the call.
        let status = unsafe {
            (self.functions.algo_check)(
                self.handle,
                problem.desc.0,
                problem.weight.0,
                problem.x.0,
                problem.out.0,
                problem.out.0,
                algo,
                &mut answer,
            )
        };
        let checked =
            ok(status).ok().and_then(|()| Answer { algo: *algo, ..answer }.algorithm(WORKSPACE_BYTES));
        if checked.is_none() {
            tracing::warn!(
                target: "quire::kernels",
                "[dispatch] cuBLASLt does not take the tuned algorithm for {shape} (status {status}); its own choice instead"
            );
        }
        checked
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: nobody uses the handle any more.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// Says what was chosen: part of what a result can depend on.
fn log(shape: Shape, chosen: Option<AlgorithmName>, is_tuned: bool) {
    let Some(chosen) = chosen else {
        tracing::warn!(
            target: "quire::kernels",
            "[dispatch] linear {shape}: cuBLASLt has no algorithm; own kernels, slower"
        );
        return;
    };
    let because = if is_tuned { "it was measured" } else { "its heuristics say so" };
    tracing::debug!(target: "quire::kernels", "[dispatch] linear {shape}: cuBLASLt {chosen} because {because}");
}
