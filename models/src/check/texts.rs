//! What stands between text and ids.

use super::{CheckReport, Finding, Found};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Rows of an embedding beyond the tokenizer's ids that are worth a word: more than filling up to a round number.
const MANY_SPARE_ROWS: usize = 1024;

impl Found {
    /// Tokenizer against embedding, special tokens against both, and where templates are.
    pub(super) fn check_texts(
        &mut self,
        checkpoint: &Checkpoint,
        skip_tokenizer: bool,
        report: &mut CheckReport,
    ) {
        match checkpoint.chat_templates() {
            Ok(templates) if templates.default_template().is_none() => {
                let message = "no chat template: chat requests need one that is given".to_owned();
                self.note("no-template", checkpoint, message);
            }
            Ok(templates) => report.templates = templates,
            Err(error) => self.errors.push(error),
        }
        if checkpoint.config().raw.contains_key("auto_map") {
            let message = "auto_map names code of the repository, which is never run".to_owned();
            self.note("remote-code", checkpoint, message);
        }
        self.check_generation(checkpoint);
        if skip_tokenizer {
            return;
        }
        match checkpoint.tokenizer() {
            Ok(tokenizer) => {
                report.named_tokens = tokenizer.named_tokens().clone();
                self.check_tokenizer(checkpoint, &tokenizer);
            }
            Err(error) => self.errors.push(error),
        }
    }

    pub(super) fn check_tokenizer(&mut self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) {
        let path = checkpoint.path();
        let num_rows = checkpoint.config().vocab_size;
        let num_ids = tokenizer.num_ids();
        if num_ids > num_rows {
            self.errors.push(Error::TokenizerSize { path: path.to_owned(), num_ids, num_rows });
        } else if num_rows - num_ids > MANY_SPARE_ROWS {
            let message =
                format!("the embedding has {num_rows} rows, the tokenizer ids for {num_ids} of them");
            self.note("spare-rows", checkpoint, message);
        }
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
        self.compare_ends(checkpoint, tokenizer);
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

    fn check_generation(&mut self, checkpoint: &Checkpoint) {
        let vocab_size = checkpoint.config().vocab_size;
        for &given in checkpoint.generation().eos_token_ids.iter().filter(|id| **id as usize >= vocab_size) {
            self.errors.push(checkpoint.token_id_error("eos_token_id", given));
        }
    }

    fn note(&mut self, kind: &'static str, checkpoint: &Checkpoint, message: String) {
        self.notes.push(Finding::note(kind, checkpoint.path(), None, None, message));
    }
}
