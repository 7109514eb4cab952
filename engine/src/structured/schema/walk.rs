//! Which parts of a schema are schemas.

use serde_json::{Map, Value};

/// Words whose value is a schema.
const ONE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Words whose value is a list of schemas.
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Words whose value is a table of schemas.
const TABLES: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// The schemas that are the value of a word, or stand in it.
pub(super) fn held<'a>(word: &str, value: &'a Value) -> Vec<&'a Value> {
    match value {
        Value::Object(table) if TABLES.contains(&word) => table.values().collect(),
        Value::Array(list) if LISTS.contains(&word) => list.iter().collect(),
        Value::Object(_) if ONE.contains(&word) => vec![value],
        _ => Vec::new(),
    }
}

/// The same, to be changed.
pub(super) fn held_mut<'a>(word: &str, value: &'a mut Value) -> Vec<&'a mut Value> {
    if value.is_object() && ONE.contains(&word) {
        return vec![value];
    }
    match value {
        Value::Object(table) if TABLES.contains(&word) => table.values_mut().collect(),
        Value::Array(list) if LISTS.contains(&word) => list.iter_mut().collect(),
        _ => Vec::new(),
    }
}

/// The words of a schema, and of all schemas in it.
pub(super) fn each<'a>(schema: &'a Value, see: &mut impl FnMut(&'a Map<String, Value>)) {
    let Some(words) = schema.as_object() else { return };
    see(words);
    for (word, value) in words {
        held(word, value).into_iter().for_each(|part| each(part, see));
    }
}

/// The same, to be changed: the inner ones first.
pub(super) fn each_mut(schema: &mut Value, edit: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(words) = schema.as_object_mut() else { return };
    for (word, value) in words.iter_mut() {
        held_mut(word, value).into_iter().for_each(|part| each_mut(part, edit));
    }
    edit(words);
}
