//! The prompts of a completion: one text, several, one list of tokens, or several.

use quire_engine::Prompt;
use serde_json::Value;

use super::body::{Body, integer, kind_of, shown};
use super::error::ApiError;

/// Prompts that a request may have: each becomes a request of the engine.
const MAX_PROMPTS: usize = 1024;

const EXPECTED: &str = "a string, a list of strings, a list of token ids or a list of such lists";

/// Takes `prompt` and `add_special_tokens` out of a body: at least one prompt.
pub(crate) fn take(body: &mut Body) -> Result<Vec<Prompt>, ApiError> {
    let is_bare = body.take_bool("add_special_tokens")? == Some(false);
    let prompts = take_framed(body)?;
    Ok(if is_bare { prompts.into_iter().map(bare).collect() } else { prompts })
}

/// The prompt, with nothing in front of its text.
pub(crate) fn bare(prompt: Prompt) -> Prompt {
    match prompt {
        Prompt::Text(text) => Prompt::BareText(text),
        other => other,
    }
}

fn take_framed(body: &mut Body) -> Result<Vec<Prompt>, ApiError> {
    let prompts = match body.take_value("prompt") {
        None => return Err(refuse(format!("prompt is missing: expected {EXPECTED}"))),
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(items)) => of_list(items)?,
        Some(other) => return Err(refuse(format!("prompt is {}: expected {EXPECTED}", kind_of(&other)))),
    };
    match prompts.len() {
        0 => Err(refuse(format!("prompt is empty: expected {EXPECTED}"))),
        len if len > MAX_PROMPTS => Err(refuse(format!("{len} prompts: expected at most {MAX_PROMPTS}"))),
        _ => Ok(prompts),
    }
}

/// What the first element is, all are.
fn of_list(items: Vec<Value>) -> Result<Vec<Prompt>, ApiError> {
    match items.first() {
        Some(Value::Number(_)) => Ok(vec![Prompt::TokenIds(token_ids("prompt", "prompt", &items)?)]),
        _ => items.into_iter().enumerate().map(|(index, item)| of_item(index, item)).collect(),
    }
}

fn of_item(index: usize, item: Value) -> Result<Prompt, ApiError> {
    match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => Ok(Prompt::TokenIds(token_ids("prompt", &format!("prompt[{index}]"), &ids)?)),
        other => Err(refuse(format!("prompt[{index}] is {}: expected {EXPECTED}", kind_of(&other)))),
    }
}

/// Token ids, in a place of a field; whether the vocabulary has them is for the engine to say.
pub(crate) fn token_ids(field: &str, place: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let read = |(index, item): (usize, &Value)| {
        let id = integer(item).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            let message =
                format!("{place}[{index}] is {}: expected a token id, a whole number from 0", shown(item));
            ApiError::bad_field(field, message)
        })
    };
    items.iter().enumerate().map(read).collect()
}

fn refuse(message: String) -> ApiError {
    ApiError::bad_field("prompt", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(json: &str) -> Result<Vec<Prompt>, ApiError> {
        take(&mut Body::parse(format!("{{\"prompt\": {json}}}").as_bytes()).expect("an object"))
    }

    #[test]
    fn all_four_forms_are_read() {
        assert_eq!(prompts(r#""a""#).expect("a text"), [Prompt::from("a")]);
        assert_eq!(prompts(r#"["a", "b"]"#).expect("texts"), [Prompt::from("a"), Prompt::from("b")]);
        assert_eq!(prompts("[1, 2]").expect("tokens"), [Prompt::TokenIds(vec![1, 2])]);
        let lists = [Prompt::TokenIds(vec![1]), Prompt::TokenIds(vec![2, 3])];
        assert_eq!(prompts("[[1], [2, 3]]").expect("lists"), lists);
    }

    #[test]
    fn texts_are_bare_where_no_special_tokens_are_wanted() {
        let of = |json: &str| take(&mut Body::parse(json.as_bytes()).expect("an object"));
        let bare = of(r#"{"prompt": ["a"], "add_special_tokens": false}"#).expect("a text");
        assert_eq!(bare, [Prompt::BareText("a".to_owned())]);
        let framed = of(r#"{"prompt": ["a"], "add_special_tokens": true}"#).expect("a text");
        assert_eq!(framed, [Prompt::from("a")]);
        let wrong = of(r#"{"prompt": "a", "add_special_tokens": "x"}"#).expect_err("no switch");
        assert_eq!(wrong.param.as_deref(), Some("add_special_tokens"));
    }

    #[test]
    fn br_36_odd_token_ids_are_named() {
        for (json, said) in [
            ("[1, -1]", "prompt[1] is -1: expected a token id"),
            ("[[1], [4294967296]]", "prompt[1][0] is 4294967296: expected a token id"),
            ("[1.5]", "prompt[0] is 1.5"),
            ("[1, \"a\"]", "prompt[1] is \"a\""),
            ("[{}]", "prompt[0] is an object"),
            ("[]", "prompt is empty"),
            ("{}", "prompt is an object"),
            ("null", "prompt is missing"),
        ] {
            let error = prompts(json).expect_err(json);
            assert!(error.message.starts_with(said), "{}", error.message);
            assert_eq!(error.param.as_deref(), Some("prompt"));
        }
    }
}
