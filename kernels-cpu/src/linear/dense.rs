//! Dense weights: f32, f16 and bf16, widened exactly and summed in f32 with fused multiply-adds.
//!
//! A group is `[columns, 16]` elements: a vector for each column.

use std::array;
use std::marker::PhantomData;

use bytemuck::Pod;
use quire_kernels::{DType, quant};

use super::layout::{Layout, SourceRows, Task};
use crate::Isa;
use crate::lanes::{self, LANES, Program, Simd};

/// The layout of a dense dtype.
pub(super) fn layout_of(dtype: DType) -> Option<&'static dyn Layout> {
    Some(match dtype {
        DType::F32 => &Dense::<F32>(PhantomData),
        DType::F16 => &Dense::<F16>(PhantomData),
        DType::BF16 => &Dense::<BF16>(PhantomData),
        _ => return None,
    })
}

/// An element type.
trait Element: Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: DType;
    /// An element's bits.
    type Bits: Pod + Send + Sync;

    /// A vector of elements.
    fn load<S: Simd>(s: S, bits: &[Self::Bits; LANES]) -> S::V;
}

struct F32;
struct F16;
struct BF16;

impl Element for F32 {
    const DTYPE: DType = DType::F32;
    type Bits = f32;

    #[inline(always)]
    fn load<S: Simd>(s: S, bits: &[f32; LANES]) -> S::V {
        s.load(bits)
    }
}

impl Element for F16 {
    const DTYPE: DType = DType::F16;
    type Bits = u16;

    #[inline(always)]
    fn load<S: Simd>(s: S, bits: &[u16; LANES]) -> S::V {
        s.load_f16(bits)
    }
}

impl Element for BF16 {
    const DTYPE: DType = DType::BF16;
    type Bits = u16;

    #[inline(always)]
    fn load<S: Simd>(s: S, bits: &[u16; LANES]) -> S::V {
        s.load_bf16(bits)
    }
}

/// The layout of element type `E`.
struct Dense<E>(PhantomData<E>);

impl<E: Element> Layout for Dense<E> {
    fn kernel(&self, isa: Isa) -> String {
        format!("{} x f32 {isa}", E::DTYPE)
    }

    fn takes_quants(&self) -> bool {
        false
    }

    fn group_bytes(&self, columns: usize) -> usize {
        columns * LANES * size_of::<E::Bits>()
    }

    fn pack(&self, isa: Isa, source: &SourceRows<'_>, group: &mut [u8]) {
        lanes::run(isa, Pack::<E> { source, group, element: PhantomData });
    }

    fn multiply(&self, isa: Isa, task: &Task<'_>) {
        lanes::run(isa, Multiply::<E> { task, element: PhantomData });
    }

    fn read_row(&self, group: &[u8], lane: usize, out: &mut [f32]) {
        let elements = group.chunks_exact(size_of::<E::Bits>()).skip(lane).step_by(LANES);
        for (element, out) in elements.zip(out) {
            quant::dequantize(E::DTYPE, element, array::from_mut(out));
        }
    }
}

/// Packs a group: a transposition, in squares of 16, which stay in the first cache.
struct Pack<'a, E> {
    source: &'a SourceRows<'a>,
    group: &'a mut [u8],
    element: PhantomData<E>,
}

impl<E: Element> Program for Pack<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let element_bytes = size_of::<E::Bits>();
        let group: &mut [[E::Bits; LANES]] = bytemuck::cast_slice_mut(self.group);
        for (square, vectors) in group.chunks_mut(LANES).enumerate() {
            for (lane, row) in self.source.rows().enumerate().take(LANES) {
                let elements = row[square * LANES * element_bytes..].chunks_exact(element_bytes);
                for (vector, element) in vectors.iter_mut().zip(elements) {
                    vector[lane] = bytemuck::pod_read_unaligned(element);
                }
            }
        }
    }
}

/// How far ahead weights are fetched: what arrives while they travel.
const PREFETCH_BYTES: usize = 2048;

/// A task's product.
struct Multiply<'a, E> {
    task: &'a Task<'a>,
    element: PhantomData<E>,
}

impl<E: Element> Program for Multiply<'_, E> {
    type Output = ();

    /// Tiles of rows and groups, as large as the registers hold. Many rows spare reading weights, which have to
    /// be widened; few rows take more groups, lest a chain of multiply-adds wait for itself. A row's sum is the
    /// same in each.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let wide = S::ACCUMULATORS >= 24;
        let rest = match self.task.tokens.len() {
            12.. if wide => self.columns::<S, 12, 2>(s, self.task.groups.start),
            6.. if wide => self.columns::<S, 6, 4>(s, self.task.groups.start),
            6.. => self.columns::<S, 6, 1>(s, self.task.groups.start),
            3.. if wide => self.columns::<S, 3, 4>(s, self.task.groups.start),
            3.. => self.columns::<S, 3, 2>(s, self.task.groups.start),
            _ => self.columns::<S, 1, 4>(s, self.task.groups.start),
        };
        self.columns::<S, 3, 1>(s, rest);
    }
}

impl<E: Element> Multiply<'_, E> {
    /// Multiplies `G` groups at a time with all rows, `R` at a time while there are so many; returns the first
    /// group that is left.
    #[inline(always)]
    fn columns<S: Simd, const R: usize, const G: usize>(&self, s: S, mut group: usize) -> usize {
        while self.task.groups.end - group >= G {
            let mut token = self.tiles::<S, R, G>(s, group, self.task.tokens.start);
            if R > 3 {
                token = self.tiles::<S, 3, G>(s, group, token);
            }
            self.tiles::<S, 1, G>(s, group, token);
            group += G;
        }
        group
    }

    /// As many tiles of `R` rows as there are; returns the first row that is left.
    #[inline(always)]
    fn tiles<S: Simd, const R: usize, const G: usize>(&self, s: S, group: usize, mut token: usize) -> usize {
        let weights = array::from_fn(|g| bytemuck::cast_slice(self.task.group(group + g)));
        while self.task.tokens.end - token >= R {
            let x = array::from_fn(|r| self.task.x.row(token + r));
            let sums = tile::<S, E, R, G>(s, weights, x);
            for (r, sums) in sums.into_iter().enumerate() {
                for (g, sum) in sums.into_iter().enumerate() {
                    self.task.put(s, token + r, group + g, sum);
                }
            }
            token += R;
        }
        token
    }
}

/// The sums of `R` rows with `G` groups, column after column.
#[inline(always)]
fn tile<S: Simd, E: Element, const R: usize, const G: usize>(
    s: S,
    weights: [&[[E::Bits; LANES]]; G],
    x: [&[f32]; R],
) -> [[S::V; G]; R] {
    let columns = weights[0].len();
    let weights = weights.map(|w| &w[..columns]);
    let x = x.map(|x| &x[..columns]);
    let mut sums = [[s.zero(); G]; R];
    for k in 0..columns {
        let mut w = [s.zero(); G];
        for g in 0..G {
            if k.is_multiple_of(64 / (LANES * size_of::<E::Bits>())) || R == 0 {
                s.prefetch(&weights[g][k], PREFETCH_BYTES);
            }
            w[g] = E::load(s, &weights[g][k]);
        }
        for r in 0..R {
            let x = s.splat(x[r][k]);
            for g in 0..G {
                sums[r][g] = s.fma(w[g], x, sums[r][g]);
            }
        }
    }
    sums
}
