//! The readers of untrusted files return, whatever the bytes are.

use proptest::prelude::*;
use quire_kernels::DType;
use quire_models::testing::{GgufWriter, MetadataValue, TinyModel, write_safetensors};
use quire_models::{gguf, safetensors};

/// A small valid file, so that most of a mutated one is still understood.
fn small_gguf() -> Vec<u8> {
    let mut file = GgufWriter::default();
    file.set("general.architecture", MetadataValue::String("llama".to_owned()));
    file.set("a.size", MetadataValue::U32(3));
    file.set("a.list", MetadataValue::Strings(vec!["x".to_owned(), "yz".to_owned()]));
    file.set("a.numbers", MetadataValue::I32s(vec![1, -2, 3]));
    file.set("a.flag", MetadataValue::Bool(true));
    file.add("first", DType::F32, &[2, 3], vec![1; 24]);
    file.add("second", DType::Q4_0, &[2, 32], vec![2; 36]);
    file.to_bytes()
}

fn small_safetensors() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.safetensors");
    let tensor = |name: &str| (name.to_owned(), DType::F16, vec![2, 3], vec![7; 12]);
    write_safetensors(&path, &[tensor("first"), tensor("second")]).unwrap();
    std::fs::read(path).unwrap()
}

/// Bytes to overwrite: where (as a share of the length) and with what.
fn edits() -> impl Strategy<Value = Vec<(f64, u8)>> {
    prop::collection::vec((0.0..1.0, any::<u8>()), 1..6)
}

fn edited(mut file: Vec<u8>, edits: &[(f64, u8)], cut: f64) -> Vec<u8> {
    for (place, byte) in edits {
        let at = (place * file.len() as f64) as usize;
        file[at] = *byte;
    }
    file.truncate((cut * file.len() as f64).ceil() as usize);
    file
}

#[test]
fn the_unedited_files_are_valid() {
    assert_eq!(gguf::Header::parse(&small_gguf()).unwrap().tensors().len(), 2);
    assert_eq!(safetensors::Header::parse(&small_safetensors()).unwrap().entries().len(), 2);
    gguf::fuzz(&TinyModel::llama().to_gguf().to_bytes());
}

#[test]
fn every_prefix_of_a_gguf_file_is_refused_without_a_panic() {
    let file = small_gguf();
    for end in 0..file.len() {
        assert!(gguf::Header::parse(&file[..end]).is_err(), "the first {end} bytes were taken for a file");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_behind_the_magic(rest in prop::collection::vec(any::<u8>(), 0..200)) {
        gguf::fuzz(&rest);
        gguf::fuzz(&[b"GGUF\x03\0\0\0", &rest[..]].concat());
        gguf::fuzz(&[b"GGUF\x02\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", &rest[..]].concat());
        safetensors::fuzz(&rest);
    }

    #[test]
    fn an_edited_gguf_file(edits in edits(), cut in 0.0..=1.0) {
        gguf::fuzz(&edited(small_gguf(), &edits, 1.0));
        gguf::fuzz(&edited(small_gguf(), &edits, cut));
    }

    #[test]
    fn a_number_in_a_gguf_file_that_lies(place in 0.0..1.0, number in any::<u64>(), shift in 0_u32..64) {
        let mut file = small_gguf();
        let at = (place * (file.len() - 8) as f64) as usize;
        file[at..at + 8].copy_from_slice(&(number >> shift).to_le_bytes());
        gguf::fuzz(&file);
    }

    #[test]
    fn an_edited_safetensors_file(edits in edits(), cut in 0.0..=1.0) {
        let file = small_safetensors();
        safetensors::fuzz(&edited(file.clone(), &edits, 1.0));
        safetensors::fuzz(&edited(file, &edits, cut));
    }

    #[test]
    fn a_safetensors_header_that_lies(header in "[{}\"a-z:,\\[\\]0-9_ ]{0,80}", data in 0_usize..40) {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0);
        safetensors::fuzz(&file);
    }

    #[test]
    fn safetensors_offsets_that_lie(start in any::<u64>(), end in any::<u64>(), dims in any::<[u64; 2]>()) {
        let header = format!(
            r#"{{"a":{{"dtype":"F32","shape":[{},{}],"data_offsets":[{start},{end}]}}}}"#, dims[0], dims[1]
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        safetensors::fuzz(&file);
    }
}
