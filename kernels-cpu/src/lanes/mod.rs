//! Sixteen floats at a time, on every instruction set.
//!
//! A kernel is a [`Program`]: written once over [`Simd`], compiled once an instruction set, started by [`run`].
//! A vector always has [`LANES`] lanes, whatever the registers hold (one on AVX-512, two on AVX2, an array in
//! plain Rust), and every operation is exactly rounded or made of ones that are. So a program gives the same
//! bits on every instruction set, and what it computes does not depend on the machine.
//!
//! A value of a `Simd` type is the proof that the machine has the instructions; [`run`] alone makes them.

/// Methods of a [`Simd`] type that are one expression of intrinsics each.
#[cfg(target_arch = "x86_64")]
macro_rules! op {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $result {
            // SAFETY: `self` proves that the machine has the instructions; what is read or written through a
            // pointer is the array behind a reference.
            unsafe { $body }
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;
mod slices;

use std::f32::consts::LOG2_E;

use crate::Isa;

pub(crate) use slices::{Lanewise, map2, update};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// One value a lane.
pub(crate) type Lanes = [f32; LANES];

/// Four bytes a lane.
pub(crate) type Bytes = [u8; 4 * LANES];

/// A kernel, to be compiled for each instruction set.
///
/// Implementations of `run`, and the functions over [`Simd`] that they call, are `#[inline(always)]`: only what
/// is inlined into the entry of an instruction set is compiled for it.
pub(crate) trait Program {
    /// What it returns.
    type Output;

    /// The work.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a program with the instructions of `isa`, which this machine has: that is checked where a device is made.
#[inline]
pub(crate) fn run<P: Program>(isa: Isa, program: P) -> P::Output {
    debug_assert!(isa.is_available(), "a device was made for {isa}, which this machine has not");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions.
        Isa::Avx512 => unsafe { avx512::run(program) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions.
        Isa::Avx2 => unsafe { avx2::run(program) },
        _ => program.run(scalar::Scalar),
    }
}

/// The range of the weights in [`dots`](Simd::dots).
pub(crate) trait Weights {
    /// They are less than 2 to this power.
    const BITS: u32;
    /// What is subtracted from them; 128 if they have 8 bits.
    const OFFSET: i32;
}

/// Operations on vectors of [`LANES`] floats.
///
/// Comparisons give one bit a lane, that of lane 0 the lowest, and are false for a NaN.
pub(crate) trait Simd: Copy + Send + Sync {
    /// A vector.
    type V: Copy;
    /// An i32 a lane.
    type I: Copy;
    /// Four bytes a lane.
    type B: Copy;

    /// Vectors that a loop may accumulate in registers, beside the operands of its products.
    const ACCUMULATORS: usize;

    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &Lanes) -> Self::V;
    fn store(self, v: Self::V, to: &mut Lanes);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger one; `b` where one is a NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` where one is a NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · 2ⁿ`, rounded once, for whole `|n| <= 252`.
    fn scale(self, a: Self::V, n: Self::V) -> Self::V;

    /// `a >= b`.
    fn ge(self, a: Self::V, b: Self::V) -> u16;
    /// `a > b`.
    fn gt(self, a: Self::V, b: Self::V) -> u16;
    /// Lanes of `a` where the bit is set, of `b` elsewhere.
    fn select(self, bits: u16, a: Self::V, b: Self::V) -> Self::V;

    /// The elements of even and of odd index of `a` followed by `b`.
    fn unzip(self, a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// The inverse of [`unzip`](Self::unzip).
    fn zip(self, even: Self::V, odd: Self::V) -> (Self::V, Self::V);

    fn load_f16(self, from: &[u16; LANES]) -> Self::V;
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V;
    fn load_f8e4m3(self, from: &[u8; LANES]) -> Self::V;
    fn load_f8e5m2(self, from: &[u8; LANES]) -> Self::V;
    fn to_f16(self, v: Self::V) -> [u16; LANES];
    /// Rounded to the nearest integer, ties to the even one, of lanes within ±127; others become anything.
    fn to_i8(self, v: Self::V) -> [i8; LANES];
    fn sum_i8(self, values: [i8; LANES]) -> i32;
    fn load_u8(self, from: &[u8; LANES]) -> Self::V;
    fn load_i8(self, from: &[u8; LANES]) -> Self::V;
    /// Rounded to the nearest float.
    fn to_float(self, v: Self::I) -> Self::V;

    fn load_bytes(self, from: &Bytes) -> Self::B;
    /// Each byte and `mask`.
    fn mask(self, a: Self::B, mask: u8) -> Self::B;
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Bytes shifted left by `N < 8` bits; a byte's lowest `N` bits are undefined.
    fn shl<const N: i32>(self, a: Self::B) -> Self::B;
    /// Bytes shifted right by `N < 8` bits; a byte's highest `N` bits are undefined.
    fn shr<const N: i32>(self, a: Self::B) -> Self::B;
    /// For each of `R` rows the exact sum over all quads of `(weight - offset) · x`: a quad is the four bytes of
    /// a lane, and four bytes of `x` for all lanes alike. The `x` lie within ±127, and `sums` are theirs.
    fn dots<W: Weights, const N: usize, const R: usize>(
        self,
        weights: &[Self::B; N],
        x: [&[[i8; 4]; N]; R],
        sums: [i32; R],
    ) -> [Self::I; R];

    /// Starts to fetch what lies `ahead` bytes after the start of `here`, if that is memory at all. For streams:
    /// too much of what waits for memory at once would fill the processor before the next request goes out.
    #[inline(always)]
    fn prefetch<T>(self, here: &T, ahead: usize) {
        let _ = (here, ahead);
    }

    /// Zero in every lane.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// The lanes as an array.
    #[inline(always)]
    fn lanes(self, v: Self::V) -> Lanes {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        lanes
    }

    /// The first lanes from a slice of fewer than [`LANES`] elements, `fill` in the others.
    #[inline(always)]
    fn load_head(self, from: &[f32], fill: f32) -> Self::V {
        let mut lanes = [fill; LANES];
        lanes[..from.len()].copy_from_slice(from);
        self.load(&lanes)
    }

    /// The first lanes to a slice of fewer than [`LANES`] elements.
    #[inline(always)]
    fn store_head(self, v: Self::V, to: &mut [f32]) {
        let len = to.len();
        to.copy_from_slice(&self.lanes(v)[..len]);
    }

    /// The sum of all lanes, as a tree of halves.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        self.fold(v, |a, b| a + b)
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        self.fold(v, |a, b| if a > b { a } else { b })
    }

    /// All lanes as one, the upper half onto the lower one until one is left.
    #[inline(always)]
    fn fold(self, v: Self::V, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.lanes(v);
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] = f(lanes[i], lanes[i + width]);
            }
        }
        lanes[0]
    }

    /// `eˣ` within 1.1 ulp; exactly 1 for 0, 0 for -∞, ∞ where it overflows, NaN for NaN.
    ///
    /// The argument is reduced to `|r| <= ln 2 / 2` by subtracting a whole multiple of ln 2 in two parts (Cody
    /// and Waite, 1980); there the exponential is `1 + r + r² q(r)`, `q` of degree 4 through the Chebyshev nodes
    /// of the interval: off by 1e-8 of the value.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        /// ln 2 with 12 bits less, so that its multiples are exact, and what is missing.
        const LN_2_HIGH: f32 = 0.693_115_23;
        const LN_2_LOW: f32 = 3.194_618_3e-5;
        /// Adding it leaves no room for a fraction: the sum is rounded to a whole number, ties to even.
        const ROUND: f32 = 12_582_912.0;
        const Q: [f32; 5] = [1.392_618_4e-3, 8.363_179e-3, 4.166_655_6e-2, 1.666_657_6e-1, 0.5];

        let x = self.max(self.splat(-110.0), self.min(self.splat(90.0), x));
        let n = self.sub(self.fma(x, self.splat(LOG2_E), self.splat(ROUND)), self.splat(ROUND));
        let r = self.fma(n, self.splat(-LN_2_LOW), self.fma(n, self.splat(-LN_2_HIGH), x));
        let mut q = self.splat(Q[0]);
        for c in &Q[1..] {
            q = self.fma(q, r, self.splat(*c));
        }
        let tail = self.fma(self.mul(q, r), r, r);
        self.scale(self.add(tail, self.splat(1.0)), n)
    }
}

#[cfg(test)]
mod tests {
    use quire_kernels::convert;

    use super::*;

    /// Runs `f` on every instruction set of this machine.
    macro_rules! on_every_isa {
        (|$simd:ident| $body:expr) => {{
            struct Body;
            impl Program for Body {
                type Output = ();
                #[inline(always)]
                fn run<S: Simd>(self, $simd: S) {
                    $body
                }
            }
            Isa::available().into_iter().for_each(|isa| run(isa, Body));
        }};
    }

    fn ramp(start: f32, step: f32) -> Lanes {
        std::array::from_fn(|i| start + step * i as f32)
    }

    fn ulps(got: f32, want: f64) -> f64 {
        let want_f32 = want as f32;
        let spacing = f64::from(want_f32.abs().next_up()) - f64::from(want_f32.abs());
        (f64::from(got) - want).abs() / spacing
    }

    #[test]
    fn the_exponential_is_within_about_an_ulp() {
        on_every_isa!(|s| {
            let mut worst: f64 = 0.0;
            for i in 0..20_000 {
                let x = ramp(-103.0 + i as f32 * 0.0095, 0.0006);
                for (y, x) in s.lanes(s.exp(s.load(&x))).into_iter().zip(x) {
                    let want = f64::from(x).exp();
                    if want < f64::from(f32::MAX) {
                        worst = worst.max(ulps(y, want));
                    }
                }
            }
            assert!(worst < 1.1, "off by {worst} ulp");
        });
    }

    #[test]
    fn the_exponential_has_exact_ends() {
        on_every_isa!(|s| {
            let exp = |x: f32| s.lanes(s.exp(s.splat(x)))[3];
            assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
            assert_eq!((exp(f32::NEG_INFINITY), exp(-1e30), exp(f32::MIN)), (0.0, 0.0, 0.0));
            assert_eq!((exp(f32::INFINITY), exp(100.0)), (f32::INFINITY, f32::INFINITY));
            assert!(exp(f32::NAN).is_nan());
        });
    }

    #[test]
    fn the_exponential_has_the_same_bits_everywhere() {
        struct Exp(Lanes);
        impl Program for Exp {
            type Output = [u32; LANES];
            #[inline(always)]
            fn run<S: Simd>(self, s: S) -> [u32; LANES] {
                s.lanes(s.exp(s.load(&self.0))).map(f32::to_bits)
            }
        }
        for i in 0..5000 {
            let x = ramp(-112.0 + i as f32 * 0.041, 0.0031);
            let bits: Vec<_> = Isa::available().into_iter().map(|isa| run(isa, Exp(x))).collect();
            assert!(bits.iter().all(|b| *b == bits[0]), "exp of {x:?}");
        }
    }

    #[test]
    fn lanes_are_compared_selected_and_reordered() {
        on_every_isa!(|s| {
            let (a, b) = (s.load(&ramp(0.0, 1.0)), s.splat(5.0));
            assert_eq!((s.ge(a, b), s.gt(a, b)), (0xffe0, 0xffc0));
            assert_eq!(s.ge(a, s.splat(f32::NAN)), 0);
            let selected = s.lanes(s.select(0x8001, a, b));
            assert_eq!((selected[0], selected[1], selected[15]), (0.0, 5.0, 15.0));
            let (even, odd) = s.unzip(a, s.load(&ramp(16.0, 1.0)));
            assert_eq!((s.lanes(even), s.lanes(odd)), (ramp(0.0, 2.0), ramp(1.0, 2.0)));
            let (low, high) = s.zip(even, odd);
            assert_eq!((s.lanes(low), s.lanes(high)), (ramp(0.0, 1.0), ramp(16.0, 1.0)));
            assert_eq!((s.sum(a), s.largest(a)), (120.0, 15.0));
            let nan = s.splat(f32::NAN);
            assert_eq!((s.lanes(s.max(nan, b))[0], s.lanes(s.min(nan, b))[7]), (5.0, 5.0));
        });
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    #[test]
    fn every_half_is_decoded_and_encoded() {
        on_every_isa!(|s| {
            for high in 0..=(u16::MAX / 16) {
                let bits: [u16; LANES] = std::array::from_fn(|i| high * 16 + i as u16);
                let (f16, bf16) = (s.load_f16(&bits), s.load_bf16(&bits));
                let back = s.to_f16(f16);
                for (i, &bits) in bits.iter().enumerate() {
                    assert!(same(s.lanes(f16)[i], convert::f16_to_f32(bits)), "f16 {bits:04x}");
                    assert!(same(s.lanes(bf16)[i], convert::bf16_to_f32(bits)), "bf16 {bits:04x}");
                    assert!(back[i] == bits || s.lanes(f16)[i].is_nan(), "f16 {bits:04x}");
                }
            }
        });
    }

    #[test]
    fn every_8_bit_float_is_decoded() {
        on_every_isa!(|s| {
            for high in 0..16 {
                let codes: [u8; LANES] = std::array::from_fn(|i| high * 16 + i as u8);
                let (e4m3, e5m2) = (s.lanes(s.load_f8e4m3(&codes)), s.lanes(s.load_f8e5m2(&codes)));
                for (i, &code) in codes.iter().enumerate() {
                    assert!(same(e4m3[i], convert::f8e4m3_to_f32(code)), "e4m3 {code:02x}");
                    assert!(same(e5m2[i], convert::f8e5m2_to_f32(code)), "e5m2 {code:02x}");
                }
            }
        });
    }

    /// The dot of 8 quads, as floats, in which it is exact.
    struct Dot<'a, const BITS: u32, const OFFSET: i32> {
        weights: &'a [Bytes; 8],
        x: &'a [[i8; 4]; 8],
    }

    struct Range<const BITS: u32, const OFFSET: i32>;

    impl<const BITS: u32, const OFFSET: i32> Weights for Range<BITS, OFFSET> {
        const BITS: u32 = BITS;
        const OFFSET: i32 = OFFSET;
    }

    impl<const BITS: u32, const OFFSET: i32> Program for Dot<'_, BITS, OFFSET> {
        type Output = Lanes;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Lanes {
            let sum = self.x.as_flattened().iter().map(|&x| i32::from(x)).sum();
            let weights = self.weights.map(|w| s.load_bytes(&w));
            let [first, second] = s.dots::<Range<BITS, OFFSET>, 8, 2>(&weights, [self.x; 2], [sum; 2]);
            assert_eq!(s.lanes(s.to_float(first)), s.lanes(s.to_float(second)));
            s.lanes(s.to_float(first))
        }
    }

    /// Weights and activations at the ends of their ranges, where 16-bit sums would saturate.
    fn check_dot<const BITS: u32, const OFFSET: i32>() {
        let top = (1 << BITS) - 1;
        for seed in 0..64 {
            let noise = |i: usize| ((i as u32 + 1).wrapping_mul(2_654_435_761) ^ (seed * 0x9e37)) >> 20;
            let pick = |i: usize, low: i32, high: i32| match noise(i) % 3 {
                0 => low,
                1 => high,
                _ => low + noise(i + 7) as i32 % (high - low + 1),
            };
            let weights: [Bytes; 8] =
                std::array::from_fn(|j| std::array::from_fn(|i| pick(64 * j + i, 0, top) as u8));
            let x: [[i8; 4]; 8] =
                std::array::from_fn(|j| std::array::from_fn(|i| pick(4 * j + i, -127, 127) as i8));
            let want: Lanes = std::array::from_fn(|lane| {
                let weight = |j: usize, i: usize| i32::from(weights[j][4 * lane + i]) - OFFSET;
                (0..32).map(|k| weight(k / 4, k % 4) * i32::from(x[k / 4][k % 4])).sum::<i32>() as f32
            });
            for isa in Isa::available() {
                let got = run(isa, Dot::<BITS, OFFSET> { weights: &weights, x: &x });
                assert_eq!(got, want, "{BITS} bits on {isa}");
            }
        }
    }

    #[test]
    fn dots_are_exact_at_the_ends_of_their_range() {
        check_dot::<4, 0>();
        check_dot::<4, 8>();
        check_dot::<5, 0>();
        check_dot::<5, 16>();
        check_dot::<6, 32>();
        check_dot::<8, 128>();
    }

    #[test]
    fn bytes_are_shifted_and_masked() {
        on_every_isa!(|s| {
            let bytes: Bytes = std::array::from_fn(|i| (i * 37 + 11) as u8);
            let x: [[i8; 4]; 1] = [[1, 0, 0, 0]];
            let first = |b| s.lanes(s.to_float(s.dots::<Range<5, 0>, 1, 1>(&[b], [&x], [1])[0]));
            let loaded = s.load_bytes(&bytes);
            let expect = |f: fn(u8) -> u8| -> Lanes { std::array::from_fn(|i| f32::from(f(bytes[4 * i]))) };
            assert_eq!(first(s.mask(s.shr::<4>(loaded), 0x0f)), expect(|b| b >> 4));
            assert_eq!(first(s.mask(s.shl::<3>(loaded), 0x10)), expect(|b| b << 3 & 0x10));
            let both = s.or(s.mask(loaded, 0x05), s.mask(loaded, 0x0a));
            assert_eq!(first(both), expect(|b| b & 0x0f));
            let signed: [u8; LANES] = std::array::from_fn(|i| (i * 16) as u8);
            assert_eq!(s.lanes(s.load_u8(&signed)), signed.map(f32::from));
            let rounded = s.to_i8(s.load(&ramp(-127.0, 15.5)));
            assert_eq!(rounded[..4], [-127, -112, -96, -80]);
            assert_eq!(s.sum_i8(rounded), rounded.iter().map(|&v| i32::from(v)).sum());
            assert_eq!((s.sum_i8([-127; LANES]), s.sum_i8([127; LANES])), (-127 * 16, 127 * 16));
            assert_eq!(s.lanes(s.load_i8(&signed)), signed.map(|b| f32::from(b as i8)));
        });
    }
}
