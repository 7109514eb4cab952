//! AVX2 with FMA and F16C: a vector is two registers.

use std::arch::x86_64::*;

use super::{Bytes, LANES, Lanes, Program, Simd, Weights};

/// Proof that the machine has the instructions of [`Isa::Avx2`](crate::Isa::Avx2).
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Runs a program.
///
/// # Safety
///
/// The machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<P: Program>(program: P) -> P::Output {
    program.run(Avx2(()))
}

/// The lower and the upper eight lanes.
type Pair = (__m256, __m256);

/// The lower and the upper eight lanes of integers or bytes.
type IntPair = (__m256i, __m256i);

/// Quads whose products with weights of so many bits can be summed in 16 bits, two products in each sum.
const fn quads_in_16_bits(weight_bits: u32) -> usize {
    match weight_bits {
        // 8 · 2 · 15 · 127 = 30 480
        ..=4 => 8,
        // 4 · 2 · 31 · 127 = 31 496
        5 => 4,
        // 2 · 2 · 63 · 127 = 32 004
        6 => 2,
        // 2 · 128 · 127 = 32 512, without the offset
        _ => 1,
    }
}

impl Simd for Avx2 {
    type V = Pair;
    type I = IntPair;
    type B = IntPair;

    const ACCUMULATORS: usize = 6;

    op! {
        fn splat(value: f32) -> Pair = (_mm256_set1_ps(value), _mm256_set1_ps(value));
        fn load(from: &Lanes) -> Pair = {
            (_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8)))
        };
        fn store(v: Pair, to: &mut Lanes) -> () = {
            _mm256_storeu_ps(to.as_mut_ptr(), v.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v.1);
        };
        fn add(a: Pair, b: Pair) -> Pair = (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
        fn sub(a: Pair, b: Pair) -> Pair = (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
        fn mul(a: Pair, b: Pair) -> Pair = (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
        fn div(a: Pair, b: Pair) -> Pair = (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1));
        fn fma(a: Pair, b: Pair, c: Pair) -> Pair = {
            (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
        };
        fn max(a: Pair, b: Pair) -> Pair = (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
        fn min(a: Pair, b: Pair) -> Pair = (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1));
        fn scale(a: Pair, n: Pair) -> Pair = (scale(a.0, n.0), scale(a.1, n.1));
        fn ge(a: Pair, b: Pair) -> u16 = {
            bits(_mm256_cmp_ps::<_CMP_GE_OQ>(a.0, b.0), _mm256_cmp_ps::<_CMP_GE_OQ>(a.1, b.1))
        };
        fn gt(a: Pair, b: Pair) -> u16 = {
            bits(_mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0), _mm256_cmp_ps::<_CMP_GT_OQ>(a.1, b.1))
        };
        fn select(bits: u16, a: Pair, b: Pair) -> Pair = {
            let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let high = _mm256_slli_epi32::<8>(low);
            let bits = _mm256_set1_epi32(i32::from(bits));
            let chosen = |mask| _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bits, mask), mask));
            (_mm256_blendv_ps(b.0, a.0, chosen(low)), _mm256_blendv_ps(b.1, a.1, chosen(high)))
        };
        fn unzip(a: Pair, b: Pair) -> (Pair, Pair) = {
            let (low, high) = (unzip(a.0, a.1), unzip(b.0, b.1));
            ((low.0, high.0), (low.1, high.1))
        };
        fn zip(even: Pair, odd: Pair) -> (Pair, Pair) = (zip(even.0, odd.0), zip(even.1, odd.1));
        fn load_f16(from: &[u16; LANES]) -> Pair = {
            let halves: *const __m128i = from.as_ptr().cast();
            (_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves.add(1))))
        };
        fn load_bf16(from: &[u16; LANES]) -> Pair = {
            let halves: *const __m128i = from.as_ptr().cast();
            let (low, high) = (_mm_loadu_si128(halves), _mm_loadu_si128(halves.add(1)));
            let widen = |h| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(h)));
            (widen(low), widen(high))
        };
        fn load_f8e4m3(from: &[u8; LANES]) -> Pair = {
            // Read as a half, whose exponent is biased by 8 more, the value is 2^8 too small.
            let (low, high) = decode_halves(f8e4m3_as_halves(_mm_loadu_si128(from.as_ptr().cast())));
            (_mm256_mul_ps(low, _mm256_set1_ps(256.0)), _mm256_mul_ps(high, _mm256_set1_ps(256.0)))
        };
        fn load_f8e5m2(from: &[u8; LANES]) -> Pair = {
            // The upper byte of a half.
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.as_ptr().cast()));
            decode_halves(_mm256_slli_epi16::<8>(bytes))
        };
        fn to_f16(v: Pair) -> [u16; LANES] = {
            let mut halves = [0u16; LANES];
            let to: *mut __m128i = halves.as_mut_ptr().cast();
            _mm_storeu_si128(to, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(to.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
            halves
        };
        fn sum(v: Pair) -> f32 = sum(_mm256_add_ps(v.0, v.1));
        fn to_i8(v: Pair) -> [i8; LANES] = {
            // Packing takes 128 bits of either register in turn.
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let mut bytes = [0; LANES];
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm_packs_epi16(low, high));
            bytes
        };
        fn sum_i8(values: [i8; LANES]) -> i32 = sum_i8(values);
        fn load_u8(from: &[u8; LANES]) -> Pair = {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast()));
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        };
        fn load_i8(from: &[u8; LANES]) -> Pair = {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast()));
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        };
        fn to_float(v: IntPair) -> Pair = (_mm256_cvtepi32_ps(v.0), _mm256_cvtepi32_ps(v.1));
        fn load_bytes(from: &Bytes) -> IntPair = {
            (_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(32).cast()))
        };
        fn mask(a: IntPair, mask: u8) -> IntPair = {
            let mask = _mm256_set1_epi8(mask as i8);
            (_mm256_and_si256(a.0, mask), _mm256_and_si256(a.1, mask))
        };
        fn or(a: IntPair, b: IntPair) -> IntPair = (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1));
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
    fn shl<const N: i32>(self, a: IntPair) -> IntPair {
        // SAFETY: `self` proves that the machine has the instruction.
        unsafe { (_mm256_slli_epi16::<N>(a.0), _mm256_slli_epi16::<N>(a.1)) }
    }

    #[inline(always)]
    fn shr<const N: i32>(self, a: IntPair) -> IntPair {
        // SAFETY: as above.
        unsafe { (_mm256_srli_epi16::<N>(a.0), _mm256_srli_epi16::<N>(a.1)) }
    }

    #[inline(always)]
    fn dots<W: Weights, const N: usize, const R: usize>(
        self,
        weights: &[IntPair; N],
        x: [&[[i8; 4]; N]; R],
        sums: [i32; R],
    ) -> [IntPair; R] {
        // SAFETY: `self` proves that the machine has the instructions.
        let mut totals = unsafe { [(_mm256_setzero_si256(), _mm256_setzero_si256()); R] };
        for r in 0..R {
            // SAFETY: as above.
            totals[r] = unsafe { dot::<W, N>(weights, x[r], sums[r]) };
        }
        totals
    }
}

/// Products are summed in pairs, saturating at 16 bits: so no more is summed there than fits. Weights of 8 bits do
/// not fit even once; they are taken as signed, without their offset, and lend `x` their sign.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot<W: Weights, const N: usize>(weights: &[IntPair; N], x: &[[i8; 4]; N], sum: i32) -> IntPair {
    // SAFETY: the caller's promise.
    unsafe {
        let product = |weights, x| {
            if W::BITS < 8 {
                return _mm256_maddubs_epi16(weights, x);
            }
            let signed = _mm256_xor_si256(weights, _mm256_set1_epi8(i8::MIN));
            _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
        };
        let ones = _mm256_set1_epi16(1);
        let start = _mm256_set1_epi32(if W::BITS < 8 { -W::OFFSET * sum } else { 0 });
        let mut total = (start, start);
        let quads = quads_in_16_bits(W::BITS);
        for (weights, x) in weights.chunks(quads).zip(x.chunks(quads)) {
            let mut pairs = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for (weights, x) in weights.iter().zip(x) {
                let x = _mm256_set1_epi32(i32::from_ne_bytes(x.map(|x| x as u8)));
                pairs.0 = _mm256_add_epi16(pairs.0, product(weights.0, x));
                pairs.1 = _mm256_add_epi16(pairs.1, product(weights.1, x));
            }
            total.0 = _mm256_add_epi32(total.0, _mm256_madd_epi16(pairs.0, ones));
            total.1 = _mm256_add_epi32(total.1, _mm256_madd_epi16(pairs.1, ones));
        }
        total
    }
}

/// `a · 2ⁿ` in two steps, of which only the second one can round.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn scale(a: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let pow2 = |n| {
            let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        _mm256_mul_ps(_mm256_mul_ps(a, pow2(half)), pow2(_mm256_sub_epi32(n, half)))
    }
}

/// One bit a lane.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn bits(low: __m256, high: __m256) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_movemask_ps(low) as u16 | (_mm256_movemask_ps(high) as u16) << 8 }
}

/// Even and odd elements of `a` followed by `b`.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn unzip(a: __m256, b: __m256) -> (__m256, __m256) {
    // SAFETY: the caller's promise.
    unsafe {
        // Each shuffle works within halves: a0 a2 b0 b2 | a4 a6 b4 b6; the quarters are then put in order.
        let in_order = |v| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(v)));
        let even = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
        let odd = _mm256_shuffle_ps::<0b11_01_11_01>(a, b);
        (in_order(even), in_order(odd))
    }
}

/// The inverse of [`unzip`].
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn zip(even: __m256, odd: __m256) -> Pair {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
        (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
    }
}

/// # Safety
///
/// The machine has F16C.
#[inline(always)]
unsafe fn decode_halves(halves: __m256i) -> Pair {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
        (_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
    }
}

/// The sum of the lanes, as a tree of halves.
///
/// # Safety
///
/// The machine has AVX.
#[inline(always)]
pub(super) unsafe fn sum(v: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// The sum of signed bytes: of unsigned ones, made so by adding 128.
///
/// # Safety
///
/// The machine has SSE2.
#[inline(always)]
pub(super) unsafe fn sum_i8(values: [i8; LANES]) -> i32 {
    // SAFETY: the caller's promise; the array is as long as the register.
    unsafe {
        let unsigned = _mm_xor_si128(_mm_loadu_si128(values.as_ptr().cast()), _mm_set1_epi8(i8::MIN));
        let sums = _mm_sad_epu8(unsigned, _mm_setzero_si128());
        _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 128 * LANES as i32
    }
}

/// Sixteen 8-bit floats as halves of the same exponent and mantissa bits, NaN as NaN.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
pub(super) unsafe fn f8e4m3_as_halves(codes: __m128i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = _mm_and_si128(codes, _mm_set1_epi8(0x7f));
        let is_nan = _mm_cmpeq_epi8(magnitude, _mm_set1_epi8(0x7f));
        let sign = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_andnot_si128(magnitude, codes)));
        let nan = _mm256_and_si256(_mm256_cvtepi8_epi16(is_nan), _mm256_set1_epi16(0x7e00));
        let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(magnitude));
        _mm256_or_si256(_mm256_or_si256(sign, nan), shifted)
    }
}
