//! The GGUF "K" formats of two and three bits: superblocks of 256 elements in sub-blocks of 16.
//!
//! ```text
//! Q2_K: 16 x (low nibble: scale, high nibble: minimum) | 64 bytes of pairs of bits | d f16 | dmin f16
//! Q3_K: 32 bytes of high bits | 64 bytes of pairs of bits | 16 scales of 6 bits in 12 bytes | d f16
//! ```
//!
//! Element `i` of a half (128 elements) has its pair in byte `i % 32` of the half's 32, at bit `2 (i / 32)`. In Q2_K
//! `value = (d scale) q - (dmin minimum)`. In Q3_K the high bit of element `i` is bit `i / 32` of byte `i % 32`, and
//! `value = (d (scale - 32)) (q - 4)` with all three bits in `q`. Products are rounded to f32 as the parentheses say.

use super::{half_at, inverse, put_half};

const LEN: usize = 256;
const SUB_LEN: usize = 16;

pub(super) fn decode_q2_k(block: &[u8; 84], out: &mut [f32; LEN]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, out) in out.iter_mut().enumerate() {
        let packed = block[i / SUB_LEN];
        let (scale, minimum) = (d * f32::from(packed & 0x0f), dmin * f32::from(packed >> 4));
        *out = scale * f32::from(pair(&block[16..80], i)) - minimum;
    }
}

pub(super) fn decode_q3_k(block: &[u8; 110], out: &mut [f32; LEN]) {
    let d = half_at(block, 108);
    for (i, out) in out.iter_mut().enumerate() {
        let scale = d * (i32::from(six_bits(&block[96..108], i / SUB_LEN)) - 32) as f32;
        let high = block[i % 32] >> (i / 32) & 1;
        *out = scale * (i32::from(pair(&block[32..96], i) | high << 2) - 4) as f32;
    }
}

pub(super) fn encode_q2_k(values: &[f32; LEN], block: &mut [u8; 84]) {
    block.fill(0);
    let subs = values.as_chunks::<SUB_LEN>().0;
    // A minimum is subtracted, so zero is always inside the range.
    let minimums: Vec<f32> = subs.iter().map(|sub| -sub.iter().fold(0.0f32, |a, &v| a.min(v))).collect();
    let spans = subs.iter().zip(&minimums).map(|(sub, m)| sub.iter().fold(0.0f32, |a, &v| a.max(v + m)));
    let scales: Vec<f32> = spans.map(|span| span / 3.0).collect();
    put_half(block, 80, largest(&scales) / 15.0);
    put_half(block, 82, largest(&minimums) / 15.0);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, value) in values.iter().enumerate() {
        let sub = i / SUB_LEN;
        let scale = (scales[sub] * inverse(d)).ceil().min(15.0) as u8;
        let minimum = (minimums[sub] * inverse(dmin)).ceil().min(15.0) as u8;
        block[sub] = scale | minimum << 4;
        let steps = (value + dmin * f32::from(minimum)) * inverse(d * f32::from(scale));
        put_pair(&mut block[16..80], i, (steps.round_ties_even() as u8).min(3));
    }
}

pub(super) fn encode_q3_k(values: &[f32; LEN], block: &mut [u8; 110]) {
    block.fill(0);
    // A scale of 31 belongs to the sub-block of the largest value; three steps reach it.
    put_half(block, 108, largest(values) / (31.0 * 3.0));
    let d = half_at(block, 108);
    for (sub, values) in values.as_chunks::<SUB_LEN>().0.iter().enumerate() {
        let scale = (largest(values) / 3.0 * inverse(d)).ceil().min(31.0);
        put_six_bits(&mut block[96..108], sub, scale as u8 + 32);
        for (i, value) in values.iter().enumerate() {
            let (i, steps) = (sub * SUB_LEN + i, (value * inverse(d * scale)).round_ties_even());
            let q = ((steps + 4.0) as u8).min(7);
            put_pair(&mut block[32..96], i, q & 3);
            block[i % 32] |= (q >> 2) << (i / 32);
        }
    }
}

fn pair(packed: &[u8], i: usize) -> u8 {
    packed[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

fn put_pair(packed: &mut [u8], i: usize, q: u8) {
    packed[i / 128 * 32 + i % 32] |= q << (i % 128 / 32 * 2);
}

/// The low four bits of 16 numbers lie in the nibbles of 8 bytes, the upper two in the pairs of the next 4.
fn six_bits(packed: &[u8], i: usize) -> u8 {
    let low = packed[i % 8] >> (i / 8 * 4) & 0x0f;
    low | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4
}

fn put_six_bits(packed: &mut [u8], i: usize, value: u8) {
    packed[i % 8] |= (value & 0x0f) << (i / 8 * 4);
    packed[8 + i % 4] |= (value >> 4) << (i / 4 * 2);
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |a: f32, v| a.max(v.abs()))
}
