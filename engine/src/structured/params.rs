//! The form of an output, as a user writes it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::source::{GrammarKind, GrammarSource};
use super::tags::StructuralTags;
use super::thought::Thought;
use crate::ParamError;
use crate::chat::ReasoningFormat;

/// The form that an output must have: exactly one of the fields up to `structural_tag`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StructuredOutputs {
    /// JSON that conforms to this JSON schema, given as an object or as its text. What the schema asks for and cannot be
    /// enforced (`uniqueItems`, `not`, ...) is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// Text that matches this regular expression, from its beginning to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// One of these texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Vec<String>>,
    /// Text of this grammar, in the dialect of Lark that `llguidance` reads; its first rule is `start`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
    /// Any JSON object. False is the same as absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_object: Option<bool>,
    /// Free text in which what stands between a begin and an end tag conforms to the tag's schema:
    /// `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, as an object or as its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structural_tag: Option<Value>,
    /// What may stand between the tokens of JSON, as a regular expression; by default a space or two, or a line break and
    /// up to 12 blanks, so that no output is white space without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whitespace_pattern: Option<String>,
    /// How the model sets apart its reasoning, which may come before the form then, in any form; by default there is none.
    /// Where the prompt has opened or closed it, by [`ReasoningPlace::after`](crate::chat::ReasoningPlace::after) its end, the
    /// output begins within it or behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningFormat>,
}

impl StructuredOutputs {
    /// Any JSON that conforms to a schema.
    pub fn json(schema: impl Into<Value>) -> Self {
        Self { json: Some(schema.into()), ..Self::default() }
    }

    /// Checks that exactly one form is asked for, in the right way.
    pub(crate) fn check(&self) -> Result<GrammarSource, ParamError> {
        let given: Vec<GrammarKind> = self.kinds().collect();
        let &[kind] = &given[..] else {
            let names: Vec<_> = given.iter().map(|kind| kind.field()).collect();
            return Err(refuse(format!("[{}]", names.join(", ")), ONE_OF));
        };
        let whitespace = self.check_whitespace(kind)?;
        let text = match kind {
            GrammarKind::Json => schema_text(self.json.as_ref())?,
            GrammarKind::Regex => self.regex.clone().unwrap_or_default(),
            GrammarKind::Choice => choice_text(self.choice.as_deref().unwrap_or_default())?,
            GrammarKind::Lark => self.grammar.clone().unwrap_or_default(),
            GrammarKind::JsonObject => r#"{"type":"object"}"#.to_owned(),
            GrammarKind::StructuralTag => StructuralTags::check(self.structural_tag.as_ref())?.to_text(),
        };
        Ok(GrammarSource { kind, text, whitespace, thought: Thought::None })
    }

    fn kinds(&self) -> impl Iterator<Item = GrammarKind> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        [
            (GrammarKind::Json, is_given(&self.json)),
            (GrammarKind::Regex, self.regex.is_some()),
            (GrammarKind::Choice, self.choice.is_some()),
            (GrammarKind::Lark, self.grammar.is_some()),
            (GrammarKind::JsonObject, self.json_object == Some(true)),
            (GrammarKind::StructuralTag, is_given(&self.structural_tag)),
        ]
        .into_iter()
        .filter_map(|(kind, is_given)| is_given.then_some(kind))
    }

    fn check_whitespace(&self, kind: GrammarKind) -> Result<Option<String>, ParamError> {
        match &self.whitespace_pattern {
            Some(pattern) if !kind.holds_json() => Err(refuse(
                format!("whitespace_pattern {pattern:?} with {}", kind.field()),
                "a whitespace_pattern only with json, json_object or structural_tag",
            )),
            pattern => Ok(pattern.clone()),
        }
    }
}

const ONE_OF: &str = "exactly one of json, regex, choice, grammar, json_object, structural_tag";

/// The text of a schema that was given as such or as an object.
fn schema_text(schema: Option<&Value>) -> Result<String, ParamError> {
    match schema {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema.to_string()),
        schema => Err(refuse(
            format!("json {}", schema.map(ToString::to_string).unwrap_or_default()),
            "a JSON schema, as an object or as its text",
        )),
    }
}

/// A grammar of alternatives.
fn choice_text(choices: &[String]) -> Result<String, ParamError> {
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(refuse(format!("choice {choices:?}"), "at least one choice, and none empty"));
    }
    let quoted: Vec<String> = choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
    // As one lexeme: as rules, many of them would be too many.
    Ok(format!("start: CHOICE\nCHOICE: {}", quoted.join(" | ")))
}

pub(super) fn refuse(value: String, rule: &str) -> ParamError {
    ParamError::Value { field: "structured_outputs", value, rule: rule.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(given: Value) -> Result<GrammarSource, String> {
        let given: StructuredOutputs = serde_json::from_value(given).map_err(|error| error.to_string())?;
        given.check().map_err(|error| error.to_string())
    }

    #[test]
    fn exactly_one_form_is_taken() {
        for (given, field) in [
            (json!({"json": {"type": "object"}}), "json"),
            (json!({"json": "{}", "json_object": false, "regex": null}), "json"),
            (json!({"regex": "a+"}), "regex"),
            (json!({"choice": ["a", "b"]}), "choice"),
            (json!({"grammar": "start: \"a\""}), "grammar"),
            (json!({"json_object": true, "whitespace_pattern": " "}), "json_object"),
        ] {
            assert_eq!(check(given.clone()).unwrap().kind.field(), field, "{given}");
        }
        let expected = "expected exactly one of json, regex, choice, grammar, json_object, structural_tag";
        for (given, shown) in [
            (json!({}), "[]"),
            (json!({"json_object": false}), "[]"),
            (json!({"json": {}, "regex": "a"}), "[json, regex]"),
        ] {
            assert_eq!(check(given).unwrap_err(), format!("structured_outputs is {shown}: {expected}"));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_field() {
        for (given, shown) in [
            (json!({"json": 5}), "json 5"),
            (json!({"choice": []}), "choice []"),
            (json!({"choice": ["a", ""]}), "choice [\"a\", \"\"]"),
            (json!({"regex": "a", "whitespace_pattern": " "}), "whitespace_pattern \" \" with regex"),
        ] {
            let error = check(given).unwrap_err();
            assert!(error.starts_with(&format!("structured_outputs is {shown}: expected ")), "{error}");
        }
        assert!(check(json!({"jsn": {}})).unwrap_err().contains("unknown field `jsn`"));
    }
}
