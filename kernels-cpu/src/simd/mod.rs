//! Sixteen lanes, written once for every instruction set.
//!
//! A kernel is a [`Kernel`]: code generic over [`Simd`], every function of which is `inline(always)`, so that it
//! ends up in the one function of [`run`] that was compiled with the instructions its intrinsics need. The
//! operations mean the same on every instruction set, fused multiply-add included, so that results are equal
//! bit for bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use crate::Isa;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Operations on sixteen lanes.
///
/// # Safety
///
/// Every function needs the instructions of the implementing type, which [`run`] makes sure of. Those that take a
/// pointer need as many readable (or writable) elements there as they name; no alignment is needed.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Simd: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes: four a lane.
    type B: Copy;

    /// Whether there are 32 registers of sixteen lanes, which decides how large a tile is.
    const WIDE: bool;

    unsafe fn splat(value: f32) -> Self::F;
    /// Reads 16 f32.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Reads 16 IEEE halves.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// Reads 16 bfloat16.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// Reads 16 bytes.
    unsafe fn load_u8(from: *const u8) -> Self::F;
    /// Reads 16 signed bytes.
    unsafe fn load_i8(from: *const i8) -> Self::F;
    /// Writes 16 f32.
    unsafe fn store(to: *mut f32, value: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn to_f32(value: Self::I) -> Self::F;

    /// Reads 64 bytes.
    unsafe fn load_bytes(from: *const u8) -> Self::B;
    /// Each byte and `mask`.
    unsafe fn and(a: Self::B, mask: u8) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// Shifts by `N` bits; what the bits that cross from byte to byte become is undefined.
    unsafe fn shl<const N: i32>(a: Self::B) -> Self::B;
    /// As [`shl`](Self::shl), to the right.
    unsafe fn shr<const N: i32>(a: Self::B) -> Self::B;

    /// For each lane the exact sum over `N` quads of `(weight - OFFSET) · x`: a quad is four bytes of a lane and
    /// four consecutive values of `x`, the same for all lanes.
    ///
    /// Weights are below 2^BITS, values of `x` from -127 to 127 and `sum` their sum; `OFFSET` is 128 where `BITS`
    /// is 8. Reads `4 * N` bytes of `x`.
    unsafe fn dot<const N: usize, const BITS: u32, const OFFSET: i32>(
        weights: &[Self::B; N],
        x: *const i8,
        sum: i32,
    ) -> Self::I;
}

/// Code to be compiled for every instruction set.
pub(crate) trait Kernel {
    /// The code, `inline(always)` like all that it calls.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `S`.
    unsafe fn run<S: Simd>(self);
}

/// Runs a kernel with the instructions of `isa`.
///
/// # Panics
///
/// Where this machine does not have them.
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) {
    debug_assert!(isa.is_available(), "{isa} is not available");
    match isa {
        // SAFETY: scalar code needs no special instructions.
        Isa::Scalar => unsafe { kernel.run::<scalar::Scalar>() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: devices are only built for an instruction set that is available.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{isa} is not an instruction set of this architecture"),
    }
}
