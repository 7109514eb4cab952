//! Prompts as the model reads them: conversations written out by the template, texts as tokens.

use std::sync::Arc;
use std::time::SystemTime;

use quire_models::{EncodeOptions, SpecialTokens, Tokenizer};
use serde::Serialize;

use crate::frontend::guarded;
use crate::prompt::{ChatPrompt, Prompt};
use crate::text::{ChatTemplate, TextDecoder};
use crate::text_length::TextLimit;
use crate::{PromptError, Result};

/// Writes prompts out, with a model's tokenizer and chat template; its weights are not needed. Threads may share it.
///
/// [`EnginePlan::renderer`](crate::EnginePlan::renderer) makes one.
pub struct PromptRenderer {
    decoder: TextDecoder,
    template: Option<ChatTemplate>,
    vocab_size: usize,
}

/// A prompt written out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RenderedPrompt {
    /// What the model reads, as text; none where the prompt was given as tokens.
    pub text: Option<String>,
    /// The same as tokens, with those that the tokenizer puts in front.
    pub token_ids: Vec<u32>,
}

impl PromptRenderer {
    /// A renderer of prompts whose tokens are below `vocab_size`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Template`](crate::ConfigError::Template).
    pub(crate) fn new(
        tokenizer: Option<Tokenizer>,
        chat_template: Option<String>,
        vocab_size: usize,
    ) -> Result<Self> {
        let template = chat_template
            .zip(tokenizer.as_ref())
            .map(|(source, tokenizer)| ChatTemplate::at_start(&source, tokenizer.named_tokens().clone()))
            .transpose()?;
        Ok(Self { decoder: TextDecoder::new(tokenizer.map(Arc::new)), template, vocab_size })
    }

    /// Writes a prompt out.
    ///
    /// # Errors
    ///
    /// What is wrong with the prompt.
    pub fn render(&self, prompt: impl Into<Prompt>) -> Result<RenderedPrompt> {
        guarded("rendering", || Ok(self.render_prompt(prompt.into())?))
    }

    /// Whether conversations have a form.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    pub(crate) fn decoder(&self) -> &TextDecoder {
        &self.decoder
    }

    /// As [`render`](Self::render), panics included.
    pub(crate) fn render_prompt(&self, prompt: Prompt) -> Result<RenderedPrompt, PromptError> {
        self.render_within(prompt, TextLimit::None)
    }

    /// The same; a text that is too long for sure is refused before all of it is tokenized.
    pub(crate) fn render_within(
        &self,
        prompt: Prompt,
        limit: TextLimit,
    ) -> Result<RenderedPrompt, PromptError> {
        let prompt = self.render_any(prompt, limit)?;
        if prompt.token_ids.is_empty() { Err(PromptError::Empty) } else { Ok(prompt) }
    }

    /// A prompt, or nothing: an empty text is one of no tokens.
    pub(crate) fn render_any(&self, prompt: Prompt, limit: TextLimit) -> Result<RenderedPrompt, PromptError> {
        let prompt = match prompt {
            Prompt::TokenIds(token_ids) => RenderedPrompt { text: None, token_ids },
            Prompt::Text(text) => self.tokenize_text(text, limit)?,
            Prompt::BareText(text) => {
                RenderedPrompt { token_ids: self.encode_within(&text, false, limit)?, text: Some(text) }
            }
            Prompt::Chat(chat) => self.tokenize_chat(&chat, limit)?,
        };
        let vocab_size = self.vocab_size;
        match prompt.token_ids.iter().enumerate().find(|&(_, &id)| id as usize >= vocab_size) {
            Some((index, &given)) => Err(PromptError::TokenId { index, given, vocab_size }),
            None => Ok(prompt),
        }
    }

    /// Plain text gets the model's frame. Where the text holds its beginning already, it is not doubled.
    fn tokenize_text(&self, text: String, limit: TextLimit) -> Result<RenderedPrompt, PromptError> {
        let mut token_ids = self.encode_within(&text, true, limit)?;
        if let (Some(bos), [first, second, ..]) = (self.added_bos()?, token_ids.as_slice())
            && (bos, bos) == (*first, *second)
        {
            token_ids.remove(0);
        }
        Ok(RenderedPrompt { text: Some(text), token_ids })
    }

    /// A template writes the frame itself. Where it leaves out a beginning that the tokenizer adds to every text, it
    /// is added here.
    fn tokenize_chat(&self, chat: &ChatPrompt, limit: TextLimit) -> Result<RenderedPrompt, PromptError> {
        let now = SystemTime::now();
        let text = match (&chat.chat_template, &self.template) {
            (Some(source), _) => ChatTemplate::of_request(source, self.tokenizer()?.named_tokens().clone())?
                .render(chat, now)?,
            (None, Some(template)) => template.render(chat, now)?,
            (None, None) => return Err(PromptError::NoTemplate),
        };
        let mut token_ids = self.encode_within(&text, chat.add_special_tokens, limit)?;
        if let Some(bos) = self.added_bos()?
            && token_ids.first() != Some(&bos)
        {
            token_ids.insert(0, bos);
        }
        Ok(RenderedPrompt { text: Some(text), token_ids })
    }

    /// The token that the tokenizer puts in front of every text, if it does.
    fn added_bos(&self) -> Result<Option<u32>, PromptError> {
        let Some(bos) = &self.tokenizer()?.named_tokens().bos else { return Ok(None) };
        let bos = self.tokenizer()?.inner().token_to_id(bos);
        Ok(self.encode("", true)?.first().copied().filter(|&first| Some(first) == bos))
    }

    /// [`encode`](Self::encode), of a text that may be far too long.
    fn encode_within(
        &self,
        text: &str,
        add_special_tokens: bool,
        limit: TextLimit,
    ) -> Result<Vec<u32>, PromptError> {
        limit.check(text, |piece| Ok(self.encode(piece, false)?.len()))?;
        self.encode(text, add_special_tokens)
    }

    /// The tokens of a text, special ones recognized.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        let options = EncodeOptions { add_special_tokens, special_tokens: SpecialTokens::Recognized };
        self.tokenizer()?.encode(text, options).map_err(tokenizer_error)
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, PromptError> {
        self.decoder.tokenizer().ok_or(PromptError::NoTokenizer)
    }
}

fn tokenizer_error(error: quire_models::TokenizerError) -> PromptError {
    let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
    PromptError::Tokenizer { message: format!("{error}{}", source.unwrap_or_default()) }
}
