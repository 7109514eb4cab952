//! Tensors: missing, of another shape, quantized in parts, without numbers.

use std::fs;
use std::path::Path;

use quire_kernels::DType;
use quire_models::check::Depth;
use serde_json::json;

use super::{WEIGHTS, edit, refused, report_of, tensor, with_bytes, with_config, with_tensors};

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
fn quantized_folders_with_parts_that_do_not_fit() {
    let golden =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized").join(name);
    let broken = |name: &str, from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).unwrap();
        let mut bytes = fs::read(golden(name).join(WEIGHTS)).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
        let mut changed = header.replacen(from, to, 1);
        assert_ne!(changed, header, "{from} is in the header");
        // What follows stays where it is.
        changed.push_str(&" ".repeat((len + 64).saturating_sub(changed.len())));
        let mut file = (changed.len() as u64).to_le_bytes().to_vec();
        file.extend(changed.bytes());
        file.extend(bytes.split_off(8 + len));
        fs::write(folder.path().join(WEIGHTS), file).unwrap();
        let path = folder.path().to_owned();
        (folder, path)
    };
    let module = "model.layers.0.self_attn.q_proj";
    for (name, part, kind) in [
        ("gptq", "scales", "missing-tensor"),
        ("gptq", "qzeros", "missing-tensor"),
        ("gptq", "qweight", "missing-tensor"),
        ("awq", "qzeros", "missing-tensor"),
        ("ct-w4a16", "weight_scale", "missing-tensor"),
        ("ct-w8a8", "weight_scale", "missing-tensor"),
    ] {
        let (_f, path) = broken(name, &format!("{module}.{part}\""), &format!("{module}.other_{part}\""));
        refused(&path, kind, &[module]);
    }
    // Groups of another size than the scales are for.
    let folder = tempfile::tempdir().unwrap();
    for file in [WEIGHTS, "config.json"] {
        fs::copy(golden("gptq").join(file), folder.path().join(file)).unwrap();
    }
    edit(&folder.path().join("config.json"), |config| {
        config["quantization_config"]["group_size"] = json!(16)
    });
    refused(folder.path(), "tensor-shape", &["scales", "expected shape [4, "]);
}

#[test]
fn what_quantizers_leave_beside_weights_is_said_once() {
    let note = |name: &str, kind: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized").join(name);
        let findings = report_of(&path, Depth::Headers).findings;
        findings.into_iter().filter(|note| note.kind == kind).map(|note| note.message).collect::<Vec<_>>()
    };
    for (name, is_said) in [("fp8-static", true), ("fp8-block", true), ("ct-w4a16", false), ("gptq", false)] {
        let notes = note(name, "activations");
        assert_eq!(notes.len(), usize::from(is_said), "{name}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains("results are those of the dequantized weights")));
    }
    let scales = note("fp8-static", "harmless-tensor");
    assert_eq!(scales.len(), 1, "{scales:?}");
    assert!(scales[0].contains("nor are 1 more: a scale of an 8-bit kv cache"), "{scales:?}");
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
