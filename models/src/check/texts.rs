//! What stands between text and ids.

use std::path::Path;

use super::{CheckReport, CheckTokenizer, Finding, Found};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Rows of an embedding beyond the tokenizer's ids that are worth a word: more than filling up to a round number.
const MANY_SPARE_ROWS: usize = 1024;

impl Found {
    /// Tokenizer against embedding, special tokens against both, and where templates are. `config` is there where it is sound.
    pub(super) fn check_texts(
        &mut self,
        checkpoint: &Checkpoint,
        config: Option<&ModelConfig>,
        tokenizer: CheckTokenizer,
        report: &mut CheckReport,
    ) {
        self.check_templates(checkpoint, report);
        if checkpoint.config().raw.contains_key("auto_map") {
            let message = "auto_map names code of the repository, which is never run".to_owned();
            self.note("remote-code", checkpoint, message);
        }
        report.generation = checkpoint.generation().clone();
        for unread in &report.generation.unread {
            let path = checkpoint.path().join("generation_config.json");
            let message = format!("{unread}; not heeded");
            self.notes.push(Finding::note("generation-config", &path, None, None, message));
        }
        if let Some(config) = config {
            self.check_generation(checkpoint, config.vocab_size);
        }
        match tokenizer {
            CheckTokenizer::Never => return,
            CheckTokenizer::WithProblems if self.errors.is_empty() => return,
            CheckTokenizer::WithProblems | CheckTokenizer::Always => {}
        }
        if let Some(tokenizer) = checkpoint.survey_tokenizer(&mut self.errors) {
            report.named_tokens = tokenizer.named_tokens().clone();
            self.check_tokenizer(checkpoint, config, &tokenizer);
        }
    }

    fn check_templates(&mut self, checkpoint: &Checkpoint, report: &mut CheckReport) {
        let before = self.errors.len();
        report.templates = checkpoint.survey_templates(&mut self.errors);
        if report.templates.default_template().is_none() && self.errors.len() == before {
            let message = "no chat template: chat requests need one that is given".to_owned();
            self.note("no-template", checkpoint, message);
        }
    }

    pub(super) fn check_tokenizer(
        &mut self,
        checkpoint: &Checkpoint,
        config: Option<&ModelConfig>,
        tokenizer: &Tokenizer,
    ) {
        self.check_named_tokens(checkpoint.path(), tokenizer);
        self.note_other_tokens(checkpoint, tokenizer);
        let num_rows = config.map_or(tokenizer.num_ids(), |config| config.vocab_size);
        if let Err(source) = tokenizer.probe(num_rows) {
            self.errors.push(Error::Tokenizer { path: checkpoint.path().to_owned(), source });
        }
        if !tokenizer.unheeded().is_empty() {
            let message = format!(
                "{} of tokenizer.json: not heeded, prompts stay whole",
                tokenizer.unheeded().join(", ")
            );
            self.note("tokenizer-settings", checkpoint, message);
        }
        if let Some(config) = config {
            self.compare_sizes(checkpoint, config.vocab_size, tokenizer);
            self.compare_ends(checkpoint, tokenizer);
        }
    }

    fn compare_sizes(&mut self, checkpoint: &Checkpoint, num_rows: usize, tokenizer: &Tokenizer) {
        let num_ids = tokenizer.num_ids();
        if tokenizer.num_base_ids() > num_rows {
            let path = checkpoint.path().to_owned();
            self.errors.push(Error::TokenizerSize { path, num_ids, num_rows });
        } else if num_ids > num_rows {
            // Makers of models leave such tokens behind; a prompt that has one is refused.
            let message =
                format!("added tokens have ids up to {}, the embedding has {num_rows} rows", num_ids - 1);
            self.note("tokenizer-size", checkpoint, message);
        } else if num_rows - num_ids > MANY_SPARE_ROWS {
            let message =
                format!("the embedding has {num_rows} rows, the tokenizer ids for {num_ids} of them");
            self.note("spare-rows", checkpoint, message);
        }
    }

    /// Tokens that have a role exist.
    fn check_named_tokens(&mut self, path: &Path, tokenizer: &Tokenizer) {
        let named = tokenizer.named_tokens();
        for (role, token) in
            [("bos", &named.bos), ("eos", &named.eos), ("pad", &named.pad), ("unk", &named.unk)]
        {
            let Some(token) = token else { continue };
            if tokenizer.inner().token_to_id(token).is_none() {
                let (path, token) = (path.to_owned(), token.clone());
                self.errors.push(Error::SpecialToken { path, role, token });
            }
        }
    }

    /// The ends of a text are joined whatever they are; that they differ is worth a look.
    fn compare_ends(&mut self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) {
        let (config, own) = (checkpoint.eos_token_ids(), tokenizer.eos_token_ids());
        if config.is_empty() && own.is_empty() {
            let message = "no end of text is named anywhere: texts end at max_tokens alone".to_owned();
            self.note("no-eos", checkpoint, message);
        } else if !own.is_subset(&config) && !config.is_empty() {
            let message =
                format!("the configuration ends texts at {config:?}, the tokenizer at {own:?}: all are used");
            self.note("eos-differ", checkpoint, message);
        }
        let bos = tokenizer.named_tokens().bos.as_deref().and_then(|bos| tokenizer.inner().token_to_id(bos));
        if let (Some(config), Some(own)) = (checkpoint.config().bos_token_id, bos)
            && config != own
        {
            let message = format!("the configuration begins texts with {config}, the tokenizer with {own}");
            self.note("bos-differ", checkpoint, message);
        }
    }

    fn check_generation(&mut self, checkpoint: &Checkpoint, vocab_size: usize) {
        for &given in checkpoint.generation().eos_token_ids.iter().filter(|id| **id as usize >= vocab_size) {
            self.errors.push(checkpoint.token_id_error("eos_token_id", given));
        }
    }

    fn note(&mut self, kind: &'static str, checkpoint: &Checkpoint, message: String) {
        self.notes.push(Finding::note(kind, checkpoint.path(), None, None, message));
    }
}
