//! The GGUF formats with blocks of 32 elements and one scale.
//!
//! ```text
//! Q4_0: d f16 | 16 x (low nibble: element i, high nibble: element i + 16)             value = d (q - 8)
//! Q4_1: d f16 | m f16 | nibbles as above                                               value = d q + m
//! Q5_0: d f16 | 32 high bits, element i in bit i of a u32 | nibbles                    value = d (q - 16)
//! Q5_1: d f16 | m f16 | high bits | nibbles                                            value = d q + m
//! Q8_0: d f16 | 32 x i8                                                                value = d q
//! ```
//!
//! The products and sums are single f32 operations in this order, never fused, so that every reader gets the
//! same values.

use super::{half_at, inverse, put_half};

const LEN: usize = 32;

pub(super) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (i, q) in nibbles(&block[2..]).into_iter().enumerate() {
        out[i] = d * (i32::from(q) - 8) as f32;
    }
}

pub(super) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, q) in nibbles(&block[4..]).into_iter().enumerate() {
        out[i] = d * f32::from(q) + m;
    }
}

pub(super) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (i, q) in five_bits(&block[2..]).into_iter().enumerate() {
        out[i] = d * (i32::from(q) - 16) as f32;
    }
}

pub(super) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, q) in five_bits(&block[4..]).into_iter().enumerate() {
        out[i] = d * f32::from(q) + m;
    }
}

pub(super) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(q as i8) * d;
    }
}

pub(super) fn encode_q4_0(values: &[f32; LEN], block: &mut [u8; 18]) {
    let d = largest(values) / -8.0;
    put_half(block, 0, d);
    put_nibbles(&mut block[2..], &steps(values, 0.0, d, 8.5, 15));
}

pub(super) fn encode_q4_1(values: &[f32; LEN], block: &mut [u8; 20]) {
    let (min, max) = range(values);
    let d = (max - min) / 15.0;
    put_half(block, 0, d);
    put_half(block, 2, min);
    put_nibbles(&mut block[4..], &steps(values, min, d, 0.5, 15));
}

pub(super) fn encode_q5_0(values: &[f32; LEN], block: &mut [u8; 22]) {
    let d = largest(values) / -16.0;
    put_half(block, 0, d);
    put_five_bits(&mut block[2..], &steps(values, 0.0, d, 16.5, 31));
}

pub(super) fn encode_q5_1(values: &[f32; LEN], block: &mut [u8; 24]) {
    let (min, max) = range(values);
    let d = (max - min) / 31.0;
    put_half(block, 0, d);
    put_half(block, 2, min);
    put_five_bits(&mut block[4..], &steps(values, min, d, 0.5, 31));
}

pub(super) fn encode_q8_0(values: &[f32; LEN], block: &mut [u8; 34]) {
    let d = largest(values).abs() / 127.0;
    let inverse = inverse(d);
    put_half(block, 0, d);
    for (q, v) in block[2..].iter_mut().zip(values) {
        *q = (v * inverse).round() as i8 as u8;
    }
}

fn nibbles(packed: &[u8]) -> [u8; LEN] {
    let mut q = [0; LEN];
    for i in 0..LEN / 2 {
        q[i] = packed[i] & 0x0f;
        q[i + LEN / 2] = packed[i] >> 4;
    }
    q
}

/// Four bytes of high bits, then the nibbles.
fn five_bits(packed: &[u8]) -> [u8; LEN] {
    let high = u32::from_le_bytes([packed[0], packed[1], packed[2], packed[3]]);
    let mut q = nibbles(&packed[4..]);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((high >> i & 1) as u8) << 4;
    }
    q
}

fn put_nibbles(packed: &mut [u8], q: &[u8; LEN]) {
    for i in 0..LEN / 2 {
        packed[i] = q[i] & 0x0f | q[i + LEN / 2] << 4;
    }
}

fn put_five_bits(packed: &mut [u8], q: &[u8; LEN]) {
    let high = (0..LEN).fold(0u32, |bits, i| bits | u32::from(q[i] >> 4) << i);
    packed[..4].copy_from_slice(&high.to_le_bytes());
    put_nibbles(&mut packed[4..], q);
}

/// The element of the largest magnitude, with its sign.
fn largest(values: &[f32; LEN]) -> f32 {
    values.iter().fold(0.0, |a: f32, &v| if v.abs() > a.abs() { v } else { a })
}

fn range(values: &[f32; LEN]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &v| (min.min(v), max.max(v)))
}

/// `(v - min) / d + bias`, truncated and cut to `0..=max`.
fn steps(values: &[f32; LEN], min: f32, d: f32, bias: f32, max: u8) -> [u8; LEN] {
    let inverse = inverse(d);
    values.map(|v| (((v - min) * inverse + bias) as u8).min(max))
}
