//! Lanes as two AVX2 registers.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Runs a kernel compiled for AVX2.
///
/// # Safety
///
/// The processor has the features named here.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: the features are enabled, and there by the caller's promise.
    unsafe { kernel.run::<Avx2>() }
}

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Quads whose products of `bits`-bit weights can be summed in 16 bits: two products of a quad fall in one sum.
const fn quads_in_i16(bits: u32) -> usize {
    match bits {
        // 2 · 15 · 127 each
        ..=4 => 8,
        // 2 · 31 · 127
        5 => 4,
        // 2 · 63 · 127
        6 => 2,
        // 2 · 128 · 127, see `dot`
        _ => 1,
    }
}

// What makes the unsafe blocks below sound: the caller of each function promises the instructions and the memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            let (low, high) = (_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::F {
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    unsafe fn to_f32(value: Self::I) -> Self::F {
        unsafe { [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])] }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::B {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn and(a: Self::B, mask: u8) -> Self::B {
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
        }
    }

    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn shl<const N: i32>(a: Self::B) -> Self::B {
        unsafe { [_mm256_slli_epi16::<N>(a[0]), _mm256_slli_epi16::<N>(a[1])] }
    }

    #[inline(always)]
    unsafe fn shr<const N: i32>(a: Self::B) -> Self::B {
        unsafe { [_mm256_srli_epi16::<N>(a[0]), _mm256_srli_epi16::<N>(a[1])] }
    }

    /// `vpmaddubsw` saturates at 16 bits, so no more is summed there than fits. Weights of 8 bits do not fit even
    /// once; they are taken as signed, the offset removed, and lend their sign to `x`.
    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: u32, const OFFSET: i32>(
        weights: &[Self::B; N],
        x: *const i8,
        sum: i32,
    ) -> Self::I {
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let start = if BITS == 8 { 0 } else { -OFFSET * sum };
            let mut total = [_mm256_set1_epi32(start); 2];
            for (part, weights) in weights.chunks(quads_in_i16(BITS)).enumerate() {
                let mut products = [_mm256_setzero_si256(); 2];
                for (i, weights) in weights.iter().enumerate() {
                    let quad = part * quads_in_i16(BITS) + i;
                    let x = _mm256_set1_epi32(x.add(4 * quad).cast::<i32>().read_unaligned());
                    for half in 0..2 {
                        let product = if BITS == 8 {
                            let signed = _mm256_xor_si256(weights[half], _mm256_set1_epi8(-128));
                            _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
                        } else {
                            _mm256_maddubs_epi16(weights[half], x)
                        };
                        products[half] = _mm256_add_epi16(products[half], product);
                    }
                }
                for half in 0..2 {
                    let sums = _mm256_madd_epi16(products[half], ones);
                    total[half] = _mm256_add_epi32(total[half], sums);
                }
            }
            total
        }
    }
}
