//! Prompts that outputs begin with.

use quire_engine::{Prompt, SamplingParams, TokenLogprobs};

use super::error::ApiError;
use super::logprobs::{CompletionLogprobs, TokenForm};
use super::service::Service;

/// What the outputs of a prompt begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// The first token of the prompt, which nothing predicts, and its text alone.
    first: (u32, String),
    /// Best log-probabilities that come with each token at most.
    num_top: usize,
}

impl Echo {
    /// That of a prompt of which the tokens `kept` are computed: the text as it was given, unless it was cut. A character that
    /// it begins and does not end comes with the text of the output.
    pub(crate) async fn of(
        service: &Service,
        prompt: Prompt,
        kept: &[u32],
        params: &SamplingParams,
    ) -> Result<Self, ApiError> {
        let first_id = kept.first().copied().unwrap_or_default();
        let first_text = match params.logprobs {
            Some(_) => service.engine.detokenize(vec![first_id]).await.unwrap_or_default(),
            None => String::new(),
        };
        let num_top = params.logprobs.and_then(|num| usize::try_from(num).ok()).unwrap_or(usize::MAX);
        let text = text_of(service, prompt, kept, params).await?;
        Ok(Self { text, first: (first_id, first_text), num_top })
    }

    /// Adds the tokens of the prompt; returns where what follows them stands.
    pub(crate) fn push_tokens(
        &self,
        logprobs: &mut CompletionLogprobs,
        tokens: &[Option<TokenLogprobs>],
        form: TokenForm,
    ) -> usize {
        let (first_id, first_text) = &self.first;
        tokens.iter().fold(0, |offset, token| match token {
            Some(token) if token.top.len() > self.num_top => {
                let top = token.top[..self.num_top].to_vec();
                logprobs.push(&TokenLogprobs { top, ..token.clone() }, offset, form)
            }
            Some(token) => logprobs.push(token, offset, form),
            None => {
                logprobs.push_first(*first_id, first_text, form);
                self.num_first_characters()
            }
        })
    }

    /// Characters that begin with the first token: none of a special token that is no part of the text, one of the first part of
    /// a character.
    fn num_first_characters(&self) -> usize {
        let first = &self.first.1;
        match self.text.starts_with(first) {
            true => first.chars().count(),
            false => usize::from(first == "\u{FFFD}" && !self.text.is_empty()),
        }
    }
}

async fn text_of(
    service: &Service,
    prompt: Prompt,
    kept: &[u32],
    params: &SamplingParams,
) -> Result<String, ApiError> {
    if !params.detokenize {
        return Ok(String::new());
    }
    if let Prompt::Text(text) | Prompt::BareText(text) = &prompt {
        let text = text.clone();
        let is_whole = match params.truncate_prompt_tokens {
            None => true,
            Some(_) => service.engine.tokenize(prompt).await?.len() == kept.len(),
        };
        if is_whole {
            return Ok(text);
        }
    }
    Ok(service.engine.text_before(kept.to_vec()).await?)
}
