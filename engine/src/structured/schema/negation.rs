//! What a schema does not allow.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

const TYPES: [&str; 6] = ["array", "boolean", "null", "number", "object", "string"];

/// Words that allow and forbid nothing.
const ANNOTATIONS: [&str; 9] = [
    "$comment",
    "default",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
    "$schema",
];

/// The values that a schema does not allow, as schemas of which one must hold; none where it allows everything. `None`
/// where they cannot be said.
pub(super) fn negate(schema: &Value) -> Option<Vec<Value>> {
    match schema {
        Value::Bool(true) => Some(vec![]),
        Value::Bool(false) => Some(vec![Value::Bool(true)]),
        Value::Object(words) => {
            let choices = words.iter().map(|(word, value)| negate_word(word, value));
            Some(choices.collect::<Option<Vec<_>>>()?.concat())
        }
        _ => None,
    }
}

/// A schema for a choice: one of them.
pub(super) fn any_of(mut choices: Vec<Value>) -> Value {
    match choices.len() {
        0 => Value::Bool(false),
        1 => choices.remove(0),
        _ => json!({ "anyOf": choices }),
    }
}

/// The values that break one word. Each word speaks of values of its type alone.
fn negate_word(word: &str, value: &Value) -> Option<Vec<Value>> {
    let number = || value.as_f64().map(|_| value);
    Some(match word {
        "type" => vec![other_types(value)?],
        "const" => other_values(std::slice::from_ref(value))?,
        "enum" => other_values(value.as_array()?)?,
        "not" => vec![value.clone()],
        "allOf" => value.as_array()?.iter().map(negate).collect::<Option<Vec<_>>>()?.concat(),
        "anyOf" => {
            let all = value.as_array()?.iter().map(|one| negate(one).map(any_of));
            vec![json!({ "allOf": all.collect::<Option<Vec<_>>>()? })]
        }
        "required" => value.as_array()?.iter().map(without).collect::<Option<_>>()?,
        "properties" => {
            let broken =
                value.as_object()?.iter().map(|(name, schema)| Some(with_broken(name, negate(schema)?)));
            broken.collect::<Option<Vec<_>>>()?.concat()
        }
        "minLength" => below("string", "maxLength", value)?,
        "maxLength" => vec![json!({ "type": "string", "minLength": value.as_u64()?.checked_add(1)? })],
        "minItems" => below("array", "maxItems", value)?,
        "maxItems" => vec![json!({ "type": "array", "minItems": value.as_u64()?.checked_add(1)? })],
        "minProperties" => below("object", "maxProperties", value)?,
        "maxProperties" => {
            vec![json!({ "type": "object", "minProperties": value.as_u64()?.checked_add(1)? })]
        }
        "minimum" => vec![json!({ "type": "number", "exclusiveMaximum": number()? })],
        "maximum" => vec![json!({ "type": "number", "exclusiveMinimum": number()? })],
        "exclusiveMinimum" => vec![json!({ "type": "number", "maximum": number()? })],
        "exclusiveMaximum" => vec![json!({ "type": "number", "minimum": number()? })],
        word if ANNOTATIONS.contains(&word) => vec![],
        _ => return None,
    })
}

/// Of the other types. Numbers that are not whole have no name.
fn other_types(given: &Value) -> Option<Value> {
    let given: Vec<&str> = match given {
        Value::Array(list) => list.iter().map(Value::as_str).collect::<Option<_>>()?,
        one => vec![one.as_str()?],
    };
    let others: Vec<&str> = TYPES.into_iter().filter(|name| !given.contains(name)).collect();
    let is_whole_apart = given.contains(&"integer") && !given.contains(&"number");
    match (is_whole_apart, others.is_empty()) {
        (true, _) => None,
        (false, true) => Some(Value::Bool(false)),
        (false, false) => Some(json!({ "type": others })),
    }
}

/// All values but some, none of them a list or an object.
fn other_values(given: &[Value]) -> Option<Vec<Value>> {
    let is_simple = given.iter().all(|value| !value.is_array() && !value.is_object());
    let types = given.iter().map(|value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        _ => "string",
    });
    let mut choices = vec![other_types(&types.collect::<Vec<_>>().into())?];
    let truths = [true, false].into_iter().filter(|truth| !given.contains(&(*truth).into()));
    let truths: Vec<bool> = truths.collect();
    if truths.len() == 1 {
        choices.push(json!({ "enum": truths }));
    }
    let strings: Vec<Vec<char>> =
        given.iter().filter_map(|value| Some(value.as_str()?.chars().collect())).collect();
    if !strings.is_empty() {
        choices.push(json!({ "type": "string", "pattern": format!("^(?:{})$", all_but(&strings)) }));
    }
    choices.extend(other_numbers(given));
    is_simple.then_some(choices)
}

/// The numbers before, between and behind some.
fn other_numbers(given: &[Value]) -> Vec<Value> {
    let mut numbers: Vec<&Value> = given.iter().filter(|value| value.is_number()).collect();
    numbers.sort_by(|a, b| a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)));
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Vec::new() };
    let mut ranges = vec![json!({ "type": "number", "exclusiveMaximum": first })];
    for pair in numbers.windows(2).filter(|pair| pair[0].as_f64() != pair[1].as_f64()) {
        ranges.push(json!({ "type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1] }));
    }
    ranges.push(json!({ "type": "number", "exclusiveMinimum": last }));
    ranges
}

/// A regular expression for every text but some, by their first characters.
fn all_but(texts: &[Vec<char>]) -> String {
    let mut by_first: BTreeMap<char, Vec<Vec<char>>> = BTreeMap::new();
    for text in texts {
        if let [first, rest @ ..] = &text[..] {
            by_first.entry(*first).or_default().push(rest.to_vec());
        }
    }
    let mut choices = Vec::new();
    if texts.iter().all(|text| !text.is_empty()) {
        choices.push(String::new());
    }
    let firsts: String = by_first.keys().map(|first| escaped(*first)).collect();
    choices
        .extend(by_first.iter().map(|(first, rests)| format!("{}(?:{})", escaped(*first), all_but(rests))));
    choices.push(if firsts.is_empty() { r"[\s\S]+".to_owned() } else { format!(r"[^{firsts}][\s\S]*") });
    choices.join("|")
}

fn escaped(character: char) -> String {
    match character {
        c if c.is_ascii_alphanumeric() || !c.is_ascii() => c.to_string(),
        c if c.is_ascii_control() => format!(r"\x{:02x}", u32::from(c)),
        ' ' => " ".to_owned(),
        c => format!(r"\{c}"),
    }
}

/// An object without a property.
fn without(name: &Value) -> Option<Value> {
    let properties = Map::from_iter([(name.as_str()?.to_owned(), Value::Bool(false))]);
    Some(json!({ "type": "object", "properties": properties }))
}

/// An object in which a property is one of what it must not be.
fn with_broken(name: &str, choices: Vec<Value>) -> Vec<Value> {
    let of = |choice| {
        let properties = Map::from_iter([(name.to_owned(), choice)]);
        json!({ "type": "object", "required": [name], "properties": properties })
    };
    choices.into_iter().map(of).collect()
}

/// What is shorter than a least length.
fn below(kind: &str, max: &str, least: &Value) -> Option<Vec<Value>> {
    let most = least.as_u64()?.checked_sub(1);
    let shorter = |most: u64| {
        let mut words = Map::from_iter([("type".to_owned(), kind.into())]);
        words.insert(max.to_owned(), most.into());
        Value::Object(words)
    };
    Some(most.map(shorter).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_left_out_character_by_character() {
        assert_eq!(all_but(&["ab".chars().collect()]), r"|a(?:|b(?:[\s\S]+)|[^b][\s\S]*)|[^a][\s\S]*");
        assert_eq!(all_but(&[vec![]]), r"[\s\S]+");
        assert_eq!([escaped('-'), escaped('\n'), escaped('é')], [r"\-", r"\x0a", "é"]);
    }

    #[test]
    fn what_cannot_be_said_is_not() {
        for schema in [json!({"pattern": "a"}), json!({"type": "integer"}), json!({"const": []})] {
            assert_eq!(negate(&schema), None, "{schema}");
        }
        assert_eq!(negate(&json!({"title": "x"})), Some(vec![]));
        assert_eq!(negate(&json!({"type": ["number", "integer"]})).unwrap().len(), 1);
    }
}
