//! GGUF files of the tiny models against the folders that they were made from.
//!
//! The files' headers were written by the Python package `gguf` (`tests/golden/tiny-gguf`), which also says how each
//! tensor follows from those of the folder.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::runner::Runner;
use quire_kernels::{Limits, reference};
use quire_models::testing::GoldenModel;
use quire_models::{Checkpoint, LoadOptions, ModelRegistry};
use serde::Deserialize;
use serde_json::{Map, Value};

const ALIGNMENT: usize = 32;

/// Sums of many products in another order, and the weights of Gemma's norms with one added in float32.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct GoldenGguf {
    /// Fields of `config.json` as a GGUF file understands them.
    config: Map<String, Value>,
    /// The file up to its tensors' data, in hexadecimal.
    header: String,
    tensors: Vec<Converted>,
}

/// A tensor: its name, the folder's tensors that it holds, what was done to them with which argument, a sum over its
/// elements, and the elements themselves where no tensor of the folder holds them.
type Converted = (String, Vec<String>, String, usize, u64, Vec<f32>);

impl GoldenGguf {
    fn read(path: &Path) -> Self {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn to_bytes(&self, model: &GoldenModel) -> Vec<u8> {
        let values: BTreeMap<&str, _> =
            model.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let digits = self.header.as_bytes().chunks(2);
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        let mut file: Vec<u8> = digits.map(byte).collect();
        for (name, from, how, argument, sum, given) in &self.tensors {
            let parts = from.iter().flat_map(|from| {
                let tensor = values[from.as_str()];
                convert(how, *argument, &tensor.shape, model.values(tensor))
            });
            let data: Vec<f32> = parts.chain(given.iter().copied()).collect();
            assert_eq!(checksum(&data), *sum, "{name} is what the script wrote");
            file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
            data.iter().for_each(|value| file.extend(value.to_le_bytes()));
        }
        file
    }
}

fn convert(how: &str, num_heads: usize, shape: &[usize], values: Vec<f32>) -> Vec<f32> {
    match how {
        "copy" => values,
        "plus_one" => values.into_iter().map(|value| value + 1.0).collect(),
        "permute" => {
            // Row `2 i + j` of a head is its row `j half + i`.
            let columns = values.len() / shape[0];
            let half = shape[0] / num_heads / 2;
            let rows = (0..shape[0]).map(|at| {
                let (head, row) = (at / (2 * half), at % (2 * half));
                head * 2 * half + row % 2 * half + row / 2
            });
            rows.flat_map(|row| values[row * columns..(row + 1) * columns].to_vec()).collect()
        }
        other => panic!("{other} is no way of converting"),
    }
}

fn checksum(values: &[f32]) -> u64 {
    let words = values.iter().map(|value| u64::from(value.to_bits()));
    words.zip(0u64..).fold(0, |sum, (word, at)| sum.wrapping_add(word.wrapping_mul(2 * at + 1)))
}

fn logits(checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<Vec<f32>> {
    let limits = Limits {
        max_num_batched_tokens: tokens.len(),
        max_num_seqs: 1,
        max_model_len: tokens.len(),
        block_size: 8,
    };
    Runner::with_limits(checkpoint, reference::kernels(), limits).step(&[(0, tokens)])
}

/// Compares the file, with its bytes as `change` leaves them, which is told where data begin, with the folder; says what differs.
fn check(path: &Path, change: impl Fn(&mut Vec<u8>, usize)) -> Option<String> {
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let golden = GoldenGguf::read(path);
    let folder = path.parent().unwrap().with_file_name("tiny").join(path.file_name().unwrap());
    let mut model = GoldenModel::read(&folder).unwrap();
    model.config.extend(golden.config.clone());

    let temporary = tempfile::tempdir().unwrap();
    model.write_folder(temporary.path()).unwrap();
    let file = temporary.path().join("model.gguf");
    let mut bytes = golden.to_bytes(&model);
    change(&mut bytes, golden.header.len() / 2);
    std::fs::write(&file, bytes).unwrap();
    let open = |path: &Path| {
        Checkpoint::open(path, &LoadOptions::default())
            .unwrap_or_else(|error| panic!("{name}: {}", common::chain(&error)))
    };
    let (of_folder, of_file) = (open(temporary.path()), open(&file));
    let registry = ModelRegistry::default();
    let architecture = registry.find(&of_file.config().architecture).unwrap();
    let summary = of_file.check(&architecture.tensors(&of_file).unwrap());
    let summary = summary.unwrap_or_else(|error| panic!("{name}: {}", common::chain(&error)));
    assert!(summary.unused.is_empty(), "{name}: {:?}", summary.unused);

    let (given, expected) = (logits(&of_file, &model.prompt), logits(&of_folder, &model.prompt));
    let pairs = given.iter().flatten().zip(expected.iter().flatten());
    let worst = pairs.map(|(given, expected)| (given - expected).abs()).fold(0.0, f32::max);
    (worst.is_nan() || worst >= TOLERANCE).then(|| format!("{name}: off by {worst}"))
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny-gguf")
}

/// Older converters squeeze matrices of one row.
#[test]
fn a_matrix_of_one_row_may_be_a_vector() {
    let squeeze = |bytes: &mut Vec<u8>, data: usize| {
        let name = b"blk.0.ffn_gate_inp_shexp.weight";
        let dims = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len();
        assert_eq!(bytes[dims..dims + 4], [2, 0, 0, 0], "a matrix");
        bytes[dims] = 1;
        // Its second dimension, 1, goes; the header's padding grows by as much.
        let rows = dims + 4 + 8..dims + 4 + 16;
        bytes.splice(data..data, [0; 8]);
        bytes.drain(rows);
    };
    assert_eq!(check(&folder().join("qwen2-moe.json"), squeeze), None);
}

#[test]
fn files_give_the_logits_of_the_folders_that_they_were_made_from() {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 10, "the folder holds a file for each architecture");
    let misses: Vec<String> = paths.iter().filter_map(|path| check(path, |_, _| {})).collect();
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}
