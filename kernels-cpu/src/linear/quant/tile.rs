//! Products of a group with a tile of rows.

use std::marker::PhantomData;

use super::format::Format;
use super::integers::Integers;
use super::scales::Scales;
use super::{Block, Blocks, Entry};
use crate::lanes::{Program, Simd};
use crate::linear::activation::QuantBlock;
use crate::linear::layout::Task;

/// How far ahead weights are fetched: what arrives while they travel.
const PREFETCH_BYTES: usize = 2048;

/// A task's product.
pub(super) struct Multiply<'a, F> {
    pub(super) task: &'a Task<'a>,
    pub(super) format: PhantomData<F>,
}

impl<F: Format> Program for Multiply<'_, F> {
    type Output = ();

    /// A group's weights stay in the first cache while they meet all rows, and in registers while they meet the
    /// rows of a tile. The remainder takes smaller tiles; a row's sum is the same in each.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let task = self.task;
        for group in task.groups.clone() {
            let planes = Blocks::<F>::planes(task.group(group), task.columns);
            let mut token = task.tokens.start;
            if S::ACCUMULATORS >= 8 {
                token = self.tiles::<S, 8>(s, group, planes, token);
            }
            token = self.tiles::<S, 4>(s, group, planes, token);
            token = self.tiles::<S, 2>(s, group, planes, token);
            self.tiles::<S, 1>(s, group, planes, token);
        }
    }
}

impl<F: Format> Multiply<'_, F> {
    /// As many tiles of `R` rows as there are; returns the first row that is left.
    #[inline(always)]
    fn tiles<S: Simd, const R: usize>(
        &self,
        s: S,
        group: usize,
        planes: (&[Entry<F>], &[Block<F>]),
        mut token: usize,
    ) -> usize {
        while self.task.tokens.end - token >= R {
            let x = std::array::from_fn(|r| self.task.quants(token + r));
            let sums = tile::<S, F, R>(s, planes, x);
            for (r, sum) in sums.into_iter().enumerate() {
                self.task.put(s, token + r, group, sum);
            }
            token += R;
        }
        token
    }
}

/// The sums of `R` rows, block after block.
#[inline(always)]
fn tile<S: Simd, F: Format, const R: usize>(
    s: S,
    (entries, blocks): (&[Entry<F>], &[Block<F>]),
    x: [&[QuantBlock]; R],
) -> [S::V; R] {
    let x = x.map(|x| &x[..blocks.len()]);
    let mut sums = [s.zero(); R];
    for (block_idx, block) in blocks.iter().enumerate() {
        let entry = &entries[block_idx / F::Scales::BLOCKS];
        let within = block_idx % F::Scales::BLOCKS;
        s.prefetch(block, PREFETCH_BYTES);
        if within == 0 {
            s.prefetch(entry, PREFETCH_BYTES);
        }
        let quads = F::Integers::unpack(s, block);
        let x = x.map(|x| &x[block_idx]);
        if F::Scales::HALVES == 1 {
            let (scale, minimum) = F::Scales::load(s, entry, within, 0);
            let dots = s.dots::<F, 8, R>(&quads, x.map(|x| &x.quants), x.map(|x| x.sums[0] + x.sums[1]));
            add::<S, R>(s, &mut sums, scale, dots, x);
            if F::Scales::HAS_MINIMUM {
                for r in 0..R {
                    sums[r] = s.fma(minimum, s.splat(x[r].scaled_sum), sums[r]);
                }
            }
        } else {
            for half in 0..2 {
                let (scale, _) = F::Scales::load(s, entry, within, half);
                let quads = quads[4 * half..].first_chunk().expect("half of eight quads");
                let quants = x.map(|x| x.quants[4 * half..].first_chunk().expect("half of eight quads"));
                let dots = s.dots::<F, 4, R>(quads, quants, x.map(|x| x.sums[half]));
                add::<S, R>(s, &mut sums, scale, dots, x);
            }
        }
    }
    sums
}

/// Adds the sums of a block, or of half of one, which has one scale.
#[inline(always)]
fn add<S: Simd, const R: usize>(
    s: S,
    sums: &mut [S::V; R],
    scale: S::V,
    dots: [S::I; R],
    x: [&QuantBlock; R],
) {
    for r in 0..R {
        sums[r] = s.fma(s.to_float(dots[r]), s.mul(scale, s.splat(x[r].scale)), sums[r]);
    }
}
