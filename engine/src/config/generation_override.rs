//! `override_generation_config`: sampling defaults that go before those of the model's makers.

use quire_models::GenerationConfig;
use serde_json::Value;

use crate::ConfigError;

const NAME: &str = "override_generation_config";

/// The fields that requests have defaults for.
const FIELDS: [&str; 6] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"];

/// Reads the JSON of the setting.
///
/// # Errors
///
/// [`ConfigError::Value`]: no object, a field that is none of these, a value of another type.
pub(crate) fn parse(text: &str) -> Result<GenerationConfig, ConfigError> {
    let expected = || {
        let expected = format!("a JSON object with some of {}, all numbers", FIELDS.join(", "));
        ConfigError::Value { field: NAME, given: text.to_owned(), expected }
    };
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return Err(expected()) };
    let is_known = |(name, value): (&String, &Value)| FIELDS.contains(&name.as_str()) && value.is_number();
    if !object.iter().all(is_known) {
        return Err(expected());
    }
    let config = GenerationConfig::from_json(&object).map_err(|_| expected())?;
    if config.unread.is_empty() { Ok(config) } else { Err(expected()) }
}

/// A value that no request may have.
pub(crate) fn refused(text: &str, fault: &str) -> ConfigError {
    ConfigError::Value {
        field: NAME,
        given: text.to_owned(),
        expected: format!("what requests may have: {fault}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_known_names_are_taken() {
        let read = parse(r#"{"temperature": 0.5, "top_k": 7}"#).expect("right");
        assert_eq!((read.temperature, read.top_k, read.top_p), (Some(0.5), Some(7), None));
        for wrong in ["", "[]", "{", r#"{"temprature": 1}"#, r#"{"top_k": "7"}"#, r#"{"eos_token_id": 1}"#] {
            let told = parse(wrong).expect_err(wrong).to_string();
            assert!(told.contains("override_generation_config") && told.contains("max_new_tokens"), "{told}");
        }
    }
}
