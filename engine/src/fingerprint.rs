//! A number for everything that decides what a model answers.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::EnginePlan;

/// What of each file is looked at: headers, and in a small model all of it.
const HEAD_BYTES: u64 = 1 << 20;

/// Equal for runs that should give equal outputs for equal requests: the model (its revision, or the names, lengths and
/// beginnings of its files), what weights and keys are kept in, and the kernels. FNV-1a, equal on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The model.
    pub model: u64,
    /// All of it.
    pub all: u64,
}

impl Fingerprint {
    pub(crate) fn of(plan: &EnginePlan) -> Self {
        let (config, checkpoint) = (plan.config(), plan.checkpoint());
        let mut model = Hash::default();
        match config.revision.as_deref() {
            Some(revision) => model.add(revision.as_bytes()),
            None => {
                for (path, len) in checkpoint.files() {
                    model.add(path.file_name().unwrap_or_default().as_encoded_bytes());
                    model.add(&len.to_le_bytes());
                    model.add(&head(&path));
                }
                model.add(format!("{:?}", checkpoint.config()).as_bytes());
            }
        }
        let mut all = Hash(model.0);
        for (dtype, (num_tensors, num_bytes)) in &plan.weights().by_dtype {
            all.add(format!("{dtype} {num_tensors} {num_bytes}").as_bytes());
        }
        for group in &plan.memory().kv_groups {
            all.add(group.dtype.name().as_bytes());
        }
        all.add(plan.kernels().device().info().activation_dtype.name().as_bytes());
        // Rotary tables of some kinds depend on it.
        all.add(&config.max_model_len().to_le_bytes());
        all.add(&plan.kernels().dispatch().fingerprint().to_le_bytes());
        Self { model: model.0, all: all.0 }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} (model {:016x})", self.all, self.model)
    }
}

/// The beginning of a file; nothing where it cannot be read, which loading it would have told.
fn head(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(HEAD_BYTES).read_to_end(&mut bytes);
    }
    bytes
}

struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Adds bytes and an end, so that two texts are not taken for one.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().copied().chain((bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
