//! A number for everything that decides what a model answers.

use std::fmt;

use quire_models::identify_tokenizer;

use crate::EnginePlan;

/// Equal for runs that should give equal outputs for equal requests: the model (its revision, or the content of its files
/// as [`identify_content`](quire_models::Checkpoint::identify_content) has it), what weights and keys are kept in, and the
/// kernels. The same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The model.
    pub model: u64,
    /// All of it.
    pub all: u64,
}

impl Fingerprint {
    pub(crate) fn of(plan: &EnginePlan) -> Self {
        let model = Self::of_model(plan);
        let mut all = Hash(model);
        for (dtype, (num_tensors, num_bytes)) in &plan.weights().by_dtype {
            all.add(format!("{dtype} {num_tensors} {num_bytes}").as_bytes());
        }
        for group in &plan.memory().kv_groups {
            all.add(group.dtype.name().as_bytes());
        }
        all.add(plan.kernels().device().info().activation_dtype.name().as_bytes());
        // Rotary tables of some kinds depend on it.
        all.add(&plan.config().max_model_len().to_le_bytes());
        all.add(&plan.kernels().dispatch().fingerprint().to_le_bytes());
        Self { model, all: all.0 }
    }

    fn of_model(plan: &EnginePlan) -> u64 {
        let (config, checkpoint) = (plan.config(), plan.checkpoint());
        let mut model = Hash::default();
        let mut add = |bytes: &[u8]| model.add(bytes);
        match config.revision.as_deref() {
            Some(revision) => {
                add(revision.as_bytes());
                // A repository may hold several models.
                checkpoint.identify_files(&mut add);
            }
            None => checkpoint.identify_content(&mut add),
        }
        if let Some(path) = &config.tokenizer {
            identify_tokenizer(path, &mut add);
        }
        if let Some(template) = plan.given_template() {
            add(template.as_bytes());
        }
        model.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} (model {:016x})", self.all, self.model)
    }
}

/// Eight bytes at a time, so that tens of megabytes of a vocabulary cost milliseconds. No secret: it tells files apart
/// that nobody made to be taken for each other.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Adds bytes and their number, so that two texts are not taken for one.
    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
    }

    /// A product spreads a bit upwards, the shift brings it down again.
    fn mix(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 29;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(pieces: &[&[u8]]) -> u64 {
        let mut hash = Hash::default();
        pieces.iter().for_each(|piece| hash.add(piece));
        hash.0
    }

    #[test]
    fn every_bit_and_every_border_counts() {
        let text: Vec<u8> = (0..21).collect();
        for at in 0..8 * text.len() {
            let mut other = text.clone();
            other[at / 8] ^= 1 << (at % 8);
            assert_ne!(hash(&[&text]), hash(&[&other]), "bit {at}");
        }
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
        assert_ne!(hash(&[b"a"]), hash(&[b"a\0"]));
        assert_ne!(hash(&[b""]), hash(&[]));
    }
}
