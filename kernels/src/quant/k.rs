//! The GGUF "K" formats: superblocks of 256 elements, whose sub-blocks have small integer scales.
//!
//! ```text
//! Q4_K: d f16 | dmin f16 | 8 scales and 8 minimums of 6 bits in 12 bytes | 4 x 32 bytes of nibbles
//! Q5_K: d f16 | dmin f16 | scales as above | 32 bytes of high bits | nibbles as above
//! Q6_K: 128 bytes of nibbles | 64 bytes of two high bits | 16 scales i8 | d f16
//! ```
//!
//! Q4_K and Q5_K have sub-blocks of 32, `value = (d scale) q - (dmin minimum)`; sub-blocks `2j` and `2j + 1` are the
//! low and high nibbles of the `j`-th 32 bytes, and bit `s` of the high byte `i` belongs to element `i` of
//! sub-block `s`. Q6_K has sub-blocks of 16, `value = (d scale) (q - 32)`. Each product is rounded to f32, as
//! the parentheses say.

use super::{half_at, inverse, put_half};

const LEN: usize = 256;

pub(super) fn decode_q4_k(block: &[u8; 144], out: &mut [f32; LEN]) {
    decode_with_minimums(block, out, |sub, i| {
        let packed = block[16 + sub / 2 * 32 + i];
        packed >> (sub % 2 * 4) & 0x0f
    });
}

pub(super) fn decode_q5_k(block: &[u8; 176], out: &mut [f32; LEN]) {
    decode_with_minimums(block, out, |sub, i| {
        let packed = block[48 + sub / 2 * 32 + i];
        packed >> (sub % 2 * 4) & 0x0f | (block[16 + i] >> sub & 1) << 4
    });
}

pub(super) fn decode_q6_k(block: &[u8; 210], out: &mut [f32; LEN]) {
    let d = half_at(block, 208);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + sub] as i8);
        let place = Q6Place::of(sub);
        for (i, out) in out.iter_mut().enumerate() {
            let low = block[place.low + i] >> place.low_shift & 0x0f;
            let high = block[place.high + i] >> place.high_shift & 0x03;
            *out = scale * (i32::from(low | high << 4) - 32) as f32;
        }
    }
}

pub(super) fn encode_q4_k(values: &[f32; LEN], block: &mut [u8; 144]) {
    let q = encode_with_minimums(values, block, 15);
    put_nibbles(&mut block[16..], &q);
}

pub(super) fn encode_q5_k(values: &[f32; LEN], block: &mut [u8; 176]) {
    let q = encode_with_minimums(values, block, 31);
    put_nibbles(&mut block[48..], &q);
    for i in 0..32 {
        block[16 + i] = (0..8).fold(0, |bits, sub| bits | (q[sub * 32 + i] >> 4) << sub);
    }
}

pub(super) fn encode_q6_k(values: &[f32; LEN], block: &mut [u8; 210]) {
    block.fill(0);
    let largest = |values: &[f32]| values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    // A scale of 127 belongs to the sub-block that holds the largest value; 31 steps reach it.
    put_half(block, 208, largest(values) / (127.0 * 31.0));
    let d = half_at(block, 208);
    for (sub, values) in values.as_chunks::<16>().0.iter().enumerate() {
        let scale = (largest(values) / 31.0 * inverse(d)).ceil().min(127.0) as i8;
        block[192 + sub] = scale as u8;
        let (inverse, place) = (inverse(d * f32::from(scale)), Q6Place::of(sub));
        for (i, v) in values.iter().enumerate() {
            let q = ((v * inverse).round_ties_even() + 32.0) as u8;
            let q = q.min(63);
            block[place.low + i] |= (q & 0x0f) << place.low_shift;
            block[place.high + i] |= (q >> 4) << place.high_shift;
        }
    }
}

/// Where a sub-block of Q6_K has its bits. Each half of the superblock (128 elements) has 64 bytes of nibbles, the
/// first 64 elements in the low ones, and 32 bytes of high bits, a pair for each run of 32 elements.
struct Q6Place {
    low: usize,
    low_shift: usize,
    high: usize,
    high_shift: usize,
}

impl Q6Place {
    fn of(sub: usize) -> Self {
        let (half, within) = (sub / 8, sub % 8);
        Self {
            low: half * 64 + within % 4 * 16,
            low_shift: within / 4 * 4,
            high: 128 + half * 32 + within % 2 * 16,
            high_shift: within / 2 * 2,
        }
    }
}

fn decode_with_minimums(block: &[u8], out: &mut [f32; LEN], q: impl Fn(usize, usize) -> u8) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(q(sub, i)) - minimum;
        }
    }
}

/// The first four scales and minimums have six bits of bytes 0..4 and 4..8; the others four bits of bytes 8..12
/// and, as their upper two, the bits that those leave over.
fn scale_and_minimum(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 0x3f, packed[4 + sub] & 0x3f);
    }
    let (scale_top, minimum_top, low) = (packed[sub - 4], packed[sub], packed[4 + sub]);
    (low & 0x0f | scale_top >> 2 & 0x30, low >> 4 | minimum_top >> 2 & 0x30)
}

fn put_scale_and_minimum(packed: &mut [u8], sub: usize, scale: u8, minimum: u8) {
    if sub < 4 {
        packed[sub] |= scale;
        packed[4 + sub] |= minimum;
    } else {
        packed[4 + sub] |= scale & 0x0f | minimum << 4;
        packed[sub - 4] |= (scale >> 4) << 6;
        packed[sub] |= (minimum >> 4) << 6;
    }
}

/// Writes the scales of Q4_K and Q5_K; returns the elements as `0..=max`.
fn encode_with_minimums(values: &[f32; LEN], block: &mut [u8], max: u8) -> [u8; LEN] {
    block.fill(0);
    let subs = values.as_chunks::<32>().0;
    // The format cannot shift upwards: a minimum is subtracted, so zero is always inside the range.
    let minimums: Vec<f32> = subs.iter().map(|s| -s.iter().fold(0.0f32, |a, &v| a.min(v))).collect();
    let spans = subs.iter().zip(&minimums).map(|(s, m)| s.iter().fold(0.0f32, |a, &v| a.max(v + m)));
    let scales: Vec<f32> = spans.map(|span| span / f32::from(max)).collect();
    let largest = |v: &[f32]| v.iter().fold(0.0f32, |a, &b| a.max(b));
    put_half(block, 0, largest(&scales) / 63.0);
    put_half(block, 2, largest(&minimums) / 63.0);
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let mut q = [0; LEN];
    for (sub, values) in subs.iter().enumerate() {
        let scale = (scales[sub] * inverse(d)).ceil().min(63.0) as u8;
        let minimum = (minimums[sub] * inverse(dmin)).ceil().min(63.0) as u8;
        put_scale_and_minimum(&mut block[4..16], sub, scale, minimum);
        let (inverse, minimum) = (inverse(d * f32::from(scale)), dmin * f32::from(minimum));
        for (q, v) in q[sub * 32..].iter_mut().zip(values) {
            *q = (((v + minimum) * inverse).round_ties_even() as u8).min(max);
        }
    }
    q
}

fn put_nibbles(packed: &mut [u8], q: &[u8; LEN]) {
    for (i, packed) in packed.iter_mut().enumerate() {
        let first = i / 32 * 64 + i % 32;
        *packed = q[first] & 0x0f | q[first + 32] << 4;
    }
}
