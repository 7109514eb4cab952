//! Dense weights: f32, f16, bf16 and 8-bit floats, widened exactly and summed in f32 with fused multiply-adds.
//!
//! A group is `[columns, 16]` elements: a vector for each column.

use std::array;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use quire_kernels::{DType, quant};

use super::layout::{Layout, SourceRows, Task};
use crate::Isa;
use crate::lanes::{self, LANES, Program, Simd};

/// The layout of a dense dtype.
pub(super) fn layout_of(dtype: DType) -> Option<Box<dyn Layout>> {
    Some(match dtype {
        DType::F32 => Box::new(Dense::<F32>(PhantomData)),
        DType::F16 => Box::new(Dense::<F16>(PhantomData)),
        DType::BF16 => Box::new(Dense::<BF16>(PhantomData)),
        DType::F8E4M3 => Box::new(Dense::<F8E4M3>(PhantomData)),
        DType::F8E5M2 => Box::new(Dense::<F8E5M2>(PhantomData)),
        _ => return None,
    })
}

/// The product of weights that are f32 already.
pub(super) fn multiply_f32(isa: Isa, task: &Task<'_>) {
    Dense::<F32>(PhantomData).multiply(isa, task);
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
struct F8E4M3;
struct F8E5M2;

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

impl Element for F8E4M3 {
    const DTYPE: DType = DType::F8E4M3;
    type Bits = u8;

    #[inline(always)]
    fn load<S: Simd>(s: S, bits: &[u8; LANES]) -> S::V {
        s.load_f8e4m3(bits)
    }
}

impl Element for F8E5M2 {
    const DTYPE: DType = DType::F8E5M2;
    type Bits = u8;

    #[inline(always)]
    fn load<S: Simd>(s: S, bits: &[u8; LANES]) -> S::V {
        s.load_f8e5m2(bits)
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

    /// Gathering a panel costs as much as multiplying it with a group or two; few rows take four groups at once.
    fn grain(&self, num_tokens: usize) -> usize {
        if num_tokens >= 12 { 8 } else { 4 }
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

    /// Tiles of rows and groups, as large as the registers hold. Many rows spare the reading and widening of
    /// weights; few rows take more groups, lest a chain of multiply-adds wait for itself. A row's sum is the same
    /// in each.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let wide = S::ACCUMULATORS >= 24;
        let tokens = self.task.tokens.clone();
        let rest = match wide {
            true => self.panels::<S, 12, 2>(s, tokens),
            false => self.panels::<S, 6, 1>(s, tokens),
        };
        match rest.len() {
            0 => {}
            4.. if wide => self.few_rows::<S, 4, 4>(s, rest),
            4.. => self.few_rows::<S, 4, 1>(s, rest),
            2.. if wide => self.few_rows::<S, 2, 4>(s, rest),
            2.. => self.few_rows::<S, 2, 2>(s, rest),
            _ => self.few_rows::<S, 1, 4>(s, rest),
        }
    }
}

impl<E: Element> Multiply<'_, E> {
    /// Multiplies `R` rows at a time, gathered into a panel, `[columns, R]`, which every group then reads in one
    /// stream. Returns the rows that are left.
    #[inline(always)]
    fn panels<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        mut tokens: Range<usize>,
    ) -> Range<usize> {
        let mut panel: Vec<[f32; R]> = Vec::new();
        while tokens.len() >= R {
            let first = tokens.start;
            let rows: [&[f32]; R] = array::from_fn(|r| self.task.x.row(first + r));
            panel.resize(self.task.columns, [0.0; R]);
            for (r, row) in rows.into_iter().enumerate() {
                for (column, x) in panel.iter_mut().zip(row) {
                    column[r] = *x;
                }
            }
            let mut group = self.task.groups.start;
            while self.task.groups.end - group >= G {
                self.put(s, first, group, panel_tile::<S, E, R, G>(s, self.weights(group), &panel));
                group += G;
            }
            while group < self.task.groups.end {
                self.put(s, first, group, panel_tile::<S, E, R, 1>(s, self.weights(group), &panel));
                group += 1;
            }
            tokens.start += R;
        }
        tokens
    }

    /// Multiplies rows that are too few for panels, `R` at a time while there are so many, with `G` groups at a
    /// time.
    #[inline(always)]
    fn few_rows<S: Simd, const R: usize, const G: usize>(&self, s: S, tokens: Range<usize>) {
        let mut group = self.task.groups.start;
        while self.task.groups.end - group >= G {
            self.rows_of_groups::<S, R, G>(s, group, tokens.clone());
            group += G;
        }
        while group < self.task.groups.end {
            self.rows_of_groups::<S, R, 1>(s, group, tokens.clone());
            group += 1;
        }
    }

    #[inline(always)]
    fn rows_of_groups<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        group: usize,
        mut tokens: Range<usize>,
    ) {
        tokens = self.tiles::<S, R, G>(s, group, tokens);
        if R > 2 {
            tokens = self.tiles::<S, 2, G>(s, group, tokens);
        }
        self.tiles::<S, 1, G>(s, group, tokens);
    }

    /// As many tiles of `R` rows as there are. Returns the rows that are left.
    #[inline(always)]
    fn tiles<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        group: usize,
        mut tokens: Range<usize>,
    ) -> Range<usize> {
        while tokens.len() >= R {
            let first = tokens.start;
            let x = array::from_fn(|r| self.task.x.row(first + r));
            self.put(s, first, group, tile::<S, E, R, G>(s, self.weights(group), x));
            tokens.start += R;
        }
        tokens
    }

    /// The weights of `G` groups.
    #[inline(always)]
    fn weights<const G: usize>(&self, group: usize) -> [&[[E::Bits; LANES]]; G] {
        array::from_fn(|g| bytemuck::cast_slice(self.task.group(group + g)))
    }

    #[inline(always)]
    fn put<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        token: usize,
        group: usize,
        sums: [[S::V; G]; R],
    ) {
        for (r, sums) in sums.into_iter().enumerate() {
            for (g, sum) in sums.into_iter().enumerate() {
                self.task.put(s, token + r, group + g, sum);
            }
        }
    }
}

/// The sums of a panel's rows with `G` groups, column after column.
#[inline(always)]
fn panel_tile<S: Simd, E: Element, const R: usize, const G: usize>(
    s: S,
    weights: [&[[E::Bits; LANES]]; G],
    panel: &[[f32; R]],
) -> [[S::V; G]; R] {
    let weights = weights.map(|weights| &weights[..panel.len()]);
    let mut sums = [[s.zero(); G]; R];
    for k in 0..panel.len() {
        add_column::<S, E, R, G>(s, &mut sums, weights.map(|weights| &weights[k]), &panel[k]);
    }
    sums
}

/// The sums of `R` rows with `G` groups, column after column.
#[inline(always)]
fn tile<S: Simd, E: Element, const R: usize, const G: usize>(
    s: S,
    weights: [&[[E::Bits; LANES]]; G],
    x: [&[f32]; R],
) -> [[S::V; G]; R] {
    let columns = weights[0].len();
    let weights = weights.map(|weights| &weights[..columns]);
    let x = x.map(|x| &x[..columns]);
    let mut sums = [[s.zero(); G]; R];
    for k in 0..columns {
        let weights = weights.map(|weights| &weights[k]);
        for column in weights {
            s.prefetch(column, PREFETCH_BYTES);
        }
        add_column::<S, E, R, G>(s, &mut sums, weights, &x.map(|x| x[k]));
    }
    sums
}

/// Adds a column's products.
#[inline(always)]
fn add_column<S: Simd, E: Element, const R: usize, const G: usize>(
    s: S,
    sums: &mut [[S::V; G]; R],
    weights: [&[E::Bits; LANES]; G],
    x: &[f32; R],
) {
    let mut column = [s.zero(); G];
    for g in 0..G {
        column[g] = E::load(s, weights[g]);
    }
    for r in 0..R {
        let x = s.splat(x[r]);
        for g in 0..G {
            sums[r][g] = s.fma(column[g], x, sums[r][g]);
        }
    }
}
