//! Result codes of the driver.

use std::ffi::{CStr, c_char};
use std::ptr::null;

use crate::ffi;

/// A call of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({text})")]
pub struct DriverError {
    /// The function.
    pub call: &'static str,
    /// Its result.
    pub code: u32,
    /// The result's name, e.g. `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// What the driver says about it.
    pub text: String,
}

/// Turns a result into an error, unless it is a success.
pub(crate) fn check(call: &'static str, code: u32) -> Result<(), DriverError> {
    if code == ffi::SUCCESS { Ok(()) } else { Err(DriverError::new(call, code)) }
}

impl DriverError {
    #[cold]
    pub(crate) fn new(call: &'static str, code: u32) -> Self {
        let name = describe(code, ffi::cuGetErrorName).unwrap_or_else(|| format!("CUDA error {code}"));
        let text = describe(code, ffi::cuGetErrorString).unwrap_or_else(|| "no description".to_owned());
        Self { call, code, name, text }
    }

    /// A failure of `cust`, whose errors are these codes.
    pub(crate) fn from_cust(call: &'static str, error: cust::error::CudaError) -> Self {
        Self::new(call, error as u32)
    }

    /// As a failure of `device`.
    pub(crate) fn on(self, device: &str) -> quire_kernels::Error {
        quire_kernels::Error::DeviceLost { device: device.to_owned(), reason: self.to_string() }
    }
}

fn describe(code: u32, ask: unsafe extern "C" fn(u32, *mut *const c_char) -> u32) -> Option<String> {
    let mut text = null();
    // SAFETY: the function writes a pointer to a text of the driver, or nothing.
    let code = unsafe { ask(code, &mut text) };
    if code != ffi::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: a text that ends with a zero and lives as long as the driver.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
