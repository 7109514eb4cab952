//! Elementwise loops over slices of any length.

use super::{LANES, Simd};

/// A function of two values, applied to all lanes at once.
///
/// Not a closure: those cannot be `#[inline(always)]`, and what is not inlined is not compiled for the
/// instruction set.
pub(crate) trait Lanewise: Copy {
    /// The function, `#[inline(always)]`.
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

/// `out[i] = f(a[i], b[i])`; all are as long as `out`.
#[inline(always)]
pub(crate) fn map2<S: Simd>(s: S, out: &mut [f32], a: &[f32], b: &[f32], f: impl Lanewise) {
    let len = out.len();
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    let (a, a_tail) = a[..len].as_chunks::<LANES>();
    let (b, b_tail) = b[..len].as_chunks::<LANES>();
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        s.store(f.apply(s, s.load(a), s.load(b)), out);
    }
    if !out_tail.is_empty() {
        s.store_head(f.apply(s, s.load_head(a_tail, 0.0), s.load_head(b_tail, 0.0)), out_tail);
    }
}

/// `x[i] = f(x[i], b[i])`; `b` is as long as `x`.
#[inline(always)]
pub(crate) fn update<S: Simd>(s: S, x: &mut [f32], b: &[f32], f: impl Lanewise) {
    let len = x.len();
    let (x, x_tail) = x.as_chunks_mut::<LANES>();
    let (b, b_tail) = b[..len].as_chunks::<LANES>();
    for (x, b) in x.iter_mut().zip(b) {
        s.store(f.apply(s, s.load(x), s.load(b)), x);
    }
    if !x_tail.is_empty() {
        s.store_head(f.apply(s, s.load_head(x_tail, 0.0), s.load_head(b_tail, 0.0)), x_tail);
    }
}
