//! Plain Rust: arrays, which the compiler turns into what the target guarantees.

use std::array;

use quire_kernels::convert;

use super::{Bytes, LANES, Lanes, Simd, Weights};

/// Proof of nothing: every machine can.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

#[inline(always)]
fn map2(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn bits(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> bool) -> u16 {
    (0..LANES).fold(0, |bits, i| bits | u16::from(f(a[i], b[i])) << i)
}

/// `2ⁿ` for `|n| <= 126`.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Simd for Scalar {
    type V = Lanes;
    type I = [i32; LANES];
    type B = Bytes;

    // Where there are faster kernels these only have to be right, and small.
    const ACCUMULATORS: usize = if cfg!(target_arch = "x86_64") { 1 } else { 6 };

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &Lanes) -> Lanes {
        *from
    }

    #[inline(always)]
    fn store(self, v: Lanes, to: &mut Lanes) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        map2(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        map2(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        map2(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        map2(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        map2(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        map2(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn scale(self, a: Lanes, n: Lanes) -> Lanes {
        // In two steps, of which only the second one can round.
        map2(a, n, |a, n| a * pow2(n as i32 / 2) * pow2(n as i32 - n as i32 / 2))
    }

    #[inline(always)]
    fn ge(self, a: Lanes, b: Lanes) -> u16 {
        bits(a, b, |a, b| a >= b)
    }

    #[inline(always)]
    fn gt(self, a: Lanes, b: Lanes) -> u16 {
        bits(a, b, |a, b| a > b)
    }

    #[inline(always)]
    fn select(self, bits: u16, a: Lanes, b: Lanes) -> Lanes {
        array::from_fn(|i| if bits >> i & 1 == 1 { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn unzip(self, a: Lanes, b: Lanes) -> (Lanes, Lanes) {
        let at = |i: usize| if i < LANES { a[i] } else { b[i - LANES] };
        (array::from_fn(|i| at(2 * i)), array::from_fn(|i| at(2 * i + 1)))
    }

    #[inline(always)]
    fn zip(self, even: Lanes, odd: Lanes) -> (Lanes, Lanes) {
        let at = |i: usize| if i.is_multiple_of(2) { even[i / 2] } else { odd[i / 2] };
        (array::from_fn(at), array::from_fn(|i| at(i + LANES)))
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Lanes {
        from.map(convert::f16_to_f32)
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Lanes {
        from.map(convert::bf16_to_f32)
    }

    #[inline(always)]
    fn load_f8e4m3(self, from: &[u8; LANES]) -> Lanes {
        from.map(convert::f8e4m3_to_f32)
    }

    #[inline(always)]
    fn load_f8e5m2(self, from: &[u8; LANES]) -> Lanes {
        from.map(convert::f8e5m2_to_f32)
    }

    #[inline(always)]
    fn to_f16(self, v: Lanes) -> [u16; LANES] {
        v.map(convert::f32_to_f16)
    }

    #[inline(always)]
    fn to_i8(self, v: Lanes) -> [i8; LANES] {
        v.map(|v| v.round_ties_even() as i8)
    }

    #[inline(always)]
    fn sum_i8(self, values: [i8; LANES]) -> i32 {
        values.into_iter().map(i32::from).sum()
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Lanes {
        from.map(f32::from)
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Lanes {
        from.map(|v| f32::from(v as i8))
    }

    #[inline(always)]
    fn to_float(self, v: Self::I) -> Lanes {
        v.map(|v| v as f32)
    }

    #[inline(always)]
    fn load_bytes(self, from: &Bytes) -> Bytes {
        *from
    }

    #[inline(always)]
    fn mask(self, a: Bytes, mask: u8) -> Bytes {
        a.map(|v| v & mask)
    }

    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shl<const N: i32>(self, a: Bytes) -> Bytes {
        a.map(|v| v << N)
    }

    #[inline(always)]
    fn shr<const N: i32>(self, a: Bytes) -> Bytes {
        a.map(|v| v >> N)
    }

    #[inline(always)]
    fn dots<W: Weights, const N: usize, const R: usize>(
        self,
        weights: &[Bytes; N],
        x: [&[[i8; 4]; N]; R],
        sums: [i32; R],
    ) -> [[i32; LANES]; R] {
        let dot = |x: &[[i8; 4]; N], sum: i32, lane: usize| {
            let mut total = -W::OFFSET * sum;
            for (weights, x) in weights.iter().zip(x) {
                for (weight, x) in weights[4 * lane..4 * lane + 4].iter().zip(x) {
                    total += i32::from(*weight) * i32::from(*x);
                }
            }
            total
        };
        array::from_fn(|r| array::from_fn(|lane| dot(x[r], sums[r], lane)))
    }
}
