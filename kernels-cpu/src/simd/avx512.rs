//! Lanes as one AVX-512 register, with VNNI's products of bytes.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Runs a kernel compiled for AVX-512.
///
/// # Safety
///
/// The processor has the features named here.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: the features are enabled, and there by the caller's promise.
    unsafe { kernel.run::<Avx512>() }
}

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// What makes the unsafe blocks below sound: the caller of each function promises the instructions and the memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn to_f32(value: Self::I) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::B {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn and(a: Self::B, mask: u8) -> Self::B {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn shl<const N: i32>(a: Self::B) -> Self::B {
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(N)) }
    }

    #[inline(always)]
    unsafe fn shr<const N: i32>(a: Self::B) -> Self::B {
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(N)) }
    }

    /// `vpdpbusd` takes unsigned weights and signed `x`, and sums four products without saturating.
    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: u32, const OFFSET: i32>(
        weights: &[Self::B; N],
        x: *const i8,
        sum: i32,
    ) -> Self::I {
        unsafe {
            let mut total = _mm512_set1_epi32(-OFFSET * sum);
            for (quad, weights) in weights.iter().enumerate() {
                let x = _mm512_set1_epi32(x.add(4 * quad).cast::<i32>().read_unaligned());
                total = _mm512_dpbusd_epi32(total, *weights, x);
            }
            total
        }
    }
}
