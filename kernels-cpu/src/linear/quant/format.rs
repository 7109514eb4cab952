//! The formats: what the bytes of a file's block mean.

use quire_kernels::DType;

use super::integers::{Eight, Five, Four, Integers, QUADS, Six};
use super::scales::{Halves, Plain, Scales, SuperOfHalves, SuperWithMinimum, WithMinimum};
use crate::lanes::Weights;

/// A block format of GGUF files; `quire_kernels::quant` documents their bytes.
pub(super) trait Format: Weights + Send + Sync + 'static {
    /// The dtype.
    const DTYPE: DType;
    /// How its integers are stored here.
    type Integers: Integers;
    /// How its scales are stored here.
    type Scales: Scales;

    /// Takes the scales of a block of the file to a lane.
    fn read_scales(bytes: &[u8], lane: usize, entry: &mut <Self::Scales as Scales>::Entry);

    /// The integers of 32 columns of a block of the file.
    fn read_quads(bytes: &[u8], block: usize) -> [u32; QUADS];
}

macro_rules! formats {
    ($($name:ident: $integers:ident with $scales:ident, offset $offset:literal,
       |$scale_bytes:ident, $lane:ident, $entry:ident| $read_scales:expr,
       |$bytes:ident, $block:pat_param| $read_quads:expr;)*) => { $(
        pub(super) struct $name;

        impl Weights for $name {
            const BITS: u32 = $integers::BITS;
            const OFFSET: i32 = $offset;
        }

        impl Format for $name {
            const DTYPE: DType = DType::$name;
            type Integers = $integers;
            type Scales = $scales;

            #[inline(always)]
            fn read_scales($scale_bytes: &[u8], $lane: usize, $entry: &mut $scales) {
                $read_scales
            }

            #[inline(always)]
            fn read_quads($bytes: &[u8], $block: usize) -> [u32; QUADS] {
                $read_quads
            }
        }
    )* };
}

formats! {
    Q4_0: Four with Plain, offset 8,
        |bytes, lane, entry| put_half(&mut entry.scale, lane, bytes, 0),
        |bytes, _| nibbles(&bytes[2..18]);
    Q4_1: Four with WithMinimum, offset 0,
        |bytes, lane, entry| {
            put_half(&mut entry.scale, lane, bytes, 0);
            put_half(&mut entry.minimum, lane, bytes, 2);
        },
        |bytes, _| nibbles(&bytes[4..20]);
    Q5_0: Five with Plain, offset 16,
        |bytes, lane, entry| put_half(&mut entry.scale, lane, bytes, 0),
        |bytes, _| with_high_bits(nibbles(&bytes[6..22]), &bytes[2..6]);
    Q5_1: Five with WithMinimum, offset 0,
        |bytes, lane, entry| {
            put_half(&mut entry.scale, lane, bytes, 0);
            put_half(&mut entry.minimum, lane, bytes, 2);
        },
        |bytes, _| with_high_bits(nibbles(&bytes[8..24]), &bytes[4..8]);
    Q8_0: Eight with Plain, offset 128,
        |bytes, lane, entry| put_half(&mut entry.scale, lane, bytes, 0),
        // Signed to unsigned: the offset added.
        |bytes, _| quads(&bytes[2..34]).map(|quad| quad ^ 0x8080_8080);
    Q4K: Four with SuperWithMinimum, offset 0,
        |bytes, lane, entry| put_scales_and_minimums(entry, lane, bytes),
        |bytes, block| k_nibbles(&bytes[16..144], block);
    Q5K: Five with SuperWithMinimum, offset 0,
        |bytes, lane, entry| put_scales_and_minimums(entry, lane, bytes),
        |bytes, block| {
            let high = quads(&bytes[16..48]).map(|bits| (bits >> block & 0x0101_0101) << 4);
            or(k_nibbles(&bytes[48..176], block), high)
        };
    Q6K: Six with SuperOfHalves, offset 32,
        |bytes, lane, entry| {
            put_half(&mut entry.scale, lane, bytes, 208);
            for (to, &scale) in entry.blocks.as_flattened_mut().iter_mut().zip(&bytes[192..208]) {
                to[lane] = scale;
            }
        },
        |bytes, block| {
            // Each half of the superblock has four blocks: two in the low nibbles of 64 bytes, two in the high
            // ones; and 32 bytes with two high bits for each of the four.
            let (half, within) = (block / 4, block % 4);
            let low = &bytes[half * 64 + within % 2 * 32..][..32];
            let low = quads(low).map(|quad| quad >> (within / 2 * 4) & 0x0f0f_0f0f);
            let high = &bytes[128 + half * 32..][..32];
            or(low, quads(high).map(|bits| (bits >> (2 * within) & 0x0303_0303) << 4))
        };
}

#[inline(always)]
fn put_half(halves: &mut Halves, lane: usize, bytes: &[u8], at: usize) {
    halves[lane] = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
}

#[inline(always)]
fn quads<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (quads, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(quads[i]))
}

#[inline(always)]
fn or(a: [u32; QUADS], b: [u32; QUADS]) -> [u32; QUADS] {
    std::array::from_fn(|i| a[i] | b[i])
}

/// Byte `i` of 16 holds element `i` and, above it, element `i + 16`.
#[inline(always)]
fn nibbles(bytes: &[u8]) -> [u32; QUADS] {
    let packed: [u32; 4] = quads(bytes);
    std::array::from_fn(|i| packed[i % 4] >> (i / 4 * 4) & 0x0f0f_0f0f)
}

/// Bit `i` of 32 is the high bit of element `i`.
#[inline(always)]
fn with_high_bits(low: [u32; QUADS], bits: &[u8]) -> [u32; QUADS] {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    // A multiplication puts copies of four bits 7 bits apart: bit `i` of them lands at bit `8 i`.
    let spread = |bits: u32| (bits & 0xf).wrapping_mul(0x0020_4081) & 0x0101_0101;
    std::array::from_fn(|i| low[i] | spread(bits >> (4 * i)) << 4)
}

/// Two blocks lie in the low and the high nibbles of 32 bytes.
#[inline(always)]
fn k_nibbles(bytes: &[u8], block: usize) -> [u32; QUADS] {
    quads(&bytes[block / 2 * 32..][..32]).map(|quad| quad >> (block % 2 * 4) & 0x0f0f_0f0f)
}

/// Two halves, then 8 scales and 8 minimums of 6 bits in 12 bytes.
#[inline(always)]
fn put_scales_and_minimums(entry: &mut SuperWithMinimum, lane: usize, bytes: &[u8]) {
    put_half(&mut entry.scale, lane, bytes, 0);
    put_half(&mut entry.minimum, lane, bytes, 2);
    let packed = &bytes[4..16];
    for (i, [scale, minimum]) in entry.blocks.iter_mut().enumerate() {
        (scale[lane], minimum[lane]) = if i < 4 {
            (packed[i] & 0x3f, packed[4 + i] & 0x3f)
        } else {
            let low = packed[4 + i];
            (low & 0x0f | packed[i - 4] >> 6 << 4, low >> 4 | packed[i] >> 6 << 4)
        };
    }
}
