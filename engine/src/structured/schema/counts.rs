//! Names that are counted.
//!
//! The grammar of an object does not remember which names have come. Those that are listed come once; one that only a
//! pattern speaks of, or nothing, may come twice, and is one property then. So `minProperties` can be held to as long as
//! one such name is enough for it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::walk;

/// # Errors
///
/// What `minProperties` asks for and cannot be counted.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    check_beside(&BTreeSet::new(), schema)
}

/// Checks a schema of objects that have those names anyway.
fn check_beside<'a>(names: &BTreeSet<&'a str>, schema: &'a Value) -> Result<(), String> {
    let Some(words) = schema.as_object() else { return Ok(()) };
    let mut names = names.clone();
    add_required(words, &mut names);
    let num_required = names.len() as u64;
    if let Some(least) = least(words).filter(|least| *least > num_required + 1) {
        return Err(format!(
            "minProperties is {least}, {num_required} names are required beside it, and at most one more can be counted: a \
             name may come twice"
        ));
    }
    let none = BTreeSet::new();
    for (word, value) in words {
        let names = if word == "allOf" { &names } else { &none };
        walk::held(word, value).into_iter().try_for_each(|part| check_beside(names, part))?;
    }
    Ok(())
}

pub(super) fn least(words: &Map<String, Value>) -> Option<u64> {
    let least = words.get("minProperties")?;
    least.as_u64().or_else(|| least.as_f64().map(|least| least.max(0.0) as u64))
}

/// The names that are required, here and in whatever holds as well.
fn add_required<'a>(words: &'a Map<String, Value>, names: &mut BTreeSet<&'a str>) {
    let list = |word: &str| words.get(word).and_then(Value::as_array).into_iter().flatten();
    names.extend(list("required").filter_map(Value::as_str));
    list("allOf").filter_map(Value::as_object).for_each(|words| add_required(words, names));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_that_are_required_anywhere_are_counted() {
        for (schema, can_be_counted) in [
            (json!({"minProperties": 1}), true),
            (json!({"minProperties": 2}), false),
            (json!({"minProperties": 3, "required": ["a", "b", "a"]}), true),
            (
                json!({"minProperties": 3, "allOf": [{"required": ["a"]}, {"allOf": [{"required": ["b"]}]}]}),
                true,
            ),
            (json!({"required": ["a", "b"], "allOf": [{"minProperties": 3}]}), true),
            (json!({"allOf": [{"required": ["a", "b"]}, {"minProperties": 3}]}), true),
            (json!({"allOf": [{"required": ["a"]}, {"minProperties": 3}]}), false),
            (json!({"anyOf": [{"required": ["a", "b"]}], "minProperties": 3}), false),
            (json!({"required": ["a", "b"], "properties": {"a": {"minProperties": 3}}}), false),
        ] {
            assert_eq!(check(&schema).is_ok(), can_be_counted, "{schema}");
        }
    }
}
