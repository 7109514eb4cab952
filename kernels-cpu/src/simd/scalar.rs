//! Lanes in plain Rust: what every other instruction set is compared with.

use std::array;

use quire_kernels::convert;

use super::{LANES, Simd};

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];

    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: 16 elements are readable.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        // SAFETY: 16 elements are readable.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(convert::f16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        // SAFETY: 16 elements are readable.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(convert::bf16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        // SAFETY: 16 elements are readable.
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::F {
        // SAFETY: 16 elements are readable.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        // SAFETY: 16 elements are writable.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn to_f32(value: Self::I) -> Self::F {
        value.map(|v| v as f32)
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::B {
        // SAFETY: 64 bytes are readable.
        unsafe { from.cast::<Self::B>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn and(a: Self::B, mask: u8) -> Self::B {
        a.map(|v| v & mask)
    }

    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn shl<const N: i32>(a: Self::B) -> Self::B {
        a.map(|v| v << N)
    }

    #[inline(always)]
    unsafe fn shr<const N: i32>(a: Self::B) -> Self::B {
        a.map(|v| v >> N)
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: u32, const OFFSET: i32>(
        weights: &[Self::B; N],
        x: *const i8,
        sum: i32,
    ) -> Self::I {
        // SAFETY: `4 * N` bytes of `x` are readable.
        let x = unsafe { x.cast::<[[i8; 4]; N]>().read_unaligned() };
        array::from_fn(|lane| {
            let mut total = -OFFSET * sum;
            for (weights, x) in weights.iter().zip(&x) {
                for (weight, x) in weights[4 * lane..4 * lane + 4].iter().zip(x) {
                    total += i32::from(*weight) * i32::from(*x);
                }
            }
            total
        })
    }
}
