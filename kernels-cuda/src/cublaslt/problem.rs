//! Descriptors of a product.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use quire_kernels::DType;

use super::functions::{Functions, Handle, ok};
use super::shape::Shape;
use super::{ALIGN, WORKSPACE_BYTES};

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

/// A descriptor that is destroyed when dropped.
pub(super) struct Owned(pub(super) Handle, unsafe extern "C" fn(Handle) -> c_int);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was made by the matching function and nobody else has it.
        unsafe { (self.1)(self.0) };
    }
}

/// The descriptors of a product. The library's matrices are column-major: `outᵀ [rows, num_tokens] = W · xᵀ`, where W is
/// its transposed `[columns, rows]`.
pub(super) struct Problem {
    pub(super) desc: Owned,
    pub(super) weight: Owned,
    pub(super) x: Owned,
    pub(super) out: Owned,
}

impl Problem {
    pub(super) fn new(
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
pub(super) struct Preference(pub(super) Owned);

impl Preference {
    pub(super) fn new(functions: &Functions) -> Result<Self, c_int> {
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

fn type_of(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => R_32F,
        DType::F16 => R_16F,
        _ => R_16BF,
    }
}
