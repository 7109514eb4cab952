//! What a check asks of a checkpoint beyond what loading does.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{Checkpoint, StoredPart, TensorSpec};
use crate::check::Finding;
use crate::config::ConfigError;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, GgufError};

impl Checkpoint {
    /// The files that tensors lie in, with their lengths in bytes.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.source.files()
    }

    /// What there is to say of the files that is no problem.
    pub(crate) fn notes_of_files(&self) -> Vec<Finding> {
        self.source.notes()
    }

    /// The names of all tensors, as far as they are stored.
    pub(crate) fn stored_names(&self) -> BTreeSet<String> {
        self.source.names().into_iter().collect()
    }

    /// The pieces of a tensor as they are stored.
    pub(crate) fn stored_parts(&self, spec: &TensorSpec) -> Vec<StoredPart> {
        self.source.parts(spec)
    }

    /// The file of a tensor, and its bytes.
    pub(crate) fn place_of(&self, name: &str) -> (PathBuf, Option<u64>) {
        let spec = TensorSpec::new(name, &[]);
        let parts = self.source.parts(&spec);
        let num_bytes = parts.iter().map(|part| part.bytes.len() as u64).sum();
        match parts.first() {
            Some(part) => (part.path.clone(), Some(num_bytes)),
            None => (self.path.clone(), None),
        }
    }

    /// Goes on as if the output head were the embedding.
    pub(crate) fn tie_head(&mut self) {
        self.config.tie_word_embeddings = true;
    }

    /// A token id of `generation_config.json` that is in no row.
    pub(crate) fn token_id_error(&self, field: &str, given: u32) -> Error {
        let vocab_size = self.config.vocab_size;
        let source = ConfigError::TokenId { field: field.to_owned(), given, vocab_size };
        Error::Config { path: self.path.join("generation_config.json"), source }
    }

    /// Where what a GGUF file says of itself does not agree with its tensors.
    pub(crate) fn check_metadata(&self, errors: &mut Vec<Error>) {
        if let Some(file) = self.gguf() {
            errors.extend(check_vocab_size(file, self.config.vocab_size).err());
            errors.extend(check_block_count(file, self.config.num_layers).err());
        }
    }
}

fn key_of(file: &Gguf, name: &str) -> String {
    let prefix = file.metadata().string("general.architecture").ok().flatten();
    format!("{}.{name}", prefix.unwrap_or_default())
}

fn check_vocab_size(file: &Gguf, num_rows: usize) -> Result<()> {
    let field = key_of(file, "vocab_size");
    let given = file.metadata().unsigned(&field).map_err(|source| file.error(source))?;
    match given {
        Some(given) if given != num_rows as u64 => {
            let tensors = "the rows of token_embd.weight";
            Err(file.error(GgufError::Contradiction { field, given, tensors, counted: num_rows as u64 }))
        }
        _ => Ok(()),
    }
}

/// Layers beyond those that are named; layers for drafts, which some models have at the end, are named by themselves.
fn check_block_count(file: &Gguf, num_layers: usize) -> Result<()> {
    let drafts = key_of(file, "nextn_predict_layers");
    let drafts = file.metadata().unsigned(&drafts).map_err(|source| file.error(source))?;
    if drafts.is_some_and(|layers| layers > 0) {
        return Ok(());
    }
    let layer = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<u64>().ok();
    let last = file.tensors().filter_map(|tensor| layer(tensor.name())).max();
    let counted = last.map_or(0, |last| last.saturating_add(1));
    if counted <= num_layers as u64 {
        return Ok(());
    }
    let (field, given) = (key_of(file, "block_count"), num_layers as u64);
    let tensors = "the layers that there are tensors of";
    Err(file.error(GgufError::Contradiction { field, given, tensors, counted }))
}
