//! `use_beam_search` of completions: `n` beams in place of `n` draws.

use quire_engine::{BeamSearchParams, SamplingParams};
use serde_json::{Value, json};

use super::body::Body;
use super::error::ApiError;

/// What a search is asked for beside the parameters that it shares with drawing.
pub(crate) struct BeamFields {
    length_penalty: f64,
    /// What the client wrote itself: the one that a model's makers recommend is for drawing.
    temperature: f64,
    /// Parameters that the client wrote and a search does not know.
    without_place: Vec<&'static str>,
}

impl BeamFields {
    /// Takes them out of a body that asks for a search.
    pub(crate) fn take(body: &mut Body) -> Result<Option<Self>, ApiError> {
        if !body.take_bool("use_beam_search")?.unwrap_or(false) {
            return Ok(None);
        }
        let temperature = body.peek("temperature").and_then(Value::as_f64).unwrap_or(0.0);
        let length_penalty = match body.take_value("length_penalty") {
            None => 1.0,
            Some(given) => given.as_f64().ok_or_else(|| {
                ApiError::bad_field("length_penalty", format!("length_penalty is {given}: expected a number"))
            })?,
        };
        let without_place = NO_PLACE.into_iter().filter(|field| body.peek(field).is_some()).collect();
        Ok(Some(Self { length_penalty, temperature, without_place }))
    }

    /// The search. What would change drawn outputs and has no place in it is refused.
    pub(crate) fn search(self, params: &SamplingParams) -> Result<BeamSearchParams, ApiError> {
        let (params_given, plain) = (json!(params), json!(SamplingParams::default()));
        if let Some(field) = self.without_place.iter().find(|field| params_given[**field] != plain[**field]) {
            let message = format!("{field} is not built beside use_beam_search: expected none");
            return Err(ApiError::not_built(*field, message));
        }
        Ok(BeamSearchParams {
            ignore_eos: params.ignore_eos,
            temperature: self.temperature,
            length_penalty: self.length_penalty,
            include_stop_str_in_output: params.include_stop_str_in_output,
            ..BeamSearchParams::new(params.n, params.max_tokens.unwrap_or(u64::MAX))
        })
    }
}

/// Parameters that a search does not know.
const NO_PLACE: [&str; 12] = [
    "stop",
    "stop_token_ids",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "truncate_prompt_tokens",
];
