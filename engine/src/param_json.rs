//! Sampling parameters out of JSON.

use serde_json::{Map, Value};

use crate::params::{ParamError, SamplingParams};

/// Bytes of a wrong value that are told.
const MAX_SHOWN: usize = 200;

impl SamplingParams {
    /// These parameters with the fields of a JSON object in place of their own. `null` counts as absent, and a number
    /// without a fraction is whole, however it is written.
    ///
    /// # Errors
    ///
    /// [`ParamError::Unknown`], [`ParamError::Type`]; [`ParamError::NotBuilt`] for a field of vLLM's that has no code yet.
    pub fn with_json(&self, given: &Map<String, Value>) -> Result<Self, ParamError> {
        let Ok(Value::Object(mut all)) = serde_json::to_value(self) else {
            unreachable!("a struct of plain fields becomes an object");
        };
        for (field, value) in given.iter().filter(|(_, value)| !value.is_null()) {
            let Some(known) = FIELDS.iter().find(|known| *known == field) else {
                not_built(field, value)?;
                continue;
            };
            let normal = normalized(field, value);
            let alone = Map::from_iter([(field.clone(), normal.clone())]);
            serde_json::from_value::<Self>(alone.into()).map_err(|error| wrong_type(known, value, &error))?;
            all.insert(field.clone(), normal);
        }
        serde_json::from_value(all.into()).map_err(|error| ParamError::Type {
            field: "sampling parameters",
            value: String::new(),
            rule: error.to_string(),
        })
    }

    /// The names of the fields, as JSON has them.
    pub fn field_names() -> &'static [&'static str] {
        FIELDS
    }
}

const FIELDS: &[&str] = &[
    "n",
    "best_of",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "logprobs",
    "prompt_logprobs",
    "skip_reading_prefix_cache",
    "skip_special_tokens",
    "detokenize",
    "spaces_between_special_tokens",
    "bad_words",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "output_kind",
    "structured_outputs",
    "logits_processors",
];

/// Fields that today's vLLM has and for which there is no code yet, with what works.
const NOT_BUILT: &[(&str, &str)] = &[
    ("thinking_token_budget", "none"),
    ("repetition_detection", "none"),
    ("logprob_token_ids", "none, and logprobs"),
    ("flat_logprobs", "false"),
    ("extra_args", "none"),
];

/// What a field is refused with that is not one of ours; where it asks for nothing, it is passed over.
fn not_built(field: &str, value: &Value) -> Result<(), ParamError> {
    match NOT_BUILT.iter().find(|(known, _)| *known == field) {
        None => Err(ParamError::Unknown { field: field.to_owned() }),
        Some(_) if *value == Value::Bool(false) => Ok(()),
        Some((field, rule)) => Err(ParamError::NotBuilt { field, value: shown(value), rule }),
    }
}

/// `logprobs: true` is 1, `false` is none at all, as OpenAI's chat requests have it; `1.0` is 1 where numbers are whole.
fn normalized(field: &str, value: &Value) -> Value {
    match (field, value) {
        ("logprobs" | "prompt_logprobs", Value::Bool(true)) => 1.into(),
        ("logprobs" | "prompt_logprobs", Value::Bool(false)) => Value::Null,
        (
            "n"
            | "best_of"
            | "top_k"
            | "seed"
            | "max_tokens"
            | "min_tokens"
            | "logprobs"
            | "prompt_logprobs"
            | "truncate_prompt_tokens",
            number,
        ) => whole(number),
        ("stop_token_ids" | "allowed_token_ids", Value::Array(ids)) => ids.iter().map(whole).collect(),
        _ => value.clone(),
    }
}

/// A number without a fraction as an integer, where 64 bits hold it.
fn whole(value: &Value) -> Value {
    // The first one beyond 64 bits, on either side.
    const BEYOND: f64 = (1u64 << 63) as f64;
    let number = value.as_f64().filter(|_| value.is_f64());
    let number = number.filter(|number| number.fract() == 0.0 && number.abs() < BEYOND);
    number.map_or_else(|| value.clone(), |number| (number as i64).into())
}

fn wrong_type(field: &'static str, value: &Value, error: &serde_json::Error) -> ParamError {
    let rule = match expected(field) {
        Some(rule) => rule.to_owned(),
        None => {
            let (is_whole, rule) = match field {
                "structured_outputs" => (value.is_object(), "an object"),
                _ => (value.is_array(), "a list"),
            };
            if is_whole {
                return ParamError::Form { field, reason: error.to_string() };
            }
            rule.to_owned()
        }
    };
    ParamError::Type { field, value: shown(value), rule }
}

/// What a field may be; none for those of many parts.
fn expected(field: &str) -> Option<&'static str> {
    Some(match field {
        "n" | "best_of" => "a whole number from 1 to 16384",
        "max_tokens" => "a whole number from 1",
        "min_tokens" => "a whole number from 0",
        "top_k" => "a whole number from -1",
        "seed" => "a whole number from -9223372036854775808 to 9223372036854775807",
        "logprobs" | "prompt_logprobs" => "a whole number from -1, true or false",
        "truncate_prompt_tokens" => "a whole number from 1, or -1",
        "temperature" => "a number from 0 to 2",
        "top_p" => "a number above 0, at most 1",
        "min_p" => "a number from 0 to 1",
        "presence_penalty" | "frequency_penalty" => "a number from -2 to 2",
        "repetition_penalty" => "a number above 0",
        "logit_bias" => "an object from token ids to numbers",
        "stop" => "a string or a list of strings",
        "bad_words" => "a list of strings",
        "stop_token_ids" | "allowed_token_ids" => "a list of token ids, whole numbers from 0 to 4294967295",
        "output_kind" => "cumulative, delta or final_only",
        "structured_outputs" | "logits_processors" => return None,
        _ => "true or false",
    })
}

/// A value as it was given, the beginning of it where it is long.
fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > MAX_SHOWN {
        text.truncate(text.floor_char_boundary(MAX_SHOWN));
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<SamplingParams, ParamError> {
        SamplingParams::default().with_json(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap())
    }

    #[test]
    fn the_listed_fields_are_those_of_the_struct() {
        let fields = serde_json::to_value(SamplingParams::default()).unwrap();
        let mut fields: Vec<_> = fields.as_object().unwrap().keys().cloned().collect();
        let mut listed = FIELDS.to_vec();
        fields.sort();
        listed.sort();
        assert_eq!(fields, listed);
    }

    #[test]
    fn null_is_absent_and_json_forms_are_read() {
        let params =
            parse(r#"{"max_tokens": null, "stop": "a", "logprobs": true, "logit_bias": {"5": 1}}"#).unwrap();
        assert_eq!(params.max_tokens, Some(16));
        assert_eq!((params.stop, params.logprobs), (vec!["a".to_owned()], Some(1)));
        assert_eq!(params.logit_bias[&5], 1.0);
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        let params =
            parse(r#"{"max_tokens": 7.0, "n": 2.0, "top_k": -1.0, "seed": 1e3, "stop_token_ids": [5.0]}"#);
        let params = params.unwrap();
        assert_eq!((params.max_tokens, params.n, params.top_k, params.seed), (Some(7), 2, -1, Some(1000)));
        assert_eq!(params.stop_token_ids, [5]);
    }

    #[test]
    fn a_wrong_type_is_told_with_field_value_and_range() {
        for (json, expected) in [
            (r#"{"n": -1}"#, "n is -1: expected a whole number from 1 to 16384"),
            (r#"{"n": 4294967297}"#, "n is 4294967297: expected a whole number from 1 to 16384"),
            (r#"{"top_k": 1.5}"#, "top_k is 1.5: expected a whole number from -1"),
            (r#"{"max_tokens": -1}"#, "max_tokens is -1: expected a whole number from 1"),
            (r#"{"max_tokens": 1e300}"#, "max_tokens is 1e+300: expected a whole number from 1"),
            (r#"{"max_tokens": true}"#, "max_tokens is true: expected a whole number from 1"),
            (r#"{"min_tokens": "a"}"#, "min_tokens is \"a\": expected a whole number from 0"),
            (r#"{"ignore_eos": 1}"#, "ignore_eos is 1: expected true or false"),
            (r#"{"stop": 1}"#, "stop is 1: expected a string or a list of strings"),
            (
                r#"{"stop_token_ids": [-1]}"#,
                "stop_token_ids is [-1]: expected a list of token ids, whole numbers from 0 to 4294967295",
            ),
            (r#"{"structured_outputs": 1}"#, "structured_outputs is 1: expected an object"),
            (r#"{"logits_processors": 1}"#, "logits_processors is 1: expected a list"),
            (r#"{"output_kind": "x"}"#, "output_kind is \"x\": expected cumulative, delta or final_only"),
            (r#"{"max_token": 1}"#, "max_token is not a sampling parameter"),
        ] {
            assert_eq!(parse(json).unwrap_err().to_string(), expected, "{json}");
        }
        // Every field tells what it takes in words of its own: no type of the language shows.
        for field in FIELDS {
            let error = parse(&format!(r#"{{"{field}": {{"no": []}}}}"#)).unwrap_err();
            assert_eq!(error.field(), *field);
            let message = error.to_string();
            assert!(
                !["u32", "i64", "u64", "f64", " struct "].iter().any(|name| message.contains(name)),
                "{message}"
            );
        }
        let long = format!(r#"{{"temperature": "{}"}}"#, "ü".repeat(5000));
        assert!(parse(&long).unwrap_err().to_string().len() < 300);
    }
}
