//! Quantized folders: parts that do not fit, settings that change what weights mean.

use std::fs;
use std::path::{Path, PathBuf};

use quire_models::check::Depth;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{WEIGHTS, edit, refused, report_of};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized").join(name)
}

/// A golden folder's configuration and weights.
fn copied(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for file in [WEIGHTS, "config.json"] {
        fs::copy(golden(name).join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().to_owned();
    (folder, path)
}

/// The same with one field of `quantization_config` changed.
fn with_setting(name: &str, field: &str, value: Value) -> (TempDir, PathBuf) {
    let (folder, path) = copied(name);
    edit(&path.join("config.json"), |config| config["quantization_config"][field] = value);
    (folder, path)
}

/// The same with `from` in the header of the weights replaced, everywhere.
fn with_header(name: &str, from: &str, to: &str) -> (TempDir, PathBuf) {
    let (folder, path) = copied(name);
    let mut bytes = fs::read(path.join(WEIGHTS)).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
    let changed = header.replace(from, to);
    assert_ne!(changed, header, "{from} is in the header");
    let mut file = (changed.len() as u64).to_le_bytes().to_vec();
    file.extend(changed.bytes());
    file.extend(bytes.split_off(8 + len));
    fs::write(path.join(WEIGHTS), file).unwrap();
    (folder, path)
}

#[test]
fn parts_that_do_not_fit() {
    let module = "model.layers.0.self_attn.q_proj";
    for (name, part) in [
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("gptq", "qweight"),
        ("gptq-act-order", "g_idx"),
        ("awq", "qzeros"),
        ("fp8-static", "weight_scale"),
        ("fp8-block", "weight_scale_inv"),
        ("ct-fp8-channel", "weight_scale"),
        ("ct-w4a16", "weight_scale"),
        ("ct-w4a16-asym", "weight_g_idx"),
        ("ct-w8a8", "weight_scale"),
    ] {
        let part_name = format!("{module}.{part}");
        let (_f, path) = with_header(name, &format!("{part_name}\""), &format!("{module}.other_{part}\""));
        let missing = if part == "qweight" { module } else { part_name.as_str() };
        refused(&path, "missing-tensor", &[missing]);
    }
    // Groups of another size than the scales are for.
    let (_f, path) = with_setting("gptq", "group_size", json!(16));
    refused(&path, "tensor-shape", &["scales", "expected shape [4, "]);
}

#[test]
fn what_the_settings_say_of_zero_points_and_columns_is_asked_of_the_tensors() {
    for name in ["ct-w4a16-asym", "ct-w8a8-asym"] {
        let (_f, path) = with_header(name, ".weight_zero_point\"", ".other_zero_point\"");
        assert!(!report_of(&path, Depth::Headers).problems().any(|problem| problem.kind == "missing-tensor"));
        edit(&path.join("config.json"), |config| {
            config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = json!(false);
        });
        refused(&path, "missing-tensor", &["q_proj.weight_zero_point"]);
    }
    // One group has one order.
    let (_f, path) = with_header("gptq-channel", ".g_idx\"", ".other_idx\"");
    edit(&path.join("config.json"), |config| config["quantization_config"]["desc_act"] = json!(true));
    assert!(!report_of(&path, Depth::Headers).problems().any(|problem| problem.kind == "missing-tensor"));
}

#[test]
fn eight_bit_floats_are_never_taken_for_numbers_of_their_own() {
    for (name, part) in [("fp8-static", "weight_scale"), ("ct-fp8-channel", "weight_scale")] {
        let (_f, path) = with_header(name, &format!(".{part}\""), &format!(".other_{part}\""));
        let num_missing =
            report_of(&path, Depth::Headers).problems().filter(|p| p.kind == "missing-tensor").count();
        assert_eq!(num_missing, 7, "each module of the layer");
    }
    for name in ["fp8-static", "fp8-block"] {
        let (_f, path) = copied(name);
        edit(&path.join("config.json"), |config| config["quantization_config"] = Value::Null);
        refused(&path, "tensor-dtype", &["q_proj.weight", "without a scale", "a quantization_config"]);
        let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
        edit(&path.join("config.json"), |config| config["quantization_config"] = gptq);
        refused(&path, "tensor-dtype", &["q_proj.weight", "without a scale"]);
    }
}

#[test]
fn the_file_of_modelopt_stands_for_the_field() {
    let (_f, path) = copied("fp8-static");
    edit(&path.join("config.json"), |config| config["quantization_config"] = Value::Null);
    let file = path.join("hf_quant_config.json");
    let settings = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}});
    fs::write(&file, settings.to_string()).unwrap();
    let report = report_of(&path, Depth::Headers);
    assert_eq!(report.quantization, Some("fp8"));
    assert!(report.problems().all(|problem| problem.kind == "tokenizer"), "{:#?}", report.findings);
    fs::write(&file, json!({"quantization": {"quant_algo": "NVFP4"}}).to_string()).unwrap();
    refused(&path, "configuration", &["quant_algo: NVFP4 is not supported, expected FP8"]);
    fs::write(&file, json!({"quantization": 4}).to_string()).unwrap();
    refused(&path, "invalid-json", &["hf_quant_config.json", "quantization to be an object"]);
}

#[test]
fn files_of_older_tools_stand_for_the_field() {
    for (name, file, method) in
        [("gptq", "quantize_config.json", "gptq"), ("awq", "quant_config.json", "awq")]
    {
        let (_f, path) = copied(name);
        let mut settings = Value::Null;
        edit(&path.join("config.json"), |config| {
            settings = std::mem::replace(&mut config["quantization_config"], Value::Null);
            settings.as_object_mut().unwrap().remove("quant_method");
        });
        fs::write(path.join(file), settings.to_string()).unwrap();
        let report = report_of(&path, Depth::Headers);
        assert_eq!(report.quantization, Some(method));
        assert!(report.problems().all(|problem| problem.kind == "tokenizer"), "{:#?}", report.findings);
        settings["bits"] = json!(3);
        fs::write(path.join(file), settings.to_string()).unwrap();
        let refused = report_of(&path, Depth::Headers);
        assert!(refused.problems().any(|problem| problem.file.ends_with(file)), "{:#?}", refused.findings);
    }
}

#[test]
fn settings_that_nobody_knows_are_told() {
    let (_f, path) = with_setting("gptq", "twist", json!("left"));
    let report = report_of(&path, Depth::Headers);
    let note = report.findings.iter().find(|note| note.kind == "unknown-setting").expect("a note");
    assert!(note.message.contains("quantization_config: twist"), "{}", note.message);
    for name in ["gptq-act-order", "awq", "fp8-static", "fp8-block", "ct-w4a16", "ct-w8a8"] {
        let findings = report_of(&golden(name), Depth::Headers).findings;
        assert!(findings.iter().all(|finding| finding.kind != "unknown-setting"), "{findings:#?}");
    }
}

#[test]
fn a_weight_in_two_forms_is_refused() {
    let module = "model.layers.0.self_attn.q_proj";
    let norm = "model.layers.0.input_layernorm.weight\"";
    let (_f, path) = with_header("gptq", norm, &format!("{module}.weight\""));
    let says = format!("tensor {module}.weight in ");
    refused(&path, "tensor-twice", &[&says, &format!("{module}.qweight, which is there too")]);
    let (_f, path) = with_header(
        "fp8-static",
        &format!("{module}.input_scale\""),
        &format!("{module}.weight_scale_inv\""),
    );
    refused(
        &path,
        "tensor-twice",
        &[&format!("{module}.weight_scale_inv"), &format!("{module}.weight_scale, which")],
    );
}

#[test]
fn columns_in_groups_that_there_are_not_are_found_by_headers_alone() {
    let (_f, path) = copied("gptq-act-order");
    let mut bytes = fs::read(path.join(WEIGHTS)).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let start = header["model.layers.0.self_attn.q_proj.g_idx"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + len + start..][..4].copy_from_slice(&999_i32.to_le_bytes());
    fs::write(path.join(WEIGHTS), bytes).unwrap();
    assert!(report_of(&path, Depth::Headers).problems().any(|problem| problem.kind == "column-group"));
    refused(&path, "column-group", &["q_proj.g_idx", "a column in group 999"]);
}

#[test]
fn settings_that_change_what_weights_mean_are_refused() {
    let hadamard = json!({"config_groups": {"R1": {"type": "hadamard", "apply": [{"targets": ["Linear"]}]}}});
    for (name, field, value) in [
        ("ct-w4a16", "transform_config", hadamard),
        ("gptq", "dynamic", json!({"+:.*down.*": {"bits": 8}})),
        ("gptq", "rotation", json!("hadamard")),
    ] {
        let (_f, path) = with_setting(name, field, value);
        refused(&path, "configuration", &[&format!("quantization_config.{field}"), "is not supported"]);
    }
}

#[test]
fn what_quantizers_leave_beside_weights_is_said_once() {
    let note = |name: &str, kind: &str| {
        let findings = report_of(&golden(name), Depth::Headers).findings;
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
