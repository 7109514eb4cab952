//! JSON schemas in the words that the compiler of grammars knows.
//!
//! ```text
//! walk           which parts of a schema are schemas
//! classes        patterns whose classes of characters the compiler takes more widely than they are
//! counts         what is refused: properties that cannot be counted
//! finite         what is refused: schemas that no value of finite size conforms to
//! formats        patterns in place of formats that the compiler takes less exactly than they are
//! spelling       in how many ways names and texts may be written
//! ```
//!
//! It refuses a schema that uses a word which it does not enforce (`if`, `not`, `dependentRequired`, ...). Many such
//! schemas mean the same as one without the word; what has no other words stays as it is, and is refused. No rule here
//! lets a value through that the schema as given does not, nor keeps one out.
//!
//! ```text
//! mod            words that say nothing; references that only look dynamic
//! conditions     if, not, dependent*, propertyNames, oneOf, minProperties: choices between schemas
//! negation       what a schema does not allow, as a choice
//! unevaluated    what is evaluated elsewhere, listed where it is asked for
//! ```

mod classes;
mod conditions;
mod counts;
mod finite;
mod formats;
mod negation;
mod spelling;
#[cfg(test)]
mod tests;
mod unevaluated;
mod walk;

use serde_json::{Map, Value};

use super::pattern;

pub(super) use spelling::escapes;

/// Words whose value is a whole number, which JSON may write as 2.0.
const WHOLE: [&str; 8] = [
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
];

const UNEVALUATED: [&str; 2] = ["unevaluatedItems", "unevaluatedProperties"];

/// A schema that the compiler holds outputs to exactly, if it takes it.
///
/// # Errors
///
/// Why outputs cannot be held to it.
pub(super) fn exact(mut schema: Value) -> Result<Value, String> {
    check_patterns(&schema)?;
    finite::check(&schema)?;
    counts::check(&schema)?;
    formats::write_out(&mut schema);
    classes::write_out(&mut schema)?;
    Ok(schema)
}

/// Refuses patterns that the compiler would read as others.
fn check_patterns(schema: &Value) -> Result<(), String> {
    let mut found = Ok(());
    walk::each(schema, &mut |words| {
        let names = words.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let patterns =
            words.get("pattern").and_then(Value::as_str).into_iter().chain(names.map(String::as_str));
        for given in patterns {
            if let Some(reason) = pattern::fault(given) {
                found = Err(format!("pattern {given:?}: {reason}"));
            }
        }
    });
    found
}

/// What a schema may be in other words, the plainest first; none where there are no others.
pub(super) fn rewordings(schema: &Value) -> Vec<Value> {
    let plain = Reworder::new(schema, false).reword(schema);
    let split = Reworder::new(schema, true).reword(schema);
    let mut rewordings = vec![plain, split];
    rewordings.dedup();
    // What a condition evaluates is lost with it; where somebody asks, the schema is refused anyway.
    let asks = |other: &Value| UNEVALUATED.iter().any(|word| mentions(other, word));
    rewordings.retain(|other| other != schema && !asks(other));
    rewordings
}

/// The versions of JSON Schema, as far as words differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draft {
    /// Draft 7 and before: some words of today's are none.
    Old,
    /// 2019-09: `items` may be a list.
    Lists,
    /// 2020-12, and what does not say.
    Newest,
}

impl Draft {
    fn of(root: &Value) -> Self {
        match root["$schema"].as_str() {
            Some(draft) if draft.contains("draft-0") => Self::Old,
            Some(draft) if draft.contains("2019-09") => Self::Lists,
            _ => Self::Newest,
        }
    }
}

/// Rewords the parts of one schema.
struct Reworder<'a> {
    root: &'a Value,
    /// Whether `oneOf` is written as a choice of which each excludes the others.
    splits_one_of: bool,
    /// Whether the schema is one resource: then a dynamic reference has one target, and a path begins at the root.
    is_one_resource: bool,
    draft: Draft,
}

impl<'a> Reworder<'a> {
    fn new(root: &'a Value, splits_one_of: bool) -> Self {
        let below_root = root.as_object().into_iter().flat_map(Map::values);
        let is_one_resource = !below_root.into_iter().any(|part| mentions(part, "$id"));
        Self { root, splits_one_of, is_one_resource, draft: Draft::of(root) }
    }

    fn reword(&self, schema: &Value) -> Value {
        let Some(given) = schema.as_object() else { return schema.clone() };
        let mut words: Map<String, Value> = given.clone();
        for (word, value) in &mut words {
            walk::held_mut(word, value).into_iter().for_each(|part| *part = self.reword(part));
        }
        for word in WHOLE {
            words.get_mut(word).map(make_whole);
        }
        if self.draft != Draft::Old {
            let root = self.root.as_object().filter(|_| self.is_one_resource).map(|_| self.root);
            unevaluated::list(root, self.draft, given, &mut words);
            if self.is_one_resource {
                make_static(&mut words);
            }
        }
        drop_idle(self.draft, &mut words);
        conditions::reword(&mut words, self.splits_one_of);
        Value::Object(words)
    }
}

/// Whether a word stands anywhere in it.
fn mentions(value: &Value, word: &str) -> bool {
    match value {
        Value::Object(table) => table.contains_key(word) || table.values().any(|value| mentions(value, word)),
        Value::Array(list) => list.iter().any(|value| mentions(value, word)),
        _ => false,
    }
}

fn make_whole(value: &mut Value) {
    if let Some(number) =
        value.as_f64().filter(|number| value.is_f64() && number.fract() == 0.0 && *number >= 0.0)
    {
        *value = (number as u64).into();
    }
}

/// A dynamic reference within one resource is a plain one.
fn make_static(words: &mut Map<String, Value>) {
    for (dynamic, plain) in
        [("$dynamicRef", "$ref"), ("$recursiveRef", "$ref"), ("$dynamicAnchor", "$anchor")]
    {
        if !words.contains_key(plain)
            && let Some(value) = words.remove(dynamic)
        {
            words.insert(plain.to_owned(), value);
        }
    }
    words.remove("$recursiveAnchor");
}

/// Takes out words that say nothing.
fn drop_idle(draft: Draft, words: &mut Map<String, Value>) {
    let is = |words: &Map<String, Value>, word: &str, value: &[Value]| {
        words.get(word).is_some_and(|given| value.contains(given))
    };
    let anything = [Value::Bool(true), Value::Object(Map::new())];
    let has_bounds = draft != Draft::Old && !words.contains_key("maxContains");
    let needs_none = has_bounds && is(words, "minContains", &[0.into()]);
    if !words.contains_key("contains") || needs_none {
        for word in ["contains", "minContains", "maxContains"] {
            words.remove(word);
        }
    }
    let holds_one = words.get("maxItems").and_then(Value::as_u64).is_some_and(|max| max <= 1);
    if holds_one || is(words, "uniqueItems", &[false.into()]) {
        words.remove("uniqueItems");
    }
    if is(words, "not", &[false.into()]) {
        words.remove("not");
    }
    for word in ["propertyNames", "unevaluatedItems", "unevaluatedProperties"] {
        if is(words, word, &anything) {
            words.remove(word);
        }
    }
}
