//! Fields and parts that both APIs have.

use quire_engine::{OutputKind, Prompt, Request, RequestId, SamplingParams, TokenLogprobs};
use serde_json::{Map, Value, json};

use super::body::Body;
use super::error::ApiError;
use super::request_id;

/// What a request may say beside what is to be generated.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonFields {
    pub(crate) request_id: Option<String>,
    priority: i32,
    cache_salt: Option<String>,
}

/// Fields of other servers that would change an answer: passing over them would answer another question.
pub(crate) const NOT_BUILT: [&str; 12] = [
    "prompt_embeds",
    "mm_processor_kwargs",
    "kv_transfer_params",
    "thinking_token_budget",
    "repetition_detection",
    "logprob_token_ids",
    "return_token_ids",
    "return_prompt_text",
    "vllm_xargs",
    "audio",
    "modalities",
    "prediction",
];

/// Fields that say who asks or how something is done that is done in one way here: texts that change no answer. They are left in
/// the body, for those who warn of what has no effect.
pub(crate) const NO_EFFECT: [&str; 2] = ["user", "guided_decoding_backend"];

impl CommonFields {
    pub(crate) fn take(body: &mut Body) -> Result<Self, ApiError> {
        for field in NOT_BUILT {
            match body.take_value(field) {
                None | Some(Value::Bool(false)) => {}
                Some(_) => {
                    return Err(ApiError::not_built(field, format!("{field} is not built: expected none")));
                }
            }
        }
        // It says nothing where there is no beam search.
        body.take_number("length_penalty")?;
        NO_EFFECT.into_iter().try_for_each(|field| body.check_text(field))?;
        let priority = body.take_integer("priority")?.unwrap_or(0);
        let priority = i32::try_from(priority).map_err(|_| {
            ApiError::bad_field("priority", format!("priority is {priority}: expected a number of 32 bits"))
        })?;
        let cache_salt = body.take_text("cache_salt")?;
        if cache_salt.as_ref().is_some_and(String::is_empty) {
            return Err(ApiError::bad_field(
                "cache_salt",
                "cache_salt is \"\": expected at least a character",
            ));
        }
        let request_id = body.take_text("request_id")?;
        request_id.iter().try_for_each(|name| request_id::check(name))?;
        Ok(Self { request_id, priority, cache_salt })
    }
}

/// Requests of the engine, one a prompt, named after the client's request: made one by one, since their parameters may be large.
pub(crate) fn requests(
    id: &str,
    prompts: Vec<Prompt>,
    params: &SamplingParams,
    common: &CommonFields,
    tenant: Option<String>,
) -> impl ExactSizeIterator<Item = Request> + Send {
    let is_alone = prompts.len() == 1;
    let request = move |(place, prompt)| Request {
        id: RequestId::new(if is_alone { id.to_owned() } else { format!("{id}-{place}") }),
        prompt,
        // Chunks are written from pieces, whatever the client asks for.
        params: SamplingParams { output_kind: OutputKind::Delta, ..params.clone() },
        beam_search: None,
        prompt_alone: false,
        tenant: tenant.clone(),
        priority: common.priority,
        cache_salt: common.cache_salt.clone(),
    };
    prompts.into_iter().enumerate().map(request)
}

/// `prompt_logprobs` as vLLM has them: for each token but the first, an object from token id to log-probability.
pub(crate) fn prompt_logprobs(prompt: &[Option<TokenLogprobs>]) -> Vec<Option<Map<String, Value>>> {
    let of_token = |token: &TokenLogprobs| {
        let mut entries = Map::new();
        for (rank, one) in (1..).zip(&token.top) {
            entries.insert(one.token_id.to_string(), entry(one, rank));
        }
        entries.entry(token.token.token_id.to_string()).or_insert_with(|| entry(&token.token, token.rank));
        entries
    };
    prompt.iter().map(|token| token.as_ref().map(of_token)).collect()
}

fn entry(token: &quire_engine::TokenLogprob, rank: u32) -> Value {
    json!({"logprob": token.logprob.max(-9999.0), "rank": rank, "decoded_token": token.token})
}
