//! In how many ways JSON may spell a name.
//!
//! Whether a name is one of those that a schema speaks of is decided by its letters, as they are written. So each name has
//! one spelling wherever that matters: no character is written by its number. `\n`, `\"` and their like are the only
//! spellings of what they stand for; other control characters, and the one behind `~`, have none then, in texts neither.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::walk;

/// What may stand behind a backslash where characters may be written by their numbers.
const NUMBERS: &str = "nrbtf\\\"u";
/// The same where they may not.
const NO_NUMBERS: &str = "nrbtf\\\"";

/// Words that speak of some names and not of others.
const OF_NAMES: [&str; 8] = [
    "properties",
    "patternProperties",
    "required",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "unevaluatedProperties",
];

/// States that tell whether a pattern has texts without control characters.
const MAX_STATES: u64 = 10_000;

/// What may stand behind a backslash in the texts and names of a schema.
///
/// # Errors
///
/// Of a schema that asks for control characters, and for names that are spelled without them.
pub(in crate::structured) fn escapes(schema: &Value) -> Result<&'static str, String> {
    let mut tells_names_apart = false;
    walk::each(schema, &mut |words| {
        tells_names_apart |= OF_NAMES.iter().any(|word| words.contains_key(*word)) && !is_closed(words);
    });
    if !tells_names_apart {
        return Ok(NUMBERS);
    }
    let mut unwritable = None;
    walk::each(schema, &mut |words| unwritable = unwritable.or_else(|| asks_for_numbers(words)));
    match unwritable {
        None => Ok(NO_NUMBERS),
        Some(word) => Err(format!(
            "{word} asks for a control character, which JSON writes by its number (\\u0001); with objects that may have \
             names beside those that are listed no character is written so, since \"\\u0061\" would be another name than \"a\""
        )),
    }
}

/// Whether an object has no names but those that are listed: each of them is written in one way.
fn is_closed(words: &Map<String, Value>) -> bool {
    words.get("additionalProperties") == Some(&Value::Bool(false)) && !words.contains_key("patternProperties")
}

/// The word that asks for characters which are written by their numbers and in no other way.
fn asks_for_numbers(words: &Map<String, Value>) -> Option<&'static str> {
    let is_writable = |word: &str| words.get(word).is_none_or(is_writable);
    let may_choose = |word: &str| {
        let choices = words.get(word).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        choices.is_empty() || choices.iter().any(self::is_writable)
    };
    match () {
        () if !is_writable("const") => Some("const"),
        () if !may_choose("enum") => Some("enum"),
        () if !words.get("pattern").and_then(Value::as_str).is_none_or(has_writable) => Some("pattern"),
        () => None,
    }
}

/// Whether the texts in a value can be written without numbers.
fn is_writable(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.chars().any(needs_number),
        Value::Array(list) => list.iter().all(is_writable),
        Value::Object(table) => table.values().all(is_writable),
        _ => true,
    }
}

fn needs_number(c: char) -> bool {
    c == '\x7f' || (c < ' ' && !"\u{8}\t\n\u{c}\r".contains(c))
}

/// Whether a pattern has a text that can be written without numbers. What cannot be told has one: the compiler finds
/// out.
fn has_writable(pattern: &str) -> bool {
    let names_some = ["\\x", "\\u", "\\c", "\\0", "\\v", "\\p", "\\P", "[:"];
    if !pattern.contains(needs_number) && !names_some.iter().any(|name| pattern.contains(name)) {
        return true;
    }
    let matching = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    let writable = RegexAst::Regex(r"[^\x00-\x07\x0b\x0e-\x1f\x7f]*".to_owned());
    let mut builder = RegexBuilder::new();
    let both = builder.mk(&RegexAst::And(vec![matching, writable]));
    let regex = both.and_then(|both| builder.to_regex_limited(both, MAX_STATES));
    regex.map_or(true, |mut regex| !regex.always_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_left_out_where_names_are_told_apart() {
        for (schema, expected) in [
            (json!({}), NUMBERS),
            (json!({"type": "object"}), NUMBERS),
            (json!({"additionalProperties": {"type": "string"}}), NUMBERS),
            (json!({"properties": {"a": {}}, "additionalProperties": false}), NUMBERS),
            (json!({"properties": {"a": {}}}), NO_NUMBERS),
            (json!({"items": {"required": ["a"]}}), NO_NUMBERS),
            (json!({"patternProperties": {"a": {}}, "additionalProperties": false}), NO_NUMBERS),
            (json!({"required": ["a"], "properties": {"b": {"pattern": r"^[\x00-\x7f]*$"}}}), NO_NUMBERS),
            (json!({"required": ["a"], "properties": {"b": {"enum": ["\n", "\u{1}"]}}}), NO_NUMBERS),
            (json!({"const": "\u{1}"}), NUMBERS),
        ] {
            assert_eq!(escapes(&schema), Ok(expected), "{schema}");
        }
    }

    #[test]
    fn what_needs_both_is_refused() {
        for (word, value) in [
            ("const", json!("a\u{1}")),
            ("enum", json!(["\u{1}", ["\u{7f}"]])),
            ("pattern", json!(r"^\x00+$")),
        ] {
            let error = escapes(&json!({"properties": {"a": {word: value}}})).unwrap_err();
            assert!(error.starts_with(&format!("{word} asks for a control character")), "{error}");
        }
    }
}
