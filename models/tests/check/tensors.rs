//! Tensors: missing, of another shape, quantized in parts, without numbers.

use quire_kernels::DType;
use quire_models::check::Depth;
use serde_json::json;

use super::{refused, report_of, tensor, with_bytes, with_config, with_tensors};

#[test]
fn br47_a_head_that_is_nowhere() {
    let (_f, path) = with_tensors(|tensors| tensors.retain(|(name, ..)| name != "lm_head.weight"));
    refused(&path, "missing-tensor", &["lm_head.weight"]);
    let report = report_of(&path, Depth::Samples);
    assert_eq!(report.problems().count(), 1, "the rest is looked at, and is sound: {:#?}", report.findings);
}

#[test]
fn tensors_that_do_not_fit_the_configuration() {
    let down = "model.layers.1.mlp.down_proj.weight";
    let (_f, path) = with_tensors(|tensors| tensors.retain(|(name, ..)| name != down));
    refused(&path, "missing-tensor", &[down]);
    let (_f, path) = with_config("intermediate_size", json!(96));
    refused(&path, "tensor-shape", &["mlp.gate_proj.weight", "expected shape [96, 64], given [128, 64]"]);
    let (_f, path) = with_config("vocab_size", json!(300));
    refused(&path, "tensor-shape", &["model.embed_tokens.weight", "[300, 64]"]);
    let (_f, path) = with_config("num_hidden_layers", json!(3));
    refused(&path, "missing-tensor", &["model.layers.2.self_attn.q_proj.weight"]);
    let (_f, path) = with_tensors(|tensors| {
        let tensor = tensor(tensors, down);
        (tensor.1, tensor.3) = (DType::I64, vec![0; 8 * 64 * 128]);
    });
    refused(&path, "tensor-dtype", &[down, "i64"]);
    let (_f, path) = with_bytes(|bytes| {
        // A dtype that nobody knows, as long as the one that was there.
        let text = String::from_utf8_lossy(&bytes[8..]).find("\"F32\"").expect("a dtype") + 8;
        let mut bytes = bytes;
        bytes[text + 1..text + 4].copy_from_slice(b"C64");
        bytes
    });
    refused(&path, "tensor-dtype", &["C64"]);
}

#[test]
fn weights_that_are_no_numbers() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let (_f, path) = with_tensors(|tensors| {
            let (.., bytes) = tensor(tensors, "model.layers.0.self_attn.k_proj.weight");
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        });
        refused(&path, "not-finite", &["model.layers.0.self_attn.k_proj.weight", shown, "element 2047"]);
        // The end of a tensor is among the samples, so that loading sees a broken transfer.
        assert!(!report_of(&path, Depth::Samples).is_ok());
        assert!(report_of(&path, Depth::Headers).is_ok());
    }
}
