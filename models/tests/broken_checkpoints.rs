//! Damaged files: one error each, with file, tensor and bytes, before anything is reserved (BR-47, BR-48).

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{assert_says, open_and_check};
use quire_kernels::DType;
use quire_models::testing::{GgufWriter, MetadataValue, TinyModel, write_safetensors};
use quire_models::{Checkpoint, Error, LoadOptions, OutputHead};
use tempfile::TempDir;

fn sharded() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    TinyModel { num_shards: 3, ..TinyModel::qwen2() }.write_folder(folder.path()).unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

const LAST_SHARD: &str = "model-00003-of-00003.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn edit_index(folder: &Path, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = folder.join(INDEX);
    let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    fs::write(path, index.to_string()).unwrap();
}

#[test]
fn sound_shards_load() {
    let (_folder, path) = sharded();
    let summary = open_and_check(&path).unwrap();
    assert!(summary.unused.is_empty());
    assert_eq!(summary.num_bytes, 4 * summary.num_parameters);
}

#[test]
fn br48_a_missing_shard_is_named_with_its_tensors() {
    let (_folder, path) = sharded();
    fs::remove_file(path.join(LAST_SHARD)).unwrap();
    let error = open_and_check(&path).unwrap_err();
    assert!(matches!(error, Error::Shards { .. }));
    assert_says(&error, &[INDEX, LAST_SHARD, "is missing", "tensors such as model.layers.1."]);
}

#[test]
fn br48_a_truncated_shard_names_the_bytes_missing() {
    let (_folder, path) = sharded();
    let shard = path.join(LAST_SHARD);
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 1024]).unwrap();
    let error = open_and_check(&path).unwrap_err();
    assert_says(&error, &[LAST_SHARD, "tensor model.", "1024 bytes missing"]);
}

#[test]
fn br48_offsets_past_the_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    TinyModel::llama().write_folder(path).unwrap();
    let header = br#"{"model.norm.weight":{"dtype":"F32","shape":[64],"data_offsets":[4096,4352]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 256]].concat();
    fs::write(path.join("model.safetensors"), file).unwrap();
    let error = open_and_check(path).unwrap_err();
    assert_says(&error, &["model.safetensors", "tensor model.norm.weight", "4096 bytes missing"]);
}

#[test]
fn br48_a_header_length_of_a_terabyte_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    TinyModel::llama().write_folder(path).unwrap();
    fs::write(path.join("model.safetensors"), [&(1_u64 << 40).to_le_bytes()[..], &[0; 100]].concat())
        .unwrap();
    let error = open_and_check(path).unwrap_err();
    assert_says(&error, &["model.safetensors", "header length 1099511627776 is out of range"]);
}

#[test]
fn br48_an_index_that_names_an_absent_tensor_is_refused() {
    let (_folder, path) = sharded();
    edit_index(&path, |map| {
        map.insert("model.layers.9.mlp.up_proj.weight".to_owned(), LAST_SHARD.into());
    });
    let error = open_and_check(&path).unwrap_err();
    assert_says(&error, &[INDEX, "model.layers.9.mlp.up_proj.weight", LAST_SHARD]);
}

#[test]
fn br48_a_stale_index_beside_a_single_file_is_ignored() {
    let (_folder, path) = sharded();
    edit_index(&path, |map| {
        map.insert("gone".to_owned(), "gone.safetensors".into());
    });
    TinyModel { num_shards: 1, ..TinyModel::qwen2() }.write_folder(&path).unwrap();
    open_and_check(&path).unwrap();
}

#[cfg(unix)]
#[test]
fn br48_shards_behind_links_load() {
    let (_folder, path) = sharded();
    let blobs = path.join("blobs");
    fs::create_dir(&blobs).unwrap();
    for at in 1..=3 {
        let name = format!("model-{at:05}-of-00003.safetensors");
        fs::rename(path.join(&name), blobs.join(&name)).unwrap();
        std::os::unix::fs::symlink(Path::new("blobs").join(&name), path.join(&name)).unwrap();
    }
    open_and_check(&path).unwrap();
}

#[test]
fn a_shard_name_cannot_leave_the_folder() {
    let (_folder, path) = sharded();
    edit_index(&path, |map| {
        map.insert("model.norm.weight".to_owned(), "../elsewhere.safetensors".into());
    });
    assert_says(&open_and_check(&path).unwrap_err(), &["../elsewhere.safetensors", "not a file name"]);
}

#[test]
fn a_missing_tensor_and_a_wrong_shape_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    TinyModel::llama().with_config("num_hidden_layers", 3).write_folder(path).unwrap();
    let error = open_and_check(path).unwrap_err();
    assert_says(&error, &["tensor model.layers.2.self_attn.q_proj.weight is missing"]);

    TinyModel::llama().with_config("intermediate_size", 96).write_folder(path).unwrap();
    let error = open_and_check(path).unwrap_err();
    let shapes = "expected shape [96, 64], given [128, 64]";
    assert_says(&error, &["model.layers.0.mlp.gate_proj.weight", "model.safetensors", shapes]);
}

#[test]
fn a_wrong_dtype_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    TinyModel::llama().write_folder(path).unwrap();
    let tensor = |dtype| ("model.norm.weight".to_owned(), dtype, vec![64], vec![0; 64 * 8]);
    write_safetensors(&path.join("model.safetensors"), &[tensor(DType::I64)]).unwrap();
    let checkpoint = Checkpoint::open(path, &LoadOptions::default()).unwrap();
    let error = checkpoint.vector("model.norm.weight", 64).unwrap_err();
    assert_says(&error, &["model.norm.weight", "dtype i64", "expected a floating-point"]);
}

#[test]
fn what_the_model_does_not_use_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel { num_layers: 3, ..TinyModel::llama() }
        .with_config("num_hidden_layers", 2)
        .write_folder(folder.path())
        .unwrap();
    let unused = open_and_check(folder.path()).unwrap().unused;
    assert_eq!(unused.len(), 9);
    assert!(unused.iter().all(|name| name.starts_with("model.layers.2.")), "{unused:?}");
}

#[test]
fn no_model_and_no_weights_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(matches!(open_and_check(path), Err(Error::NotAModel { .. })));
    TinyModel::llama().write_folder(path).unwrap();
    fs::remove_file(path.join("model.safetensors")).unwrap();
    assert_says(&open_and_check(path).unwrap_err(), &["holds no weights", "model.safetensors"]);
    assert!(matches!(open_and_check(&path.join("nowhere")), Err(Error::Io { .. })));
    assert!(matches!(open_and_check(&path.join("config.json")), Err(Error::NotAModel { .. })));
}

/// What the head is for a tie flag and the `lm_head.weight` of a checkpoint.
fn head(tied_flag: bool, write_head: bool, same: bool) -> Result<OutputHead, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    TinyModel { tied: true, ..TinyModel::llama() }
        .with_config("tie_word_embeddings", tied_flag)
        .write_folder(path)
        .unwrap();
    if write_head {
        let shape = [288, 64];
        let checkpoint = Checkpoint::open(path, &LoadOptions::default()).unwrap();
        let read = |spec: &quire_models::TensorSpec| {
            let tensor = checkpoint.tensor(&spec.name, &spec.shape).unwrap();
            (spec.name.clone(), tensor.dtype, tensor.shape, tensor.bytes.to_vec())
        };
        let mut tensors: Vec<_> = checkpoint.stored().unwrap().iter().map(read).collect();
        let mut bytes = checkpoint.tensor("model.embed_tokens.weight", &shape).unwrap().bytes.to_vec();
        bytes[0] ^= u8::from(!same);
        tensors.push(("lm_head.weight".to_owned(), DType::F32, shape.to_vec(), bytes));
        drop(checkpoint);
        write_safetensors(&path.join("model.safetensors"), &tensors).unwrap();
    }
    Checkpoint::open(path, &LoadOptions::default())?.output_head()
}

#[test]
fn br47_the_head_follows_from_flag_and_tensors() {
    assert_eq!(head(true, false, true).unwrap(), OutputHead::Tied);
    assert_eq!(head(true, true, true).unwrap(), OutputHead::Tied);
    assert_eq!(head(true, true, false).unwrap(), OutputHead::Tied, "as the reference, with a warning");
    assert_eq!(head(false, true, false).unwrap(), OutputHead::Own);
    assert_says(&head(false, false, true).unwrap_err(), &["lm_head.weight", "is missing"]);
}

/// The error of a GGUF file.
fn gguf_error(bytes: &[u8]) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let error = open_and_check(&path).expect_err("the file must be refused");
    assert_says(&error, &["model.gguf"]);
    error
}

#[test]
fn a_gguf_file_that_is_none_is_refused() {
    assert_says(&gguf_error(b"PK\x03\x04 something"), &["not a gguf file"]);
    assert_says(&gguf_error(b""), &["not a gguf file"]);
    assert_says(&gguf_error(b"GGUF\0\0\0\x03aaaabbbb"), &["the file is big-endian"]);
    assert_says(&gguf_error(b"GGUF\x03\0\0\0"), &["tensor count: needs 8 bytes at byte 8"]);
}

#[test]
fn a_gguf_count_that_lies_is_refused() {
    let mut file = TinyModel::llama().to_gguf().to_bytes();
    file[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_says(&gguf_error(&file), &["tensor count: 18446744073709551615 entries cannot fit"]);
}

#[test]
fn a_truncated_gguf_file_names_tensor_and_bytes() {
    let file = TinyModel::llama().to_gguf().to_bytes();
    let error = gguf_error(&file[..file.len() - 100]);
    assert_says(&error, &["tensor blk.1.ffn_norm.weight", "100 bytes missing"]);
}

#[test]
fn a_gguf_tensor_of_an_unknown_quantization_is_refused_with_those_known() {
    let mut file = GgufWriter::default();
    file.add("odd", DType::F32, &[4], vec![0; 16]);
    let mut bytes = file.to_bytes();
    // Name (8 + 3), dimension count, one dimension: the type stands behind them.
    let at = 24 + 8 + 3 + 4 + 8;
    bytes[at..at + 4].copy_from_slice(&16_u32.to_le_bytes());
    assert_says(&gguf_error(&bytes), &["tensor odd", "IQ2_XXS is not supported", "known are F32, F16, Q4_0"]);
}

#[test]
fn gguf_metadata_of_the_wrong_type_is_named() {
    let mut file = GgufWriter::default();
    file.set("general.architecture", MetadataValue::U32(1));
    assert_says(&gguf_error(&file.to_bytes()), &["general.architecture: expected a string, given u32"]);
    let mut file = GgufWriter::default();
    file.set("general.architecture", MetadataValue::String("mamba".to_owned()));
    assert_says(
        &gguf_error(&file.to_bytes()),
        &["\"mamba\" is not supported; known are llama, qwen2, qwen2moe, qwen3"],
    );
    let mut file = GgufWriter::default();
    file.set("general.architecture", MetadataValue::String("llama".to_owned()));
    assert_says(&gguf_error(&file.to_bytes()), &["llama.embedding_length: missing"]);
}

#[test]
fn a_gguf_file_that_is_one_of_several_needs_a_name_that_leads_to_the_others() {
    let mut file = TinyModel::llama().to_gguf();
    file.set("split.count", MetadataValue::U16(3));
    assert_says(&gguf_error(&file.to_bytes()), &["split.no: missing"]);
    file.set("split.no", MetadataValue::U16(0));
    assert_says(&gguf_error(&file.to_bytes()), &["the file is one of 3", "NAME-00001-of-00003.gguf"]);
}

#[test]
fn a_gguf_file_is_spoken_of_in_its_own_words() {
    use MetadataValue::U32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (key, value, said) in [
        ("llama.block_count", 0, "llama.block_count: expected 1 to 65536, given 0"),
        ("llama.embedding_length", 0, "llama.embedding_length: expected 1 to 4294967295, given 0"),
        (
            "llama.attention.head_count_kv",
            3,
            "llama.attention.head_count: expected a multiple of llama.attention.head_count_kv = 3, given 4",
        ),
        ("llama.attention.key_length", 15, "llama.attention.key_length: expected an even number, given 15"),
        ("tokenizer.ggml.eos_token_id", 999, "tokenizer.ggml.eos_token_id: 999 is not in the vocabulary"),
        ("llama.block_count", 3, "tensor blk.2.attn_q.weight is missing"),
        ("llama.feed_forward_length", 96, "tensor blk.0.ffn_gate.weight in "),
    ] {
        let mut file = TinyModel::llama().to_gguf();
        file.replace(key, U32(value));
        if key.ends_with("key_length") {
            file.replace("llama.rope.dimension_count", U32(value));
        }
        fs::write(&path, file.to_bytes()).unwrap();
        assert_says(&open_and_check(&path).unwrap_err(), &["model.gguf", said]);
    }
}

#[test]
fn what_the_decoder_cannot_compute_is_refused_before_a_weight_is_read() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().with_config("hidden_act", "gelu").write_folder(folder.path()).unwrap();
    let error = open_and_check(folder.path()).unwrap_err();
    assert_says(&error, &["LlamaForCausalLM", "hidden_act = gelu", "expected silu"]);
}
