//! `use_beam_search` of completions and chats: `n` beams in place of `n` draws.

use quire_engine::{BeamSearchParams, SamplingParams};
use quire_executor::LogprobsMode;
use serde_json::{Value, json};

use super::body::Body;
use super::error::ApiError;
use super::field_names::FieldNames;
use super::service::Service;

/// The search of a request that asks for one.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedSearch {
    pub(crate) beams: Option<BeamSearchParams>,
    /// Fields that are written and change nothing of it.
    pub(crate) without_effect: Vec<&'static str>,
}

impl AskedSearch {
    /// That of fields which were taken out of a body before `params` were.
    pub(crate) fn of(
        fields: Option<BeamFields>,
        service: &Service,
        (params, names): (&SamplingParams, &mut FieldNames),
    ) -> Result<Self, ApiError> {
        let Some(fields) = fields else { return Ok(Self::default()) };
        let mode = service.engine.config().map(|config| config.logprobs_mode).unwrap_or_default();
        let without_effect = fields.without_effect(mode);
        let beams = fields.search(params).map_err(|error| names.translate(error))?;
        names.add("beam_width", "n");
        Ok(Self { beams: Some(beams), without_effect })
    }
}

/// What a search is asked for beside the parameters that it shares with drawing.
pub(crate) struct BeamFields {
    length_penalty: f64,
    /// What the client wrote itself: the one that a model's makers recommend is for drawing.
    temperature: Option<f64>,
    /// Parameters that the client may have written and a search does not know.
    without_place: Vec<&'static str>,
}

impl BeamFields {
    /// Takes them out of a body that asks for a search.
    pub(crate) fn take(body: &mut Body) -> Result<Option<Self>, ApiError> {
        if !body.take_bool("use_beam_search")?.unwrap_or(false) {
            return Ok(None);
        }
        let temperature = body.peek("temperature").and_then(Value::as_f64);
        let length_penalty = body.take_number("length_penalty")?.unwrap_or(1.0);
        let has_place = |field: &str| HAVE_PLACE.contains(&field);
        let fields = SamplingParams::field_names().iter().copied();
        let without_place = fields
            .filter(|field| !has_place(field) && (body.peek(field).is_some() || *field == FORM))
            .collect();
        Ok(Some(Self { length_penalty, temperature, without_place }))
    }

    /// Fields that the client wrote and that change no outcome of a search in which log-probabilities are told as the model
    /// gives them, or as they are drawn by.
    fn without_effect(&self, mode: LogprobsMode) -> Vec<&'static str> {
        let is_scaled = mode == LogprobsMode::ProcessedLogprobs;
        let is_plain = self.temperature.is_none_or(|temperature| temperature == 0.0 || temperature == 1.0);
        if is_scaled || is_plain { Vec::new() } else { vec!["temperature"] }
    }

    /// The search. What would change drawn outputs and has no place in it is refused.
    fn search(self, params: &SamplingParams) -> Result<BeamSearchParams, ApiError> {
        if let Some(best_of) = params.best_of.filter(|&best_of| best_of != params.n) {
            let message = format!("best_of is {best_of}: expected none, or n = {}", params.n);
            return Err(ApiError::bad_field("best_of", message));
        }
        let (params_given, plain) = (json!(params), json!(SamplingParams::default()));
        if let Some(field) = self.without_place.iter().find(|field| params_given[**field] != plain[**field]) {
            let message = format!("{field} is not built beside use_beam_search: expected none");
            return Err(ApiError::not_built(*field, message));
        }
        Ok(BeamSearchParams {
            ignore_eos: params.ignore_eos,
            temperature: self.temperature.unwrap_or(0.0),
            length_penalty: self.length_penalty,
            include_stop_str_in_output: params.include_stop_str_in_output,
            ..BeamSearchParams::new(params.n, params.max_tokens.unwrap_or(u64::MAX))
        })
    }
}

/// The form of an output has other names too.
const FORM: &str = "structured_outputs";

/// Parameters that a search knows, or that mean nothing to what is not drawn.
const HAVE_PLACE: [&str; 9] = [
    "n",
    "best_of",
    "temperature",
    "max_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "seed",
    "output_kind",
    "skip_reading_prefix_cache",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn search(json: Value) -> Result<BeamSearchParams, ApiError> {
        let mut body = Body::parse(json.to_string().as_bytes()).expect("an object");
        let beams = BeamFields::take(&mut body)?.expect("a search is asked for");
        let given = body.take_all(SamplingParams::field_names());
        beams.search(&SamplingParams::default().with_json(&given)?)
    }

    #[test]
    fn what_a_search_does_not_do_is_refused() {
        assert!(search(json!({"use_beam_search": true, "n": 3, "best_of": 3, "temperature": 0.5})).is_ok());
        for (field, value, status) in [
            ("best_of", json!(4), 400),
            ("top_p", json!(0.5), 501),
            ("top_k", json!(5), 501),
            ("min_p", json!(0.5), 501),
            ("detokenize", json!(false), 501),
            ("skip_special_tokens", json!(false), 501),
            ("logprobs", json!(1), 501),
            ("structured_outputs", json!({"regex": "a"}), 501),
            ("logits_processors", json!(["x"]), 501),
            ("length_penalty", json!("x"), 400),
        ] {
            let error = search(json!({"use_beam_search": true, "n": 3, field: value})).expect_err(field);
            assert_eq!(
                (error.param.as_deref(), error.status.as_u16()),
                (Some(field), status),
                "{}",
                error.message
            );
        }
    }

    #[test]
    fn a_temperature_that_changes_nothing_is_told() {
        let fields = |json: Value| {
            let mut body = Body::parse(json.to_string().as_bytes()).expect("an object");
            BeamFields::take(&mut body).expect("right").expect("a search")
        };
        let warm = fields(json!({"use_beam_search": true, "temperature": 0.5}));
        assert_eq!(warm.without_effect(LogprobsMode::RawLogprobs), ["temperature"]);
        assert!(warm.without_effect(LogprobsMode::ProcessedLogprobs).is_empty());
        assert!(
            fields(json!({"use_beam_search": true})).without_effect(LogprobsMode::RawLogprobs).is_empty()
        );
    }
}
