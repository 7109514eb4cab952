//! Products of a group with a tile of rows.

use std::marker::PhantomData;

use super::format::Format;
use super::integers::{Integers, QUADS};
use super::scales::Scales;
use super::{Block, Blocks, Entry};
use crate::lanes::{Program, Simd};
use crate::linear::activation::QuantBlock;
use crate::linear::layout::Task;

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
    let blocks_per_entry = F::Scales::BLOCKS;
    let x = x.map(|x| &x[..blocks.len()]);
    let mut sums = [s.zero(); R];
    for (block_idx, block) in blocks.iter().enumerate() {
        let entry = &entries[block_idx / blocks_per_entry];
        let within = block_idx % blocks_per_entry;
        let quads = F::Integers::unpack(s, block);
        if F::Scales::HALVES == 1 {
            let (scale, minimum) = F::Scales::load(s, entry, within, 0);
            for r in 0..R {
                let x = &x[r][block_idx];
                sums[r] = add_block::<S, F>(s, &quads, scale, x, sums[r]);
                if F::Scales::HAS_MINIMUM {
                    sums[r] = s.fma(minimum, s.splat(x.scaled_sum), sums[r]);
                }
            }
        } else {
            let (first, _) = F::Scales::load(s, entry, within, 0);
            let (last, _) = F::Scales::load(s, entry, within, 1);
            for r in 0..R {
                sums[r] = add_halves::<S, F>(s, &quads, [first, last], &x[r][block_idx], sums[r]);
            }
        }
    }
    sums
}

#[inline(always)]
fn add_block<S: Simd, F: Format>(
    s: S,
    quads: &[S::B; QUADS],
    scale: S::V,
    x: &QuantBlock,
    sum: S::V,
) -> S::V {
    let dot = s.dot::<F, QUADS>(quads, &x.quants, x.sums[0] + x.sums[1]);
    s.fma(s.from_i32(dot), s.mul(scale, s.splat(x.scale)), sum)
}

/// Either half of the block has its own scale.
#[inline(always)]
fn add_halves<S: Simd, F: Format>(
    s: S,
    quads: &[S::B; QUADS],
    scales: [S::V; 2],
    x: &QuantBlock,
    mut sum: S::V,
) -> S::V {
    let [a, b, c, d, e, f, g, h] = *quads;
    let [p, q, r, t, u, v, w, y] = x.quants;
    let x_scale = s.splat(x.scale);
    let dot = s.dot::<F, 4>(&[a, b, c, d], &[p, q, r, t], x.sums[0]);
    sum = s.fma(s.from_i32(dot), s.mul(scales[0], x_scale), sum);
    let dot = s.dot::<F, 4>(&[e, f, g, h], &[u, v, w, y], x.sums[1]);
    s.fma(s.from_i32(dot), s.mul(scales[1], x_scale), sum)
}
