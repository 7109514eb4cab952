//! Every format against its reference implementation; `golden/quant.py` says which ones.

use quire_kernels::{DType, quant};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/quant.json")).expect("the golden file is JSON")
}

fn from_hex(text: &Value) -> Vec<u8> {
    let digits: Vec<u8> =
        text.as_str().expect("a string").chars().map(|c| c.to_digit(16).expect("hex") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn cases(kind: &str, mut check: impl FnMut(DType, Vec<u8>, Vec<f32>)) {
    let golden = golden();
    let cases = golden[kind].as_object().expect("an object");
    assert!(cases.len() >= 7, "{kind} covers the formats");
    for (name, case) in cases {
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name).expect("a known dtype");
        check(dtype, from_hex(&case["bytes"]), quant::decode(DType::F32, &from_hex(&case["values"])));
    }
}

#[test]
fn values_equal_the_reference_bit_for_bit() {
    cases("decode", |dtype, bytes, values| {
        let ours = quant::decode(dtype, &bytes);
        assert_eq!(ours.len(), values.len(), "{dtype}");
        for (i, (a, b)) in ours.iter().zip(&values).enumerate() {
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{dtype}[{i}]: {a} is not {b}");
        }
    });
}

#[test]
fn encoded_bytes_equal_the_reference() {
    cases("encode", |dtype, bytes, values| assert_eq!(quant::encode(dtype, &values), bytes, "{dtype}"));
}
