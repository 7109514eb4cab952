//! Reading and writing elements of every [`DType`] as f32.
//!
//! [`dequantize`] gives, bit for bit, the values that the reference implementation of the GGUF format gives (the
//! Python package `gguf`, 0.19.0): `tests/golden/quant.json` holds blocks and their values, made by the script beside
//! it. Scales that lie beside the elements are applied by [`scale_row`]. [`encode`] rounds to nearest; it serves tests and dummy weights, not the making of good model files.

mod k;
mod k_low;
mod nonlinear;
mod scaled;
mod simple;

use crate::{DType, convert};

pub use scaled::{quantize_rows, scale_row};

/// Writes the values of `bytes` to `out`, exactly.
///
/// # Panics
///
/// Where `bytes` are not what `out.len()` elements of `dtype` take.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.bytes_for(out.len()), "bytes of {} {dtype} elements", out.len());
    match dtype {
        DType::F32 => decode_each(bytes, out, f32::from_le_bytes),
        DType::F16 => decode_each(bytes, out, |b| convert::f16_to_f32(u16::from_le_bytes(b))),
        DType::BF16 => decode_each(bytes, out, |b| convert::bf16_to_f32(u16::from_le_bytes(b))),
        DType::F8E4M3 => decode_each(bytes, out, |[b]| convert::f8e4m3_to_f32(b)),
        DType::F8E5M2 => decode_each(bytes, out, |[b]| convert::f8e5m2_to_f32(b)),
        DType::I8 => decode_each(bytes, out, |[b]| f32::from(b as i8)),
        DType::U8 => decode_each(bytes, out, |[b]| f32::from(b)),
        DType::U4 => {
            decode_blocks(bytes, out, |&[b]: &[u8; 1], out| *out = [b & 0x0f, b >> 4].map(f32::from))
        }
        DType::I32 => decode_each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::U32 => decode_each(bytes, out, |b| u32::from_le_bytes(b) as f32),
        DType::I64 => decode_each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        DType::Q4_0 => decode_blocks(bytes, out, simple::decode_q4_0),
        DType::Q4_1 => decode_blocks(bytes, out, simple::decode_q4_1),
        DType::Q5_0 => decode_blocks(bytes, out, simple::decode_q5_0),
        DType::Q5_1 => decode_blocks(bytes, out, simple::decode_q5_1),
        DType::Q8_0 => decode_blocks(bytes, out, simple::decode_q8_0),
        DType::Q2K => decode_blocks(bytes, out, k_low::decode_q2_k),
        DType::Q3K => decode_blocks(bytes, out, k_low::decode_q3_k),
        DType::Q4K => decode_blocks(bytes, out, k::decode_q4_k),
        DType::Q5K => decode_blocks(bytes, out, k::decode_q5_k),
        DType::Q6K => decode_blocks(bytes, out, k::decode_q6_k),
        DType::IQ4NL => decode_blocks(bytes, out, nonlinear::decode_iq4_nl),
        DType::IQ4XS => decode_blocks(bytes, out, nonlinear::decode_iq4_xs),
    }
}

/// The values of `bytes`.
///
/// # Panics
///
/// Where `bytes` are no whole number of elements or blocks.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize(dtype, bytes, &mut out);
    out
}

/// `values` in `dtype`, each rounded to the nearest representable one (integers saturate).
///
/// # Panics
///
/// Where `values` are no whole number of blocks.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let num_bytes = dtype.bytes_for(values.len()).expect("values fill whole blocks");
    let mut bytes = vec![0; num_bytes];
    let out = bytes.as_mut_slice();
    match dtype {
        DType::F32 => encode_each(values, out, f32::to_le_bytes),
        DType::F16 => encode_each(values, out, |v| convert::f32_to_f16(v).to_le_bytes()),
        DType::BF16 => encode_each(values, out, |v| convert::f32_to_bf16(v).to_le_bytes()),
        DType::F8E4M3 => encode_each(values, out, |v| [convert::f32_to_f8e4m3(v)]),
        DType::F8E5M2 => encode_each(values, out, |v| [convert::f32_to_f8e5m2(v)]),
        DType::I8 => encode_each(values, out, |v| [v.round_ties_even() as i8 as u8]),
        DType::U8 => encode_each(values, out, |v| [v.round_ties_even() as u8]),
        DType::U4 => encode_blocks(values, out, |values: &[f32; 2], out| {
            let [low, high] = values.map(|v| (v.round_ties_even() as u8).min(15));
            *out = [low | high << 4];
        }),
        DType::I32 => encode_each(values, out, |v| (v.round_ties_even() as i32).to_le_bytes()),
        DType::U32 => encode_each(values, out, |v| (v.round_ties_even() as u32).to_le_bytes()),
        DType::I64 => encode_each(values, out, |v| (v.round_ties_even() as i64).to_le_bytes()),
        DType::Q4_0 => encode_blocks(values, out, simple::encode_q4_0),
        DType::Q4_1 => encode_blocks(values, out, simple::encode_q4_1),
        DType::Q5_0 => encode_blocks(values, out, simple::encode_q5_0),
        DType::Q5_1 => encode_blocks(values, out, simple::encode_q5_1),
        DType::Q8_0 => encode_blocks(values, out, simple::encode_q8_0),
        DType::Q2K => encode_blocks(values, out, k_low::encode_q2_k),
        DType::Q3K => encode_blocks(values, out, k_low::encode_q3_k),
        DType::Q4K => encode_blocks(values, out, k::encode_q4_k),
        DType::Q5K => encode_blocks(values, out, k::encode_q5_k),
        DType::Q6K => encode_blocks(values, out, k::encode_q6_k),
        DType::IQ4NL => encode_blocks(values, out, nonlinear::encode_iq4_nl),
        DType::IQ4XS => encode_blocks(values, out, nonlinear::encode_iq4_xs),
    }
    bytes
}

fn decode_each<const BYTES: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; BYTES]) -> f32) {
    for (out, element) in out.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        *out = decode(*element);
    }
}

fn encode_each<const BYTES: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; BYTES]) {
    for (element, value) in out.as_chunks_mut::<BYTES>().0.iter_mut().zip(values) {
        *element = encode(*value);
    }
}

fn decode_blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, values) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        decode(block, values);
    }
}

fn encode_blocks<const BYTES: usize, const LEN: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    for (block, values) in out.as_chunks_mut::<BYTES>().0.iter_mut().zip(values.as_chunks::<LEN>().0) {
        encode(values, block);
    }
}

/// The half-precision scale at `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    convert::f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&convert::f32_to_f16(value).to_le_bytes());
}

/// `1 / scale`, or 0 for a block of zeros.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        /// A model file may hold anything: every bit pattern is a value.
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            for dtype in DType::ALL {
                let whole = bytes.len() / dtype.block_bytes() * dtype.block_bytes();
                let values = decode(dtype, &bytes[..whole]);
                prop_assert_eq!(dtype.bytes_for(values.len()), Some(whole));
            }
        }

        /// Nor does any value break an encoder.
        #[test]
        fn any_values_can_be_written(values in prop::collection::vec(any::<f32>(), 256)) {
            for dtype in DType::ALL {
                prop_assert_eq!(decode(dtype, &encode(dtype, &values)).len(), 256);
            }
        }
    }

    fn waves(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 32) as f32)).collect()
    }

    /// The largest error of a round trip, relative to the largest value.
    fn round_trip_error(dtype: DType) -> f32 {
        let values = waves(512);
        let back = decode(dtype, &encode(dtype, &values));
        let largest = values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        values.iter().zip(&back).fold(0.0f32, |e, (a, b)| e.max((a - b).abs())) / largest
    }

    #[test]
    fn a_round_trip_stays_within_half_a_step() {
        let bounds = [
            (DType::F32, 0.0),
            (DType::F16, 5e-4),
            (DType::BF16, 4e-3),
            (DType::F8E4M3, 0.0625),
            (DType::F8E5M2, 0.125),
            (DType::Q4_0, 0.126),
            (DType::Q4_1, 0.07),
            (DType::Q5_0, 0.064),
            (DType::Q5_1, 0.035),
            (DType::Q8_0, 0.005),
            (DType::Q2K, 0.4),
            (DType::Q3K, 0.3),
            (DType::Q4K, 0.1),
            (DType::Q5K, 0.06),
            (DType::Q6K, 0.035),
            (DType::IQ4NL, 0.12),
            (DType::IQ4XS, 0.16),
        ];
        for (dtype, bound) in bounds {
            let error = round_trip_error(dtype);
            assert!(error <= bound, "{dtype}: {error} is more than {bound}");
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for dtype in DType::ALL {
            assert!(decode(dtype, &encode(dtype, &[0.0; 256])).iter().all(|&v| v == 0.0), "{dtype}");
        }
    }

    #[test]
    #[should_panic(expected = "bytes of 32 q4_0 elements")]
    fn the_wrong_number_of_bytes_is_refused() {
        dequantize(DType::Q4_0, &[0; 17], &mut [0.0; 32]);
    }
}
