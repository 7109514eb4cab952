//! The functions of the library, as `cublasLt.h` declares them: the same in versions 12 and 13.

use std::ffi::{c_int, c_void};

use super::algorithm::{Algo, Answer};
use crate::Error;
use crate::ffi::CUstream;
use crate::trampoline::Library;

/// Anything of the library's own.
pub(super) type Handle = *mut c_void;

/// The functions of the library.
pub(super) struct Functions {
    pub(super) create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) version: unsafe extern "C" fn() -> usize,
    pub(super) desc_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int,
    pub(super) desc_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) desc_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    pub(super) layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int,
    pub(super) layout_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) preference_create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub(super) preference_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) preference_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    pub(super) heuristic: unsafe extern "C" fn(
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
    /// Algorithm, problem, four layouts: whether the one takes the other, and what memory it needs.
    pub(super) algo_check: unsafe extern "C" fn(
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        *const Algo,
        *mut Answer,
    ) -> c_int,
    pub(super) algo_get: unsafe extern "C" fn(*const Algo, c_int, *mut c_void, usize, *mut usize) -> c_int,
    #[allow(clippy::type_complexity)]
    pub(super) matmul: unsafe extern "C" fn(
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

impl Functions {
    /// Finds them.
    ///
    /// # Errors
    ///
    /// [`Error::NoFunction`].
    pub(super) fn load(library: &Library) -> Result<Self, Error> {
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
                algo_check: function(find("cublasLtMatmulAlgoCheck")?),
                algo_get: function(find("cublasLtMatmulAlgoConfigGetAttribute")?),
                matmul: function(find("cublasLtMatmul")?),
            })
        }
    }
}

/// A status as a result.
pub(super) fn ok(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}
