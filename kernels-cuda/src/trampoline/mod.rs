//! The functions of libcuda and libcuBLAS as symbols of this program.
//!
//! `cust` and `cuda-sys` declare these functions and expect the linker to find them. Linking with the real
//! libraries would make a program that does not start on a machine without a driver. So each name is a
//! trampoline here: at its first call it loads the library and looks the function up, later it only jumps.
//!
//! ```text
//! cuInit:  mov r11d, 0        enter:  TABLE[r11] known?  jump there
//!          jmp enter                  otherwise: save the arguments, resolve(r11), restore, jump
//! ```
//!
//! A call whose library or function is missing returns an error code of that library. The backend asks
//! [`driver`] and [`cublas`] first, so that users get words instead.

mod library;
mod names;

pub(crate) use library::Library;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use names::{NAMES, NUM_SYMBOLS};

use crate::Error;

/// What a trampoline of the driver returns where there is no such function: `CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND`.
const DRIVER_SYMBOL_NOT_FOUND: u32 = 302;

/// What a trampoline of cuBLAS returns there: `CUBLAS_STATUS_NOT_INITIALIZED`.
const CUBLAS_NOT_INITIALIZED: u32 = 1;

/// Addresses of the functions that were called so far.
static TABLE: [AtomicPtr<c_void>; NUM_SYMBOLS] = [const { AtomicPtr::new(null_mut()) }; NUM_SYMBOLS];

/// The driver's library.
///
/// # Errors
///
/// [`Error::NoLibrary`] with the names that were tried.
pub(crate) fn driver() -> Result<&'static Library, Error> {
    static DRIVER: OnceLock<Result<Library, Error>> = OnceLock::new();
    let names = [
        "libcuda.so.1",
        "/usr/lib/wsl/lib/libcuda.so.1",
        "/run/opengl-driver/lib/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
    ];
    DRIVER.get_or_init(|| Library::open("the NVIDIA driver", &names)).as_ref().map_err(Clone::clone)
}

/// cuBLAS.
///
/// # Errors
///
/// [`Error::NoLibrary`] with the names that were tried.
pub(crate) fn cublas() -> Result<&'static Library, Error> {
    static CUBLAS: OnceLock<Result<Library, Error>> = OnceLock::new();
    let names = [
        "libcublas.so.13",
        "libcublas.so.12",
        "/usr/local/cuda/lib64/libcublas.so.13",
        "/usr/local/cuda/lib64/libcublas.so.12",
    ];
    CUBLAS.get_or_init(|| Library::open("cuBLAS", &names)).as_ref().map_err(Clone::clone)
}

/// Looks the function up that stands at `index` of [`NAMES`], and remembers it.
extern "C" fn resolve(index: usize) -> *mut c_void {
    let name = NAMES[index];
    let is_cublas = name.starts_with("cublas");
    let library = if is_cublas { cublas() } else { driver() };
    let found = library.ok().and_then(|library| library.symbol(name));
    let missing = if is_cublas { missing_in_cublas as *mut c_void } else { missing_in_driver as *mut c_void };
    let address = found.unwrap_or(missing);
    TABLE[index].store(address, Ordering::Release);
    address
}

extern "C" fn missing_in_driver() -> u32 {
    DRIVER_SYMBOL_NOT_FOUND
}

extern "C" fn missing_in_cublas() -> u32 {
    CUBLAS_NOT_INITIALIZED
}

/// Jumps to the function of the index in `r11`, with the arguments that its caller passed.
///
/// # Safety
///
/// Only the trampolines jump here.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    std::arch::naked_asm!(
        "lea r10, [rip + {table}]",
        "mov r10, [r10 + 8 * r11]",
        "test r10, r10",
        "jz 2f",
        "jmp r10",
        // The arguments lie in six integer and eight vector registers, and on the stack, which stays as it is.
        "2:",
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "push r11",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {resolve}",
        "mov r10, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r11",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        "jmp r10",
        table = sym TABLE,
        resolve = sym resolve,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_driver_returns_an_error_code() {
        let mut count = -1;
        // SAFETY: the function writes one integer to the address, or nothing.
        let code = unsafe { crate::ffi::cuDeviceGetCount(&mut count) };
        match driver() {
            Ok(_) => assert!(code == 0 || count == -1, "a driver answers for itself"),
            Err(error) => {
                assert_eq!((code, count), (DRIVER_SYMBOL_NOT_FOUND, -1));
                assert!(error.to_string().contains("libcuda.so.1"), "{error}");
            }
        }
    }

    #[test]
    fn the_arguments_survive_the_first_call() {
        extern "C" fn sum(a: u64, b: f64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> f64 {
            (a + 10 * c + 100 * d + 1_000 * e + 10_000 * f + 100_000 * g + 1_000_000 * h) as f64 + b
        }
        // The last index is not called by anybody else.
        let index = NUM_SYMBOLS - 1;
        assert_eq!(NAMES[index], "cublasQuireTest");
        TABLE[index].store(sum as *mut c_void, Ordering::Release);
        // SAFETY: the trampoline jumps to `sum`, which has this type.
        let total = unsafe { names::cublasQuireTest(1, 0.5, 2, 3, 4, 5, 6, 7) };
        assert_eq!(total, 7_654_321.5);
    }
}
