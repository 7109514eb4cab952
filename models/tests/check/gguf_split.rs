//! GGUF models in several files.

use std::fs;
use std::path::PathBuf;

use quire_kernels::DType;
use quire_models::check::{CheckOptions, check};
use quire_models::testing::{GgufWriter, MetadataValue, TinyModel};
use quire_models::{Checkpoint, LoadOptions, ModelRegistry};
use tempfile::TempDir;

use super::refused;

/// A folder with a model in three files that `change` has been at.
fn split(change: impl FnOnce(&mut [GgufWriter])) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut files = TinyModel::llama().to_gguf().split(3);
    change(&mut files);
    for (at, file) in files.iter().enumerate() {
        fs::write(folder.path().join(name(at + 1)), file.to_bytes()).unwrap();
    }
    folder
}

fn name(number: usize) -> String {
    format!("tiny-{number:05}-of-00003.gguf")
}

fn part(folder: &TempDir, number: usize) -> PathBuf {
    folder.path().join(name(number))
}

#[test]
fn three_files_hold_what_one_does() {
    let folder = split(|_| {});
    let single = folder.path().join("tiny.gguf");
    TinyModel::llama().write_gguf(&single).unwrap();
    let whole = Checkpoint::open(&single, &LoadOptions::default()).unwrap();
    // Whichever of them is named, the first one is opened.
    for number in 1..=3 {
        let split = Checkpoint::open(&part(&folder, number), &LoadOptions::default()).unwrap();
        assert_eq!(split.path(), part(&folder, 1));
        assert_eq!(split.config(), whole.config());
        assert_eq!(split.files().len(), 3);
        let stored = whole.stored().unwrap();
        assert_eq!(split.stored().unwrap(), stored);
        for spec in stored {
            let tensor = |from: &Checkpoint| from.tensor(&spec.name, &spec.shape).unwrap();
            let (given, expected) = (tensor(&split), tensor(&whole));
            assert_eq!((&given.shape, given.dtype), (&expected.shape, expected.dtype), "{}", spec.name);
            assert_eq!(*given.bytes, *expected.bytes, "{}", spec.name);
        }
    }
    let report = check(&part(&folder, 2), &CheckOptions::default(), &ModelRegistry::default());
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(
        report.scan.num_tensors,
        report.weights.unwrap().by_dtype.values().map(|(n, _)| n).sum::<usize>()
    );
}

#[test]
fn files_that_are_missing_are_told_all_at_once_and_alone() {
    let folder = split(|_| {});
    fs::remove_file(part(&folder, 2)).unwrap();
    fs::remove_file(part(&folder, 3)).unwrap();
    refused(&part(&folder, 1), "missing-shard", &[&name(2)]);
    refused(&part(&folder, 1), "missing-shard", &[&name(3)]);
    let report = check(&part(&folder, 1), &CheckOptions::default(), &ModelRegistry::default());
    assert_eq!(report.problems().count(), 2, "their tensors are no problems of their own");

    let folder = split(|_| {});
    fs::remove_file(part(&folder, 1)).unwrap();
    refused(&part(&folder, 2), "missing-shard", &[&name(1)]);
}

#[test]
fn files_that_do_not_belong_together() {
    let broken = "broken-file";
    let folder = split(|files| files[1].replace("split.no", MetadataValue::U16(2)));
    refused(
        &part(&folder, 1),
        broken,
        &["split.no: 2, but the files in front of this one, by its name, are 1"],
    );
    let folder = split(|files| files[1].replace("split.count", MetadataValue::U16(4)));
    refused(&part(&folder, 1), broken, &["split.count: 4, but the files by their names are 3"]);
    let folder = split(|files| {
        files[0].replace("split.tensors.count", MetadataValue::U32(99));
    });
    refused(
        &part(&folder, 1),
        broken,
        &["split.tensors.count: 99, but the tensors of all files together are 20"],
    );
    let folder = split(|files| files[1] = TinyModel::llama().to_gguf());
    refused(&part(&folder, 1), broken, &["split.count: missing"]);
    let folder = split(|files| files[1] = files[0].clone());
    refused(&part(&folder, 1), broken, &["split.no: 0, but"]);
    let folder = split(|_| {});
    fs::write(part(&folder, 2), b"GGUF").unwrap();
    refused(&part(&folder, 1), broken, &["version: needs 4 bytes"]);
    let folder = split(|_| {});
    fs::rename(part(&folder, 1), folder.path().join("model.gguf")).unwrap();
    refused(&folder.path().join("model.gguf"), broken, &["one of 3", "NAME-00001-of-00003.gguf"]);
}

#[test]
fn a_tensor_in_two_files() {
    let folder = split(|files| {
        for file in files.iter_mut().skip(1) {
            file.add("extra.weight", DType::F32, &[2], vec![0; 8]);
        }
    });
    refused(&part(&folder, 1), "tensor-twice", &["extra.weight is in both", &name(2), &name(3)]);
}
