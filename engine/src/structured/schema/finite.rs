//! Whether a schema can be met at all, by a value that comes to an end: a list that must hold a list of its own kind
//! does not.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{counts, walk};

/// How often references are looked at again. What is not found out by then counts as met.
const MAX_ROUNDS: usize = 50;

/// # Errors
///
/// Of a schema that nothing conforms to, as far as this looks.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    match Finite::of(schema).is_met(schema) {
        true => Ok(()),
        false => Err("nothing conforms to it: what it asks for excludes itself, or has no end".to_owned()),
    }
}

/// What is known of the targets of references: whether they can be met.
struct Finite<'a>(BTreeMap<&'a str, bool>);

impl<'a> Finite<'a> {
    /// Those within one document that are met when only those are met that were found to be before.
    fn of(root: &'a Value) -> Self {
        let mut targets: BTreeMap<&str, &Value> = BTreeMap::new();
        let mut has_bases = false;
        walk::each(root, &mut |words| {
            has_bases |=
                words.get("$id").is_some_and(|_| !std::ptr::eq(words, root.as_object().unwrap_or(words)));
            if let Some(reference) = words.get("$ref").and_then(Value::as_str)
                && let Some(target) = reference.strip_prefix('#').and_then(|path| root.pointer(path))
            {
                targets.insert(reference, target);
            }
        });
        if has_bases {
            return Self(BTreeMap::new());
        }
        let mut finite = Self(targets.keys().map(|reference| (*reference, false)).collect());
        for round in 0..MAX_ROUNDS {
            if !finite.look_again(&targets, round % 2 == 1) {
                return finite;
            }
        }
        Self(BTreeMap::new())
    }

    /// Whether more is known than before. Chains of references are followed soon in one direction or the other.
    fn look_again(&mut self, targets: &BTreeMap<&'a str, &Value>, is_backward: bool) -> bool {
        let mut references: Vec<_> = targets.iter().filter(|(reference, _)| !self.0[**reference]).collect();
        if is_backward {
            references.reverse();
        }
        let mut has_grown = false;
        for (reference, target) in references {
            if self.is_met(target) {
                self.0.insert(*reference, true);
                has_grown = true;
            }
        }
        has_grown
    }

    fn is_met(&self, schema: &Value) -> bool {
        let Some(words) = schema.as_object() else { return *schema != Value::Bool(false) };
        let of_reference =
            words.get("$ref").and_then(Value::as_str).and_then(|reference| self.0.get(reference));
        let list = |word: &str| words.get(word).and_then(Value::as_array);
        let is_any_met = |word: &str| list(word).is_none_or(|any| any.iter().any(|one| self.is_met(one)));
        of_reference != Some(&false)
            && list("allOf").is_none_or(|all| all.iter().all(|one| self.is_met(one)))
            && is_any_met("anyOf")
            && is_any_met("oneOf")
            && match words.get("type").and_then(Value::as_str) {
                Some("object") => self.is_object_met(words),
                Some("array") => self.is_array_met(words),
                _ => true,
            }
    }

    /// Whether the properties that it must have can be had.
    fn is_object_met(&self, words: &Map<String, Value>) -> bool {
        let is_closed = words.get("additionalProperties") == Some(&Value::Bool(false))
            && !words.contains_key("patternProperties");
        let properties = words.get("properties").and_then(Value::as_object);
        let least = counts::least(words).unwrap_or(0);
        let has_enough = || {
            let names = properties.into_iter().flatten().filter(|(_, property)| self.is_met(property));
            !is_closed || least <= names.count() as u64
        };
        let most = words.get("maxProperties").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let required = words.get("required").and_then(Value::as_array).into_iter().flatten();
        let has_required = required.filter_map(Value::as_str).all(|name| {
            let property = properties.and_then(|properties| properties.get(name));
            property.map_or(!is_closed, |property| self.is_met(property))
        });
        has_required && least <= most && has_enough()
    }

    /// Whether the items that it must have can be had.
    fn is_array_met(&self, words: &Map<String, Value>) -> bool {
        let num_items = words.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let num_items = usize::try_from(num_items).unwrap_or(usize::MAX);
        let first = words.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rest = words.get("items").filter(|items| !items.is_array());
        first.iter().take(num_items).all(|item| self.is_met(item))
            && (num_items <= first.len() || rest.is_none_or(|item| self.is_met(item)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_no_end_is_met_by_nothing() {
        let endless = [
            json!(false),
            json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}),
            json!({"type": "array", "minItems": 1, "items": {"$ref": "#"}}),
            json!({"type": "array", "minItems": 2, "prefixItems": [true, false]}),
            json!({"type": "object", "required": ["b"], "properties": {"a": true}, "additionalProperties": false}),
            json!({"type": "object", "minProperties": 1, "additionalProperties": false}),
            json!({"type": "object", "required": ["a"], "minProperties": 2, "properties": {"a": true, "b": false}, "additionalProperties": false}),
            json!({"type": "object", "minProperties": 2, "maxProperties": 1}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"allOf": [true, false]}]}}}),
        ];
        for schema in endless {
            assert!(check(&schema).is_err(), "{schema}");
        }
        let met = [
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
            json!({"required": ["a"], "properties": {"a": {"$ref": "#"}}}),
            json!({"minProperties": 1, "additionalProperties": false}),
            json!({"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": false}),
            json!({"type": "object", "minProperties": 1, "patternProperties": {"a": {}}, "additionalProperties": false}),
            json!({"type": "array", "items": {"$ref": "#"}}),
            json!({"type": "array", "minItems": 1, "prefixItems": [true, false], "items": false}),
            json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
            json!({"$ref": "other.json"}),
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": ["null", "object"]}}}),
        ];
        for schema in met {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn long_chains_are_followed_in_time() {
        for (first, step) in [(0, 1), (3000, -1)] {
            let name = |i: i64| format!("{:04}", first + step * i);
            let mut chain: Map<String, Value> =
                (0..3000).map(|i| (name(i), json!({"$ref": format!("#/$defs/{}", name(i + 1))}))).collect();
            let schema =
                |chain: &Map<String, Value>| json!({"$ref": format!("#/$defs/{}", name(0)), "$defs": chain});
            chain.insert(name(3000), json!({"type": "null"}));
            assert_eq!(check(&schema(&chain)), Ok(()));
            chain.insert(name(3000), json!(false));
            assert!(check(&schema(&chain)).is_err());
        }
    }
}
