//! Reading the keys of one architecture, with faults that name them.

use std::cell::RefCell;

use super::super::ConfigError;
use super::super::faults::Faults;
use super::{ARCHITECTURES, EMBEDDING};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, GgufError, TensorEntry};

/// Fields of `config.json`, and the keys of an architecture that hold the same.
const KEYS: [(&str, &str); 15] = [
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("partial_rotary_factor", "rope.dimension_count"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("logits_scaling", "logit_scale"),
];

/// The keys of one architecture, and where faults go. A key that is at fault is read as if it were absent.
pub(super) struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'a str,
    /// What is wrong with keys and tensors by themselves.
    errors: RefCell<Vec<Error>>,
    /// What is wrong with the configuration that they make.
    faults: Faults,
}

impl<'a> Keys<'a> {
    /// Those of the file's architecture.
    ///
    /// # Errors
    /// [`Error::Gguf`] where it is not there, [`Error::Config`] where it is none of those known.
    pub(super) fn of(file: &'a Gguf) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let given = file.metadata().string(KEY).map_err(|source| file.error(source))?;
        let missing = || file.error(GgufError::MissingKey { field: KEY.to_owned() });
        let prefix = given.ok_or_else(missing)?;
        let known = ARCHITECTURES.map(|(theirs, _)| theirs);
        if !known.contains(&prefix) {
            let (given, known) = (prefix.to_owned(), known.join(", "));
            let source = ConfigError::GgufArchitecture { given, known };
            return Err(Error::Config { path: file.path().to_owned(), source });
        }
        Ok(Self { file, prefix, errors: RefCell::default(), faults: Faults::default() })
    }

    /// Where faults go.
    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Takes an error in.
    pub(super) fn add(&self, error: Error) {
        self.errors.borrow_mut().push(error);
    }

    /// All that was found.
    pub(super) fn into_errors(self) -> impl Iterator<Item = Error> {
        let path = self.file.path().to_owned();
        let refuse = move |source| Error::Config { path: path.clone(), source };
        self.errors.into_inner().into_iter().chain(self.faults.into_vec().into_iter().map(refuse))
    }

    /// The file's name of its architecture.
    pub(super) fn prefix(&self) -> &'a str {
        self.prefix
    }

    pub(super) fn file(&self) -> &'a Gguf {
        self.file
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&'a TensorEntry> {
        self.file.tensor(name)
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// What the file calls a field of `config.json`.
    pub(super) fn name(&self, field: &str) -> String {
        match KEYS.iter().find(|(theirs, _)| *theirs == field) {
            Some((_, key)) => self.key(key),
            None => match field {
                "vocab_size" => format!("rows of {EMBEDDING}"),
                "bos_token_id" | "eos_token_id" => format!("tokenizer.ggml.{field}"),
                _ => field.to_owned(),
            },
        }
    }

    pub(super) fn find_size(&self, name: &str) -> Option<usize> {
        let found = self.take(self.file.metadata().unsigned(&self.key(name)));
        found.map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    pub(super) fn size(&self, name: &str) -> Option<usize> {
        let field = self.key(name);
        if !self.file.metadata().contains(&field) {
            self.add(self.file.error(GgufError::MissingKey { field }));
            return None;
        }
        self.find_size(name)
    }

    /// As [`find_size`](Self::find_size), where something else than a number is no fault.
    pub(super) fn size_if_one(&self, name: &str) -> Option<usize> {
        let found = self.file.metadata().unsigned(&self.key(name)).ok().flatten();
        found.and_then(|number| usize::try_from(number).ok())
    }

    pub(super) fn float(&self, name: &str) -> Option<f64> {
        self.take(self.file.metadata().float(&self.key(name)))
    }

    pub(super) fn required_float(&self, name: &str) -> Option<f64> {
        let field = self.key(name);
        if !self.file.metadata().contains(&field) {
            self.add(self.file.error(GgufError::MissingKey { field }));
            return None;
        }
        self.float(name)
    }

    pub(super) fn string(&self, name: &str) -> Option<&'a str> {
        self.take(self.file.metadata().string(&self.key(name)))
    }

    pub(super) fn token_id(&self, which: &str) -> Option<u32> {
        let found = self.take(self.file.metadata().unsigned(&format!("tokenizer.ggml.{which}_token_id")));
        found.and_then(|id| u32::try_from(id).ok())
    }

    fn take<T>(&self, read: Result<Option<T>, GgufError>) -> Option<T> {
        read.unwrap_or_else(|source| {
            self.add(self.file.error(source));
            None
        })
    }
}
