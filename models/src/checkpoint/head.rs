//! Whether the output head is the embedding.

use super::Checkpoint;
use crate::error::{Error, Result};

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Where the weight of the output head is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputHead {
    /// It is the embedding.
    Tied,
    /// It is a tensor of its own.
    Own,
}

impl Checkpoint {
    /// Decides where the output head is, from `tie_word_embeddings` and from the tensors that are there:
    ///
    /// | flag | `lm_head.weight` | head |
    /// |---|---|---|
    /// | tied | absent | the embedding |
    /// | tied | equal to the embedding | the embedding, so that it is held once |
    /// | tied | different | the embedding, as the reference ties it after loading; with a warning |
    /// | untied | there | `lm_head.weight` |
    /// | untied | absent | an error that names it |
    ///
    /// # Errors
    /// [`Error::MissingTensor`] for the last row of the table.
    pub fn output_head(&self) -> Result<OutputHead> {
        match (self.config.tie_word_embeddings, self.contains(HEAD)) {
            (false, true) => Ok(OutputHead::Own),
            (false, false) => {
                Err(Error::MissingTensor { tensor: self.stored_name(HEAD), path: self.path.clone() })
            }
            (true, false) => Ok(OutputHead::Tied),
            (true, true) => {
                if !self.head_equals_embedding()? {
                    tracing::warn!(
                        target: "quire::models",
                        path = %self.path.display(),
                        "tie_word_embeddings is set but {HEAD} differs from {EMBEDDING}: the embedding is used"
                    );
                }
                Ok(OutputHead::Tied)
            }
        }
    }

    fn head_equals_embedding(&self) -> Result<bool> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        let embedding = self.tensor(EMBEDDING, &shape)?;
        let head = self.tensor(HEAD, &shape)?;
        Ok(embedding.dtype == head.dtype && *embedding.bytes == *head.bytes)
    }
}
