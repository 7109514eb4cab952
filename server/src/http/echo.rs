//! Prompts that outputs begin with.

use quire_engine::{Prompt, SamplingParams, TokenLogprobs};

use super::error::ApiError;
use super::logprobs::{CompletionLogprobs, TokenForm};
use super::service::Service;
use super::text_place::TextPlace;

/// What the outputs of a prompt begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    /// What is shown.
    pub(crate) text: String,
    /// The characters of the prompt, shown or not.
    num_chars: usize,
    first: FirstToken,
    /// Best log-probabilities that come with each token at most.
    num_top: usize,
}

/// The first token of a prompt, which nothing predicts.
#[derive(Clone, Debug, Default)]
struct FirstToken {
    id: u32,
    /// Its text alone.
    text: String,
    /// Its bytes in the text: none of a special token that is no part of it.
    bytes: Vec<u8>,
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
        let has_logprobs = params.logprobs.is_some();
        if !params.detokenize && !has_logprobs {
            return Ok(Self::default());
        }
        let text = text_of(service, prompt, kept, params).await?;
        let first =
            if has_logprobs { FirstToken::of(service, kept, &text).await? } else { FirstToken::default() };
        let num_top = params.logprobs.and_then(|num| usize::try_from(num).ok()).unwrap_or(usize::MAX);
        let num_chars = text.chars().count();
        Ok(Self { text: if params.detokenize { text } else { String::new() }, num_chars, first, num_top })
    }

    /// Adds the tokens of the prompt; returns where what follows them stands.
    pub(crate) fn push_tokens(
        &self,
        logprobs: &mut CompletionLogprobs,
        tokens: &[Option<TokenLogprobs>],
        form: TokenForm,
    ) -> TextPlace {
        let mut place = TextPlace::default();
        for token in tokens {
            match token {
                Some(token) if token.top.len() > self.num_top => {
                    let top = token.top[..self.num_top].to_vec();
                    logprobs.push(&TokenLogprobs { top, ..token.clone() }, &mut place, form);
                }
                Some(token) => logprobs.push(token, &mut place, form),
                None => {
                    logprobs.push_first(self.first.id, &self.first.text, form);
                    place.take(&self.first.bytes);
                }
            }
        }
        place.at(self.num_chars)
    }
}

impl FirstToken {
    async fn of(service: &Service, kept: &[u32], prompt: &str) -> Result<Self, ApiError> {
        let Some(&id) = kept.first() else { return Ok(Self::default()) };
        let text = service.engine.detokenize(vec![id]).await.unwrap_or_default();
        let mut bytes = service.engine.token_bytes(vec![id]).await.unwrap_or_default().concat();
        if std::str::from_utf8(&bytes).is_ok() {
            let is_there = prompt.starts_with(&text);
            bytes = if is_there { text.clone().into_bytes() } else { Vec::new() };
        }
        Ok(Self { id, text, bytes })
    }
}

/// Where the text of an output begins that is shown without its prompt: within a character that the prompt has begun, if it has.
pub(crate) async fn place_behind(service: &Service, prompt: &[u32]) -> TextPlace {
    // A character has four bytes, and so as many tokens, at most.
    let end = prompt[prompt.len().saturating_sub(4)..].to_vec();
    TextPlace::behind(&service.engine.token_bytes(end).await.unwrap_or_default().concat())
}

async fn text_of(
    service: &Service,
    prompt: Prompt,
    kept: &[u32],
    params: &SamplingParams,
) -> Result<String, ApiError> {
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
