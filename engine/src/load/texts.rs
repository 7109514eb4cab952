//! Tokenizer, chat template, and the tokens that end a text.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use quire_models::check;
use quire_models::{Checkpoint, NamedTokens, Tokenizer};

use crate::checked::EosTokens;
use crate::config::EngineConfig;
use crate::text::ChatTemplate;
use crate::{ConfigError, Result};

/// What the caller gives in place of the model's own: read, and refused, before any weight.
pub(super) struct GivenTexts {
    tokenizer: Option<Tokenizer>,
    chat_template: Option<String>,
}

impl GivenTexts {
    pub(super) fn read(config: &EngineConfig) -> Result<Self> {
        let refused = |error| crate::Error::Tokenizer(Arc::new(error));
        let tokenizer = config.tokenizer.as_deref().map(Tokenizer::open).transpose().map_err(refused)?;
        let chat_template = config.chat_template.as_deref().map(read_template).transpose()?;
        if let Some(template) = &chat_template {
            ChatTemplate::at_start(template, NamedTokens::default())?;
        }
        Ok(Self { tokenizer, chat_template })
    }

    /// The chat template given.
    pub(super) fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The tokenizer given, for [`load`](Self::load).
    pub(super) fn take_tokenizer(&mut self) -> Option<Tokenizer> {
        self.tokenizer.take()
    }

    /// What is given, and the model's own where nothing is. A model of made-up weights may come without a tokenizer.
    pub(super) fn load(
        &self,
        given: Option<Tokenizer>,
        config: &EngineConfig,
        checkpoint: &Checkpoint,
    ) -> Result<LoadedTexts> {
        let tokenizer = match given.map_or_else(|| check::tokenizer(checkpoint), Ok) {
            Ok(tokenizer) => Some(tokenizer),
            Err(error) if config.has_dummy_weights() => {
                tracing::warn!(target: "quire::engine", "no tokenizer: prompts must be token ids ({error})");
                None
            }
            Err(error) => return Err(error.into()),
        };
        let chat_template = match &self.chat_template {
            Some(given) => Some(given.clone()),
            None => own_template(checkpoint, tokenizer.as_ref())?,
        };
        Ok(LoadedTexts { tokenizer, chat_template })
    }
}

/// What stands between text and ids.
pub(super) struct LoadedTexts {
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) chat_template: Option<String>,
}

pub(super) fn eos_tokens(checkpoint: &Checkpoint, tokenizer: Option<&Tokenizer>) -> EosTokens {
    let config = checkpoint.config();
    let is_known = |id: &u32| (*id as usize) < config.vocab_size;
    let of_tokenizer = tokenizer.map(Tokenizer::eos_token_ids).into_iter().flatten();
    let silent: BTreeSet<u32> = of_tokenizer.chain(&config.eos_token_ids).copied().filter(is_known).collect();
    let told = checkpoint.generation().eos_token_ids.iter().copied();
    EosTokens { told: told.filter(is_known).filter(|id| !silent.contains(id)).collect(), silent }
}

/// The model's own template, if it has one that can be used.
fn own_template(checkpoint: &Checkpoint, tokenizer: Option<&Tokenizer>) -> Result<Option<String>> {
    let template = checkpoint.chat_templates()?.default_template().map(str::to_owned);
    if let Some(template) = &template {
        let named = tokenizer.map(Tokenizer::named_tokens).cloned().unwrap_or_default();
        ChatTemplate::at_start(template, named)?;
    }
    Ok(template)
}

/// A template given as a file, or by itself.
fn read_template(given: &str) -> Result<String, ConfigError> {
    let is_template = given.contains('{') || given.contains('\n');
    if is_template && !Path::new(given).exists() {
        return Ok(given.to_owned());
    }
    std::fs::read_to_string(given)
        .map_err(|error| ConfigError::Template { message: format!("{given} cannot be read: {error}") })
}
