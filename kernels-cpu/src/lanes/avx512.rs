//! AVX-512 F, BW, VL and VNNI: a vector is a register.

use std::arch::x86_64::*;

use super::{Bytes, LANES, Lanes, Program, Simd, Weights};

/// Proof that the machine has the instructions of [`Isa::Avx512`](crate::Isa::Avx512).
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Runs a program.
///
/// # Safety
///
/// The machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn run<P: Program>(program: P) -> P::Output {
    program.run(Avx512(()))
}

impl Simd for Avx512 {
    type V = __m512;
    type I = __m512i;
    type B = __m512i;

    const ACCUMULATORS: usize = 24;

    op! {
        fn splat(value: f32) -> __m512 = _mm512_set1_ps(value);
        fn load(from: &Lanes) -> __m512 = _mm512_loadu_ps(from.as_ptr());
        fn store(v: __m512, to: &mut Lanes) -> () = _mm512_storeu_ps(to.as_mut_ptr(), v);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn scale(a: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(a, n);
        fn ge(a: __m512, b: __m512) -> u16 = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b);
        fn gt(a: __m512, b: __m512) -> u16 = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b);
        fn select(bits: u16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(bits, b, a);
        fn unzip(a: __m512, b: __m512) -> (__m512, __m512) = {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        };
        fn zip(even: __m512, odd: __m512) -> (__m512, __m512) = {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            (_mm512_permutex2var_ps(even, low, odd), _mm512_permutex2var_ps(even, high, odd))
        };
        fn load_f16(from: &[u16; LANES]) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()));
        fn load_bf16(from: &[u16; LANES]) -> __m512 = {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        };
        fn load_f8e4m3(from: &[u8; LANES]) -> __m512 = {
            // Read as a half, whose exponent is biased by 8 more, the value is 2^8 too small.
            let halves = super::avx2::f8e4m3_as_halves(_mm_loadu_si128(from.as_ptr().cast()));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        };
        fn load_f8e5m2(from: &[u8; LANES]) -> __m512 = {
            // The upper byte of a half.
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.as_ptr().cast()));
            _mm512_cvtph_ps(_mm256_slli_epi16::<8>(bytes))
        };
        fn to_f16(v: __m512) -> [u16; LANES] = {
            let mut halves = [0; LANES];
            let bits = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(halves.as_mut_ptr().cast(), bits);
            halves
        };
        fn largest(v: __m512) -> f32 = _mm512_reduce_max_ps(v);
        fn sum(v: __m512) -> f32 = {
            let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            super::avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), upper))
        };
        fn to_i8(v: __m512) -> [i8; LANES] = {
            let mut bytes = [0; LANES];
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
            bytes
        };
        fn sum_i8(values: [i8; LANES]) -> i32 = super::avx2::sum_i8(values);
        fn load_u8(from: &[u8; LANES]) -> __m512 = {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())))
        };
        fn load_i8(from: &[u8; LANES]) -> __m512 = {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())))
        };
        fn to_float(v: __m512i) -> __m512 = _mm512_cvtepi32_ps(v);
        fn load_bytes(from: &Bytes) -> __m512i = _mm512_loadu_si512(from.as_ptr().cast());
        fn mask(a: __m512i, mask: u8) -> __m512i = _mm512_and_si512(a, _mm512_set1_epi8(mask as i8));
        fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
    }

    #[inline(always)]
    fn prefetch<T>(self, here: &T, ahead: usize) {
        let lines = size_of::<T>().div_ceil(64);
        for line in 0..lines {
            let address = std::ptr::from_ref(here).cast::<i8>().wrapping_add(ahead + 64 * line);
            // SAFETY: a hint, which reads nothing and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
        }
    }

    #[inline(always)]
    fn shl<const N: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has the instruction.
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(N)) }
    }

    #[inline(always)]
    fn shr<const N: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(N)) }
    }

    /// VNNI multiplies unsigned bytes with signed ones and adds up four products without saturating. The offset
    /// is in the sum before the first product. Rows take turns, so that none waits for its own last product.
    #[inline(always)]
    fn dots<W: Weights, const N: usize, const R: usize>(
        self,
        weights: &[__m512i; N],
        x: [&[[i8; 4]; N]; R],
        sums: [i32; R],
    ) -> [__m512i; R] {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let mut totals = sums.map(|sum| _mm512_set1_epi32(-W::OFFSET * sum));
            for (j, weights) in weights.iter().enumerate() {
                for r in 0..R {
                    let x = _mm512_set1_epi32(i32::from_ne_bytes(x[r][j].map(|x| x as u8)));
                    totals[r] = _mm512_dpbusd_epi32(totals[r], *weights, x);
                }
            }
            totals
        }
    }
}
