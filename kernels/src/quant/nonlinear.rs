//! The GGUF formats whose four bits are places in a table of values that lie closer together around zero.
//!
//! ```text
//! IQ4_NL: d f16 | 16 x (low nibble: element i, high nibble: element i + 16)           value = d TABLE[q]
//! IQ4_XS: d f16 | u16 with 8 pairs of high bits | 4 bytes of nibbles | 8 x 16 bytes as above
//! ```
//!
//! IQ4_XS is a superblock of eight blocks of 32: the scale of block `b` has four bits in nibble `b` and two in pair
//! `b`, and `value = (d (scale - 32)) TABLE[q]`.

use super::{half_at, inverse, put_half};

/// What the sixteen integers stand for; `kvalues_iq4nl` of ggml.
const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const LEN: usize = 32;
const SUPER_LEN: usize = 256;

pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; LEN]) {
    decode_table(half_at(block, 0), &block[2..], out);
}

pub(super) fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; SUPER_LEN]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (b, out) in out.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
        let scale = block[4 + b / 2] >> (b % 2 * 4) & 0x0f | ((high >> (2 * b) & 3) as u8) << 4;
        decode_table(d * (i32::from(scale) - 32) as f32, &block[8 + 16 * b..], out);
    }
}

pub(super) fn encode_iq4_nl(values: &[f32; LEN], block: &mut [u8; 18]) {
    put_half(block, 0, largest(values) / f32::from(TABLE[0]));
    let d = half_at(block, 0);
    encode_table(d, values, &mut block[2..]);
}

pub(super) fn encode_iq4_xs(values: &[f32; SUPER_LEN], block: &mut [u8; 136]) {
    block.fill(0);
    let blocks = values.as_chunks::<LEN>().0;
    // The scales are signed, and 32 below zero is one more than above it.
    let all = blocks.iter().map(|values| largest(values).abs()).fold(0.0, f32::max);
    put_half(block, 0, all / (127.0 * 31.0));
    let d = half_at(block, 0);
    let mut high = 0;
    for (b, values) in blocks.iter().enumerate() {
        let wanted = largest(values) / f32::from(TABLE[0]) * inverse(d);
        let scale = (wanted.abs().ceil().copysign(wanted).clamp(-32.0, 31.0) + 32.0) as u8;
        block[4 + b / 2] |= (scale & 0x0f) << (b % 2 * 4);
        high |= u16::from(scale >> 4) << (2 * b);
        encode_table(d * (i32::from(scale) - 32) as f32, values, &mut block[8 + 16 * b..]);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}

fn decode_table(scale: f32, packed: &[u8], out: &mut [f32; LEN]) {
    let value = |q: u8| scale * f32::from(TABLE[usize::from(q)]);
    for i in 0..LEN / 2 {
        out[i] = value(packed[i] & 0x0f);
        out[i + LEN / 2] = value(packed[i] >> 4);
    }
}

fn encode_table(scale: f32, values: &[f32; LEN], packed: &mut [u8]) {
    let inverse = inverse(scale);
    let nearest = |value: f32| {
        let distance = |q: &u8| (f32::from(TABLE[usize::from(*q)]) - value * inverse).abs();
        (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("the table has entries")
    };
    for i in 0..LEN / 2 {
        packed[i] = nearest(values[i]) | nearest(values[i + LEN / 2]) << 4;
    }
}

/// The element of the largest magnitude, with its sign.
fn largest(values: &[f32; LEN]) -> f32 {
    values.iter().fold(0.0, |a: f32, &v| if v.abs() > a.abs() { v } else { a })
}
