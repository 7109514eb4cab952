//! How the integers of a block, 16 rows by 32 columns, are stored.
//!
//! All are unsigned. In a lane they come in quads: four columns in the four bytes of an u32, the first column in
//! the lowest byte.

use bytemuck::Pod;

use crate::lanes::{Bytes, Simd};

/// Quads in a row of a block.
pub(super) const QUADS: usize = 8;

/// A number of bits, and where they are.
pub(super) trait Integers: Send + Sync + 'static {
    /// Bits of an integer.
    const BITS: u32;
    /// The vectors of a block.
    type Block: Pod + Send + Sync;

    /// Sets a lane of a zeroed block.
    fn put(block: &mut Self::Block, lane: usize, quads: [u32; QUADS]);

    /// The integer of a lane and a column.
    fn get(block: &Self::Block, lane: usize, column: usize) -> u8;

    /// The quads, each a vector.
    fn unpack<S: Simd>(s: S, block: &Self::Block) -> [S::B; QUADS];
}

/// 4 bits.
pub(super) struct Four;
/// 5 bits.
pub(super) struct Five;
/// 6 bits.
pub(super) struct Six;
/// 8 bits.
pub(super) struct Eight;

impl Integers for Four {
    const BITS: u32 = 4;
    type Block = [Bytes; 4];

    #[inline(always)]
    fn put(block: &mut Self::Block, lane: usize, quads: [u32; QUADS]) {
        put_nibbles(block, lane, &quads);
    }

    fn get(block: &Self::Block, lane: usize, column: usize) -> u8 {
        nibble(block, lane, column)
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &Self::Block) -> [S::B; QUADS] {
        nibbles(s, block)
    }
}

impl Integers for Five {
    const BITS: u32 = 5;
    type Block = [Bytes; 5];

    #[inline(always)]
    fn put(block: &mut Self::Block, lane: usize, quads: [u32; QUADS]) {
        put_nibbles(block, lane, &quads);
        let high = (0..QUADS).fold(0, |bits, j| bits | (quads[j] >> 4 & 0x0101_0101) << j);
        put_quad(&mut block[4], lane, high);
    }

    fn get(block: &Self::Block, lane: usize, column: usize) -> u8 {
        let high = block[4][4 * lane + column % 4] >> (column / 4) & 1;
        nibble(block, lane, column) | high << 4
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &Self::Block) -> [S::B; QUADS] {
        let low = nibbles(s, block);
        let high = s.load_bytes(&block[4]);
        let with = |low, shifted| s.or(low, s.mask(shifted, 0x10));
        [
            with(low[0], s.shl::<4>(high)),
            with(low[1], s.shl::<3>(high)),
            with(low[2], s.shl::<2>(high)),
            with(low[3], s.shl::<1>(high)),
            with(low[4], high),
            with(low[5], s.shr::<1>(high)),
            with(low[6], s.shr::<2>(high)),
            with(low[7], s.shr::<3>(high)),
        ]
    }
}

impl Integers for Six {
    const BITS: u32 = 6;
    type Block = [Bytes; 6];

    #[inline(always)]
    fn put(block: &mut Self::Block, lane: usize, quads: [u32; QUADS]) {
        put_nibbles(block, lane, &quads);
        for (plane, quads) in block[4..].iter_mut().zip(quads.chunks_exact(4)) {
            let high = (0..4).fold(0, |bits, j| bits | (quads[j] >> 4 & 0x0303_0303) << (2 * j));
            put_quad(plane, lane, high);
        }
    }

    fn get(block: &Self::Block, lane: usize, column: usize) -> u8 {
        let quad = column / 4;
        let high = block[4 + quad / 4][4 * lane + column % 4] >> (quad % 4 * 2) & 3;
        nibble(block, lane, column) | high << 4
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &Self::Block) -> [S::B; QUADS] {
        let low = nibbles(s, block);
        let (first, last) = (s.load_bytes(&block[4]), s.load_bytes(&block[5]));
        let with = |low, shifted| s.or(low, s.mask(shifted, 0x30));
        [
            with(low[0], s.shl::<4>(first)),
            with(low[1], s.shl::<2>(first)),
            with(low[2], first),
            with(low[3], s.shr::<2>(first)),
            with(low[4], s.shl::<4>(last)),
            with(low[5], s.shl::<2>(last)),
            with(low[6], last),
            with(low[7], s.shr::<2>(last)),
        ]
    }
}

impl Integers for Eight {
    const BITS: u32 = 8;
    type Block = [Bytes; 8];

    #[inline(always)]
    fn put(block: &mut Self::Block, lane: usize, quads: [u32; QUADS]) {
        for (vector, quad) in block.iter_mut().zip(quads) {
            put_quad(vector, lane, quad);
        }
    }

    fn get(block: &Self::Block, lane: usize, column: usize) -> u8 {
        block[column / 4][4 * lane + column % 4]
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &Self::Block) -> [S::B; QUADS] {
        // Not `map`: what is not inlined is not compiled for the instruction set.
        let load = |j: usize| s.load_bytes(&block[j]);
        [load(0), load(1), load(2), load(3), load(4), load(5), load(6), load(7)]
    }
}

#[inline(always)]
fn put_quad(vector: &mut Bytes, lane: usize, quad: u32) {
    vector[4 * lane..4 * lane + 4].copy_from_slice(&quad.to_le_bytes());
}

#[inline(always)]
fn put_nibbles(block: &mut [Bytes], lane: usize, quads: &[u32; QUADS]) {
    for (j, vector) in block[..4].iter_mut().enumerate() {
        put_quad(vector, lane, quads[j] & 0x0f0f_0f0f | (quads[j + 4] & 0x0f0f_0f0f) << 4);
    }
}

fn nibble(block: &[Bytes], lane: usize, column: usize) -> u8 {
    let quad = column / 4;
    block[quad % 4][4 * lane + column % 4] >> (quad / 4 * 4) & 0x0f
}

#[inline(always)]
fn nibbles<S: Simd>(s: S, block: &[Bytes]) -> [S::B; QUADS] {
    let v =
        [s.load_bytes(&block[0]), s.load_bytes(&block[1]), s.load_bytes(&block[2]), s.load_bytes(&block[3])];
    let low = |v| s.mask(v, 0x0f);
    let high = |v| s.mask(s.shr::<4>(v), 0x0f);
    [low(v[0]), low(v[1]), low(v[2]), low(v[3]), high(v[0]), high(v[1]), high(v[2]), high(v[3])]
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;
    use crate::Isa;
    use crate::lanes::{LANES, Program, Weights, run};

    /// What `dot` makes of single columns of an unpacked block: the integer of each lane.
    struct Column<'a, I: Integers> {
        block: &'a I::Block,
        column: usize,
    }

    impl<I: Integers> Weights for Column<'_, I> {
        const BITS: u32 = I::BITS;
        const OFFSET: i32 = 128;
    }

    impl<I: Integers> Program for Column<'_, I> {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; LANES] {
            let mut x = [[0; 4]; QUADS];
            x[self.column / 4][self.column % 4] = 1;
            let [sum] = s.dots::<Self, QUADS, 1>(&I::unpack(s, self.block), [&x], [1]);
            s.lanes(s.to_float(sum)).map(|v| v + 128.0)
        }
    }

    fn check<I: Integers>() {
        let integer = |lane: usize, column: usize| {
            ((lane * 32 + column) as u32).wrapping_mul(2_654_435_761) >> 8 & ((1 << I::BITS) - 1)
        };
        let mut block = I::Block::zeroed();
        for lane in 0..LANES {
            let quad = |j| (0..4).fold(0, |quad, i| quad | integer(lane, 4 * j + i) << (8 * i));
            I::put(&mut block, lane, std::array::from_fn(quad));
        }
        for column in 0..32 {
            let want = std::array::from_fn(|lane| integer(lane, column) as f32);
            assert_eq!(std::array::from_fn(|lane| f32::from(I::get(&block, lane, column))), want);
            for isa in Isa::available() {
                let got = run(isa, Column::<I> { block: &block, column });
                assert_eq!(got, want, "column {column} of {} bits on {isa}", I::BITS);
            }
        }
    }

    #[test]
    fn what_is_put_is_read_and_unpacked() {
        check::<Four>();
        check::<Five>();
        check::<Six>();
        check::<Eight>();
    }
}
