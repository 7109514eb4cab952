//! Rotary position embedding.

use quire_kernels::{
    Device as _, DeviceId, Dispatch, Part, Result, RopeKernels, RopeStyle, RopeTable, StepCtx, Tensor,
};

use crate::Isa;
use crate::access::Rows;
use crate::device::CpuDevice;
use crate::lanes::{self, LANES, Program, Simd};
use crate::norm::grain_rows;

/// The rope part.
#[derive(Debug)]
pub(crate) struct CpuRope {
    device: CpuDevice,
}

impl CpuRope {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device }
    }
}

impl Part for CpuRope {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![Dispatch::new("rope", self.device.isa().name(), "rotated in registers")]
    }
}

impl RopeKernels for CpuRope {
    fn rope(
        &self,
        _: &mut StepCtx,
        x: &Tensor,
        head_dim: usize,
        positions: &Tensor,
        table: &RopeTable,
    ) -> Result<()> {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [positions, cos_sin], [x]) = session.open([positions, &table.cos_sin], [x]);
        let (positions, cos_sin) = (positions.slice::<i32>(), cos_sin.rows::<f32>());
        let mut x = x.rows::<f32>();
        let grain = grain_rows(x.columns());
        x.for_each(pool, grain, |token, row| {
            rotate(isa, row, head_dim, cos_sin_at(cos_sin, positions[token]), table.style);
        });
        Ok(())
    }
}

/// The row of a position in the table.
pub(crate) fn cos_sin_at(table: Rows<'_, f32>, position: i32) -> &[f32] {
    table.row(usize::try_from(position).expect("a position is not negative"))
}

/// Rotates the heads of `x` by the angles whose cosines, then sines, are `cos_sin`. What of a head is longer
/// than `cos_sin` stays as it is.
pub(crate) fn rotate(isa: Isa, x: &mut [f32], head_dim: usize, cos_sin: &[f32], style: RopeStyle) {
    assert!(cos_sin.len() <= head_dim, "a head is at least as long as what is rotated of it");
    lanes::run(isa, Rotate { x, head_dim, cos_sin, style });
}

struct Rotate<'a> {
    x: &'a mut [f32],
    head_dim: usize,
    cos_sin: &'a [f32],
    style: RopeStyle,
}

impl Program for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cos, sin) = self.cos_sin.split_at(self.cos_sin.len() / 2);
        for head in self.x.chunks_exact_mut(self.head_dim) {
            let head = &mut head[..self.cos_sin.len()];
            match self.style {
                RopeStyle::Halves => rotate_halves(s, head, cos, sin),
                RopeStyle::Interleaved => rotate_interleaved(s, head, cos, sin),
            }
        }
    }
}

/// `(x, y)` turned by the angle.
#[inline(always)]
fn turn<S: Simd>(s: S, (x, y): (S::V, S::V), cos: S::V, sin: S::V) -> (S::V, S::V) {
    (s.sub(s.mul(x, cos), s.mul(y, sin)), s.add(s.mul(y, cos), s.mul(x, sin)))
}

#[inline(always)]
fn rotate_halves<S: Simd>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (x, y) = head.split_at_mut(cos.len());
    let (x, x_tail) = x.as_chunks_mut::<LANES>();
    let (y, y_tail) = y.as_chunks_mut::<LANES>();
    let (cos, cos_tail) = cos.as_chunks::<LANES>();
    let (sin, sin_tail) = sin.as_chunks::<LANES>();
    for ((x, y), (cos, sin)) in x.iter_mut().zip(y).zip(cos.iter().zip(sin)) {
        let turned = turn(s, (s.load(x), s.load(y)), s.load(cos), s.load(sin));
        s.store(turned.0, x);
        s.store(turned.1, y);
    }
    if !x_tail.is_empty() {
        let pair = (s.load_head(x_tail, 0.0), s.load_head(y_tail, 0.0));
        let turned = turn(s, pair, s.load_head(cos_tail, 0.0), s.load_head(sin_tail, 0.0));
        s.store_head(turned.0, x_tail);
        s.store_head(turned.1, y_tail);
    }
}

#[inline(always)]
fn rotate_interleaved<S: Simd>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (pairs, tail) = head.as_chunks_mut::<{ 2 * LANES }>();
    let (cos, cos_tail) = cos.as_chunks::<LANES>();
    let (sin, sin_tail) = sin.as_chunks::<LANES>();
    for (pairs, (cos, sin)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
        turn_pairs(s, pairs, s.load(cos), s.load(sin));
    }
    if !tail.is_empty() {
        let mut pairs = [0.0; 2 * LANES];
        pairs[..tail.len()].copy_from_slice(tail);
        turn_pairs(s, &mut pairs, s.load_head(cos_tail, 0.0), s.load_head(sin_tail, 0.0));
        tail.copy_from_slice(&pairs[..tail.len()]);
    }
}

#[inline(always)]
fn turn_pairs<S: Simd>(s: S, pairs: &mut [f32; 2 * LANES], cos: S::V, sin: S::V) {
    let [low, high] = pairs.as_chunks_mut::<LANES>().0 else { unreachable!("two vectors make two chunks") };
    let turned = turn(s, s.unzip(s.load(low), s.load(high)), cos, sin);
    let turned = s.zip(turned.0, turned.1);
    s.store(turned.0, low);
    s.store(turned.1, high);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, bits, noise};

    fn check(head_dim: usize, rotary_dim: usize, style: RopeStyle) {
        let x = noise(3 * head_dim, 6);
        let half = rotary_dim / 2;
        let angles = noise(half, 7);
        let cos_sin: Vec<f32> =
            angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect();
        let want = |i: usize| {
            let (head, d) = (i / head_dim * head_dim, i % head_dim);
            if d >= rotary_dim {
                return f64::from(x[i]);
            }
            let (angle, first, second) = match style {
                RopeStyle::Halves => (d % half, d % half, d % half + half),
                RopeStyle::Interleaved => (d / 2, d / 2 * 2, d / 2 * 2 + 1),
            };
            let (a, b) = (f64::from(x[head + first]), f64::from(x[head + second]));
            let (cos, sin) = (f64::from(cos_sin[angle]), f64::from(cos_sin[half + angle]));
            if d == first { a * cos - b * sin } else { a * sin + b * cos }
        };
        let rows: Vec<_> = Isa::available()
            .into_iter()
            .map(|isa| {
                let mut row = x.clone();
                rotate(isa, &mut row, head_dim, &cos_sin, style);
                row
            })
            .collect();
        assert_close(&rows[0], want, 2e-7);
        assert!(rows.iter().all(|row| bits(row) == bits(&rows[0])), "{style:?} {head_dim} {rotary_dim}");
    }

    #[test]
    fn heads_are_rotated_in_either_style() {
        for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
            for (head_dim, rotary_dim) in [(64, 64), (80, 32), (128, 128), (2, 2), (6, 4), (96, 90), (33, 0)]
            {
                check(head_dim, rotary_dim, style);
            }
        }
    }
}
