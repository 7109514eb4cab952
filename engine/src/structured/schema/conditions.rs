//! Words that choose between schemas, written as choices.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::negation::{any_of, negate};

/// More of them are not written as a choice of which each excludes the others.
const MAX_ONE_OF: usize = 6;
/// More choices of names are not written out.
const MAX_CHOICES: usize = 64;

/// Puts choices in place of conditions. A word that has no other words stays.
pub(super) fn reword(words: &mut Map<String, Value>, splits_one_of: bool) {
    let rules: [Rule; 5] = [conditional, negation, dependents, property_names, least_names];
    for rule in rules.into_iter().chain(splits_one_of.then_some(one_of as Rule)) {
        if let Some(Reworded { replaced, must_hold }) = rule(words) {
            replaced.iter().for_each(|word| drop(words.remove(*word)));
            require(words, must_hold);
        }
    }
}

type Rule = fn(&Map<String, Value>) -> Option<Reworded>;

/// Words, and what holds in place of them.
struct Reworded {
    replaced: &'static [&'static str],
    must_hold: Vec<Value>,
}

/// Adds schemas that must hold as well.
fn require(words: &mut Map<String, Value>, schemas: Vec<Value>) {
    let schemas = schemas.into_iter().filter(|schema| *schema != Value::Bool(true)).collect::<Vec<_>>();
    if schemas.is_empty() {
        return;
    }
    if let Value::Array(all) = words.entry("allOf").or_insert_with(|| json!([])) {
        all.extend(schemas);
    }
}

/// `if`, `then`, `else`: it holds with what follows, or it does not with what follows else.
fn conditional(words: &Map<String, Value>) -> Option<Reworded> {
    let replaced = &["if", "then", "else"];
    let anything = Value::Bool(true);
    let [condition, then, otherwise] = replaced.map(|word| words.get(word));
    let has_effect = condition.is_some() && (then.is_some() || otherwise.is_some());
    let Some(condition) = condition.filter(|_| has_effect) else {
        return Some(Reworded { replaced, must_hold: vec![] });
    };
    let (then, otherwise) = (then.unwrap_or(&anything), otherwise.unwrap_or(&anything));
    let holds = json!({ "allOf": [condition, then] });
    let fails = json!({ "allOf": [any_of(negate(condition)?), otherwise] });
    Some(Reworded { replaced, must_hold: vec![any_of(vec![holds, fails])] })
}

fn negation(words: &Map<String, Value>) -> Option<Reworded> {
    let forbidden = negate(words.get("not")?)?;
    Some(Reworded { replaced: &["not"], must_hold: vec![any_of(forbidden)] })
}

/// `dependentRequired`, `dependentSchemas`, `dependencies`: a property is not there, or what it depends on holds.
fn dependents(words: &Map<String, Value>) -> Option<Reworded> {
    let replaced = &["dependentRequired", "dependentSchemas", "dependencies"];
    let tables = replaced.iter().filter_map(|word| words.get(*word).map(Value::as_object));
    let tables = tables.collect::<Option<Vec<_>>>()?;
    let choice = |(name, needs): (&String, &Value)| {
        let absent = json!({ "properties": Map::from_iter([(name.clone(), Value::Bool(false))]) });
        let needs = if needs.is_array() { json!({ "required": needs }) } else { needs.clone() };
        any_of(vec![absent, needs])
    };
    Some(Reworded { replaced, must_hold: tables.into_iter().flatten().map(choice).collect() })
}

/// `propertyNames`: no property but those whose name is right.
fn property_names(words: &Map<String, Value>) -> Option<Reworded> {
    let only = |properties: Map<String, Value>, patterns: Map<String, Value>| json!({ "properties": properties, "patternProperties": patterns, "additionalProperties": false });
    let of_pattern = |pattern: String| only(Map::new(), Map::from_iter([(pattern, Value::Bool(true))]));
    let of_names = |names: &[Value]| {
        let names = names.iter().filter_map(|name| Some((name.as_str()?.to_owned(), Value::Bool(true))));
        only(names.collect(), Map::new())
    };
    let must_hold = match words.get("propertyNames")? {
        Value::Bool(true) => vec![],
        Value::Bool(false) => vec![json!({ "maxProperties": 0 })],
        Value::Object(rules) => {
            let rule = |(word, value): (&String, &Value)| {
                Some(match word.as_str() {
                    "type" if *value == "string" => Value::Bool(true),
                    "pattern" => of_pattern(value.as_str()?.to_owned()),
                    "minLength" => of_pattern(format!(r"^[\s\S]{{{},}}$", value.as_u64()?)),
                    "maxLength" => of_pattern(format!(r"^[\s\S]{{0,{}}}$", value.as_u64()?)),
                    "const" => of_names(std::slice::from_ref(value)),
                    "enum" => of_names(value.as_array()?),
                    _ => return None,
                })
            };
            rules.iter().map(rule).collect::<Option<_>>()?
        }
        _ => return None,
    };
    Some(Reworded { replaced: &["propertyNames"], must_hold })
}

/// `minProperties` where all names are listed: a choice of so many of them that are required.
fn least_names(words: &Map<String, Value>) -> Option<Reworded> {
    let least = usize::try_from(words.get("minProperties")?.as_u64()?).ok()?;
    let has_others = words.get("additionalProperties") != Some(&Value::Bool(false))
        || words.contains_key("patternProperties")
        || words.contains_key("maxProperties");
    let required = words.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
    let names = words.get("properties")?.as_object()?.iter();
    let names =
        names.filter(|(name, schema)| **schema != Value::Bool(false) && !required.contains(&name[..]));
    let names: Vec<&str> = names.map(|(name, _)| &name[..]).collect();
    let num_missing = least.checked_sub(required.len()).filter(|num| *num > 1 && *num <= names.len())?;
    let choices = subsets(&names, num_missing).filter(|_| !has_others)?;
    let must_hold = any_of(choices.iter().map(|names| json!({ "required": names })).collect());
    Some(Reworded { replaced: &["minProperties"], must_hold: vec![must_hold] })
}

/// All choices of so many of them, in their order, if those are not too many.
fn subsets<'a>(names: &[&'a str], num: usize) -> Option<Vec<Vec<&'a str>>> {
    let mut subsets: Vec<Vec<&str>> = vec![vec![]];
    for (i, name) in names.iter().enumerate() {
        let num_left = names.len() - i - 1;
        let with: Vec<Vec<&str>> = subsets.iter().filter(|subset| subset.len() < num).cloned().collect();
        subsets.retain(|subset| subset.len() + num_left >= num);
        subsets.extend(with.into_iter().map(|subset| [subset, vec![*name]].concat()));
        if subsets.len() > MAX_CHOICES {
            return None;
        }
    }
    Some(subsets)
}

/// `oneOf`: one of them, and none of the others.
fn one_of(words: &Map<String, Value>) -> Option<Reworded> {
    let options = words.get("oneOf")?.as_array().filter(|options| options.len() <= MAX_ONE_OF)?;
    let excluded: Vec<Value> =
        options.iter().map(|option| negate(option).map(any_of)).collect::<Option<_>>()?;
    let alone = |(place, option): (usize, &Value)| {
        let others = excluded.iter().enumerate().filter(|(other, _)| *other != place);
        let all: Vec<Value> =
            [option.clone()].into_iter().chain(others.map(|(_, other)| other.clone())).collect();
        json!({ "allOf": all })
    };
    let choices = options.iter().enumerate().map(alone).collect();
    Some(Reworded { replaced: &["oneOf"], must_hold: vec![any_of(choices)] })
}
