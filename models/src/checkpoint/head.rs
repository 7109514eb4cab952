//! Whether the output head is the embedding.

use super::{Checkpoint, TensorSpec};
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
    /// | tied | absent, or equal to the embedding | the embedding, so that it is held once |
    /// | tied | different | the embedding, as the reference ties it after loading; a [check](crate::check) notes it |
    /// | untied | there | `lm_head.weight` |
    /// | untied | absent | an error that names it |
    ///
    /// # Errors
    /// [`Error::MissingTensor`] for the last row of the table.
    pub fn output_head(&self) -> Result<OutputHead> {
        match (self.config.tie_word_embeddings, self.contains(HEAD)) {
            (true, _) => Ok(OutputHead::Tied),
            (false, true) => Ok(OutputHead::Own),
            (false, false) => {
                Err(Error::MissingTensor { tensor: self.stored_name(HEAD), path: self.path.clone() })
            }
        }
    }

    /// The name of a stored head that differs from the embedding, which is used in its place.
    pub(crate) fn ignored_head(&self) -> Option<&'static str> {
        let is_stored = self.config.tie_word_embeddings && self.contains(HEAD);
        (is_stored && !self.head_equals_embedding()).then_some(HEAD)
    }

    fn head_equals_embedding(&self) -> bool {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        let [embedding, head] =
            [EMBEDDING, HEAD].map(|name| self.source.tensor(&TensorSpec::new(name, &shape)).ok());
        embedding.zip(head).is_some_and(|(embedding, head)| {
            (embedding.dtype, &embedding.shape) == (head.dtype, &head.shape)
                && *embedding.bytes == *head.bytes
        })
    }
}
