//! Sampling parameters as requests have them.

use quire_engine::SamplingParams;
use serde_json::{Map, Value, json};

use super::body::Body;
use super::error::ApiError;
use super::field_names::FieldNames;

/// Takes the parameters out of a completion's body; what it does not give is as in `defaults`. The names are those by
/// which the body has them.
pub(crate) fn of_completion(
    body: &mut Body,
    defaults: &SamplingParams,
) -> Result<(SamplingParams, FieldNames), ApiError> {
    take(body, defaults, Map::new(), FieldNames::default())
}

/// Takes the parameters out of a chat's body: there `logprobs` is a switch, and the answer is as long as it is.
pub(crate) fn of_chat(
    body: &mut Body,
    defaults: &SamplingParams,
) -> Result<(SamplingParams, FieldNames), ApiError> {
    let (mut renamed, mut names) = (Map::new(), FieldNames::default());
    names.add("prompt", "messages");
    let is_asked = body.take_bool("logprobs")?.unwrap_or(false);
    let num_top = body.take_integer("top_logprobs")?;
    match (is_asked, num_top) {
        (true, num) => {
            names.add("logprobs", "top_logprobs");
            renamed.insert("logprobs".to_owned(), num.unwrap_or(0).into());
        }
        (false, None | Some(0)) => {}
        (false, Some(num)) => {
            let message = format!("top_logprobs is {num}: expected logprobs = true with it");
            return Err(ApiError::bad_field("top_logprobs", message));
        }
    }
    if let Some(max) = body.take_value("max_completion_tokens") {
        body.take_value("max_tokens");
        names.add("max_tokens", "max_completion_tokens");
        renamed.insert("max_tokens".to_owned(), max);
    }
    take(body, &chat_defaults(defaults), renamed, names)
}

/// What a chat does not give.
pub(crate) fn chat_defaults(defaults: &SamplingParams) -> SamplingParams {
    SamplingParams { max_tokens: max_tokens_of_model(defaults), ..defaults.clone() }
}

/// What the model's files allow an answer; the 16 of completions are nobody's wish.
fn max_tokens_of_model(defaults: &SamplingParams) -> Option<u64> {
    defaults.max_tokens.filter(|_| defaults.max_tokens != SamplingParams::default().max_tokens)
}

fn take(
    body: &mut Body,
    defaults: &SamplingParams,
    renamed: Map<String, Value>,
    mut names: FieldNames,
) -> Result<(SamplingParams, FieldNames), ApiError> {
    let mut given = body.take_all(SamplingParams::field_names());
    if let Some(form) = take_form(body)? {
        if given.contains_key("structured_outputs") {
            let message =
                format!("{} and structured_outputs say the same thing: expected one of them", form.field);
            return Err(ApiError::bad_field(form.field, message));
        }
        names.add(WHITESPACE, "guided_whitespace_pattern");
        names.add("structured_outputs", form.field);
        given.insert("structured_outputs".to_owned(), form.value);
    }
    given.extend(renamed);
    let params = defaults.with_json(&given).map_err(|error| names.translate(error.into()))?;
    Ok((params, names))
}

/// The form that an output must have, as older clients and OpenAI's name it.
struct OutputForm {
    field: &'static str,
    value: Value,
}

impl OutputForm {
    fn holds_no_json(&self) -> bool {
        ["regex", "choice", "grammar"].iter().any(|name| self.value.get(name).is_some())
    }
}

/// What the engine calls the pattern of white space in its errors.
const WHITESPACE: &str = "structured_outputs.whitespace_pattern";

const GUIDED: [(&str, &str); 4] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
];

fn take_form(body: &mut Body) -> Result<Option<OutputForm>, ApiError> {
    let mut forms = Vec::new();
    if let Some(format) = body.take_value("response_format") {
        let value = of_response_format(&format)?;
        leave_unknown(body, &format);
        forms.extend(value.map(|value| OutputForm { field: "response_format", value }));
    }
    for (field, name) in GUIDED {
        forms.extend(body.take_value(field).map(|value| OutputForm { field, value: json!({ name: value }) }));
    }
    let pattern = body.take_text("guided_whitespace_pattern")?;
    if let [first, second, ..] = &forms[..] {
        let message = format!("{} and {} exclude each other", first.field, second.field);
        return Err(ApiError::bad_field(second.field, message));
    }
    let mut form = forms.pop();
    if let (Some(form), Some(pattern)) = (&mut form, pattern) {
        if form.holds_no_json() {
            let message = format!("guided_whitespace_pattern beside {}: expected a form of JSON", form.field);
            return Err(ApiError::bad_field("guided_whitespace_pattern", message));
        }
        form.value["whitespace_pattern"] = pattern.into();
    }
    Ok(form)
}

/// `{"type": "text" | "json_object" | "json_schema" | "structural_tag", ...}`.
fn of_response_format(format: &Value) -> Result<Option<Value>, ApiError> {
    let refuse =
        |message: &str| Err(ApiError::bad_field("response_format", format!("response_format: {message}")));
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({ "json_object": true }))),
        Some("json_schema") => match format.pointer("/json_schema/schema") {
            Some(schema) => Ok(Some(json!({ "json": schema }))),
            None => refuse("json_schema.schema is missing"),
        },
        Some("structural_tag") => Ok(Some(json!({ "structural_tag": format }))),
        Some(other) => {
            refuse(&format!("type is {other:?}: expected text, json_object, json_schema or structural_tag"))
        }
        None => refuse("expected an object with a type: text, json_object, json_schema or structural_tag"),
    }
}

/// Notes what of a `response_format` nobody knows. A structural tag is looked at by those who read it.
fn leave_unknown(body: &mut Body, format: &Value) {
    if format["type"] == "structural_tag" {
        return;
    }
    let mut leave = |field, value: &Value, known: &[&str]| {
        let given = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        body.leave_within(field, given.map(|(name, _)| name.as_str()).filter(|name| !known.contains(name)));
    };
    leave("response_format", format, &["type", "json_schema"]);
    let known = ["name", "description", "schema", "strict"];
    leave("response_format.json_schema", &format["json_schema"], &known);
}

#[cfg(test)]
mod tests {
    use quire_engine::StructuredOutputs;

    use super::*;

    fn body(json: &str) -> Body {
        Body::parse(json.as_bytes()).expect("an object")
    }

    fn chat(json: &str) -> Result<SamplingParams, ApiError> {
        of_chat(&mut body(json), &SamplingParams::default()).map(|(params, _)| params)
    }

    #[test]
    fn chat_and_completions_have_their_own_defaults() {
        let defaults = SamplingParams::default();
        let (params, _) = of_completion(&mut body("{}"), &defaults).expect("nothing is wrong");
        assert_eq!(params.max_tokens, Some(16));
        assert_eq!(chat("{}").expect("nothing is wrong").max_tokens, None);
        let of_model = SamplingParams { max_tokens: Some(100), ..SamplingParams::default() };
        let (params, _) = of_chat(&mut body("{}"), &of_model).expect("nothing is wrong");
        assert_eq!(params.max_tokens, Some(100));
    }

    #[test]
    fn the_new_name_of_a_limit_wins() {
        let params = chat(r#"{"max_tokens": 5, "max_completion_tokens": 7}"#).expect("both are limits");
        assert_eq!(params.max_tokens, Some(7));
    }

    #[test]
    fn a_switch_and_a_number_make_log_probabilities() {
        for (json, expected) in [
            (r#"{"logprobs": true}"#, Some(0)),
            (r#"{"logprobs": true, "top_logprobs": 3}"#, Some(3)),
            (r#"{"logprobs": false, "top_logprobs": 0}"#, None),
        ] {
            assert_eq!(chat(json).expect("allowed").logprobs, expected, "{json}");
        }
        let error = chat(r#"{"top_logprobs": 3}"#).expect_err("no switch");
        assert_eq!(error.param.as_deref(), Some("top_logprobs"));
    }

    #[test]
    fn a_pattern_of_white_space_is_told_by_its_name() {
        for fields in [
            r#""guided_whitespace_pattern": 5"#,
            r#""guided_whitespace_pattern": [" "], "guided_json": {}"#,
            r#""guided_whitespace_pattern": " ", "guided_regex": "a""#,
            r#""guided_whitespace_pattern": {}, "response_format": {"type": "json_object"}"#,
        ] {
            let error = chat(&format!("{{{fields}}}")).expect_err(fields);
            assert_eq!(error.param.as_deref(), Some("guided_whitespace_pattern"), "{fields}");
            assert!(error.message.starts_with("guided_whitespace_pattern "), "{}", error.message);
        }
        let params =
            chat(r#"{"guided_whitespace_pattern": " ?", "guided_json": {}}"#).expect("both are sound");
        let form = params.structured_outputs.expect("a form");
        assert_eq!(form.whitespace_pattern.as_deref(), Some(" ?"));
    }

    #[test]
    fn forms_of_output_have_one_meaning() {
        let schema = json!({"type": "object"});
        let formats = [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            json!({"guided_json": schema}),
            json!({"structured_outputs": {"json": schema}}),
        ];
        for format in formats {
            let params = chat(&format.to_string()).expect("a form");
            assert_eq!(params.structured_outputs, Some(StructuredOutputs::json(schema.clone())), "{format}");
        }
        let both = r#"{"guided_regex": "a", "guided_choice": ["b"]}"#;
        assert_eq!(chat(both).expect_err("two forms").param.as_deref(), Some("guided_choice"));
        let odd = r#"{"response_format": {"type": "xml"}}"#;
        assert!(chat(odd).expect_err("no such form").message.contains("expected text, json_object"));
    }
}
