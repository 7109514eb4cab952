//! What comes back for a request.

use serde::{Deserialize, Serialize};

use crate::{Error, RequestId};

/// What a request's stream brings. The last one is [`Finished`](Self::Finished) or [`Failed`](Self::Failed).
#[derive(Clone, Debug)]
pub enum RequestEvent {
    /// The log-probabilities of the prompt, as [`RequestOutput`] has them, where they were asked for: once, before the first
    /// piece of an output.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// More of one of its outputs.
    Delta(Delta),
    /// All of one of its outputs so far, where [`OutputKind::Cumulative`](crate::OutputKind::Cumulative) was asked for.
    SoFar(Delta),
    /// It has ended; all there is, once more.
    Finished(Box<RequestOutput>),
    /// It could not be completed. What was delivered before stands.
    Failed(Error),
}

impl RequestEvent {
    /// Whether it is a request's last.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Failed(_))
    }
}

/// A piece of an output. Joined in order, pieces make the texts and ids of the [`CompletionOutput`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Which output of the request.
    pub index: u32,
    /// Whole characters. May be empty where tokens end inside a character or inside what may become a stop string.
    pub text: String,
    /// The tokens that were generated since the last piece; each is delivered once.
    pub token_ids: Vec<u32>,
    /// One entry a token, where asked for.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// Why the output ended, with its last piece.
    pub finish_reason: Option<FinishReason>,
    /// What it stopped at, with its last piece.
    pub stop_reason: Option<StopReason>,
}

/// All that a request gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestOutput {
    /// The request.
    pub request_id: RequestId,
    /// The prompt as text, where it was given as text or as a conversation.
    pub prompt: Option<String>,
    /// The prompt as tokens, with all that tokenizer and template added.
    pub prompt_token_ids: Vec<u32>,
    /// Where asked for, an entry for each token of the prompt; the first has none, since nothing predicts it.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// What was generated.
    pub outputs: Vec<CompletionOutput>,
    /// Tokens of the prompt that the prefix cache had.
    pub num_cached_tokens: u32,
    /// Where its time went.
    pub metrics: RequestMetrics,
}

/// One continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionOutput {
    /// Its place among the request's outputs.
    pub index: u32,
    /// The text, cut at the stop string.
    pub text: String,
    /// The tokens, those whose text was cut included.
    pub token_ids: Vec<u32>,
    /// The sum of the log-probabilities of the tokens, where they were asked for.
    pub cumulative_logprob: Option<f64>,
    /// One entry a token, where asked for.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it stopped at; none for an end-of-text token of the tokenizer, and where it did not stop.
    pub stop_reason: Option<StopReason>,
}

impl Delta {
    /// Puts what follows behind it.
    pub(crate) fn append(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.token_ids.extend(next.token_ids);
        self.logprobs.iter_mut().zip(next.logprobs).for_each(|(all, next)| all.extend(next));
        (self.finish_reason, self.stop_reason) = (next.finish_reason, next.stop_reason);
    }
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FinishReason {
    /// It said that it was done, or met a stop string or a stop token.
    Stop,
    /// It reached `max_tokens`, the model's context or the edge of the KV pool.
    Length,
    /// It was given up by its caller.
    Abort,
    /// The engine failed under it.
    Error,
}

impl FinishReason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// Its name on the wire: `stop`, `length`, `abort`, `error`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// What an output stopped at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReason {
    /// One of `stop_token_ids`, or an end token that only `generation_config.json` names.
    Token(u32),
    /// One of `stop`.
    Text(String),
}

/// The log-probability of a token, and the best ones at its place. Whether they are of the model's raw logits or of what
/// was drawn from, and whether they are the logits themselves, is the setting `logprobs_mode`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The token.
    #[serde(flatten)]
    pub token: TokenLogprob,
    /// How many tokens have a log-probability at least as high; 1 for the best.
    pub rank: u32,
    /// The best ones, as many as asked for, the highest first.
    pub top: Vec<TokenLogprob>,
}

/// A token, as text, with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub token_id: u32,
    /// Its text alone; a part of a character shows as U+FFFD.
    pub token: String,
    /// Its bytes, where these are not whole characters; elsewhere they are those of its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<u8>>,
    /// Its natural log-probability, or its logit. That of a forbidden token is written as -9999, since JSON has no infinity.
    #[serde(serialize_with = "finite")]
    pub logprob: f32,
}

fn finite<S: serde::Serializer>(logprob: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f32(logprob.max(-9999.0))
}

/// Where a request's time went, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestMetrics {
    /// From arrival to the first step that it was part of.
    pub queue_ms: f64,
    /// From arrival to the first token of any output; none if there was none.
    pub ttft_ms: Option<f64>,
    /// Between two tokens of an output, on average over all of them; none where no output has two.
    pub tpot_ms: Option<f64>,
    /// From arrival to the end.
    pub e2e_ms: f64,
    /// How often its sequences gave way to others.
    pub num_preemptions: u32,
}
