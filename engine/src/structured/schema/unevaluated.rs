//! `unevaluatedProperties` and `unevaluatedItems`: what is evaluated beside them, in `allOf` and behind references, is
//! listed, and the rest is additional.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Draft;

/// References that are followed one inside the other.
const MAX_DEPTH: usize = 16;
/// Where one of these evaluates something, it hangs on the value what.
const CHOICES: [&str; 8] =
    ["anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef", "contains"];

/// What is evaluated, whatever the value is.
#[derive(Default)]
struct Evaluated {
    names: BTreeSet<String>,
    patterns: BTreeSet<String>,
    all_properties: bool,
    num_items: usize,
    all_items: bool,
}

/// Puts lists in place of the words, as far as what is evaluated does not hang on the value. `given` is the schema in its
/// own words, `words` the one that is being made of it. Without a `root` no reference is followed.
pub(super) fn list(
    root: Option<&Value>,
    draft: Draft,
    given: &Map<String, Value>,
    words: &mut Map<String, Value>,
) {
    let asks = ["unevaluatedProperties", "unevaluatedItems"].iter().any(|word| given.contains_key(*word));
    let mut evaluated = Evaluated::default();
    if !asks || evaluated.add_words(root, given, 0).is_none() {
        return;
    }
    if let Some(rest) = words.remove("unevaluatedProperties").filter(|_| !evaluated.all_properties) {
        words.insert("additionalProperties".to_owned(), rest);
        add_names(words, "properties", &evaluated.names);
        add_names(words, "patternProperties", &evaluated.patterns);
    }
    if let Some(rest) = words.remove("unevaluatedItems").filter(|_| !evaluated.all_items) {
        let is_list = draft == Draft::Lists;
        let (first, others) = if is_list { ("items", "additionalItems") } else { ("prefixItems", "items") };
        if evaluated.num_items == 0 {
            words.insert("items".to_owned(), rest);
            return;
        }
        if let Value::Array(list) = words.entry(first).or_insert_with(|| json!([])) {
            list.resize(evaluated.num_items.max(list.len()), Value::Bool(true));
        }
        words.insert(others.to_owned(), rest);
    }
}

fn add_names(words: &mut Map<String, Value>, word: &str, names: &BTreeSet<String>) {
    if names.is_empty() {
        return;
    }
    if let Value::Object(table) = words.entry(word).or_insert_with(|| json!({})) {
        for name in names {
            table.entry(name.clone()).or_insert(Value::Bool(true));
        }
    }
}

impl Evaluated {
    /// Adds what a schema evaluates; `None` where that hangs on the value.
    fn add(&mut self, root: Option<&Value>, schema: &Value, depth: usize) -> Option<()> {
        let Some(words) = schema.as_object() else { return schema.is_boolean().then_some(()) };
        self.all_properties |= words.contains_key("unevaluatedProperties");
        self.all_items |= words.contains_key("unevaluatedItems");
        self.add_words(root, words, depth)
    }

    fn add_words(&mut self, root: Option<&Value>, words: &Map<String, Value>, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH || CHOICES.iter().any(|word| words.contains_key(*word)) {
            return None;
        }
        let names =
            |word: &str| words.get(word).and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
        self.names.extend(names("properties"));
        self.patterns.extend(names("patternProperties"));
        self.all_properties |= words.contains_key("additionalProperties");
        self.add_items(words);
        for schema in words.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.add(root, schema, depth + 1)?;
        }
        match words.get("$ref") {
            Some(target) => self.add(root, root?.pointer(target.as_str()?.strip_prefix('#')?)?, depth + 1),
            None => Some(()),
        }
    }

    fn add_items(&mut self, words: &Map<String, Value>) {
        self.all_items |= words.contains_key("additionalItems");
        for word in ["items", "prefixItems"] {
            match words.get(word) {
                Some(Value::Array(list)) => self.num_items = self.num_items.max(list.len()),
                Some(_) => self.all_items = true,
                None => {}
            }
        }
    }
}
