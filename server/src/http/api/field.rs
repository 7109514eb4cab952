//! A field of a request's body.

use serde_json::{Value, json};

/// A field as the document tells of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(super) kind: Kind,
    /// What it is, in one line.
    pub(super) text: &'static str,
    /// What holds without it; null where that is nothing.
    pub(super) default: Value,
    pub(super) is_required: bool,
}

/// What values a field takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Any,
    /// Nothing but null.
    Nothing,
    /// Null or false: the field is known, and has no code yet.
    Off,
    Bool,
    Text,
    EmptyText,
    /// At least a character.
    SomeText,
    Choice(&'static [&'static str]),
    /// Both ends are allowed; the ends of `i64` are none.
    Integer(i64, i64),
    /// Both ends are allowed; infinite ones are none.
    Number(f64, f64),
    /// The lower end is not allowed.
    NumberAbove(f64, f64),
    List(&'static Kind),
    /// At least one.
    SomeOf(&'static Kind),
    Object,
    /// From token ids to numbers.
    Biases,
    OneOf(&'static [Kind]),
    /// An object with such fields: name, kind, whether it must be there.
    Fields(&'static [(&'static str, Kind, bool)]),
}

impl Field {
    pub(super) fn new(name: &'static str, kind: Kind, text: &'static str) -> Self {
        Self { name, kind, text, default: Value::Null, is_required: false }
    }

    pub(super) fn default(self, default: impl Into<Value>) -> Self {
        Self { default: default.into(), ..self }
    }

    pub(super) fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// The schema, null included where the field may be left out.
    pub(crate) fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        if !self.is_required {
            schema = nullable(schema);
        }
        schema["description"] = self.text.into();
        if !self.default.is_null() {
            schema["default"] = self.default.clone();
        }
        schema
    }
}

impl Kind {
    pub(super) fn schema(self) -> Value {
        match self {
            Self::Any => json!({}),
            Self::Nothing => json!({ "type": "null" }),
            Self::Off => json!({ "enum": [null, false] }),
            Self::Bool => json!({ "type": "boolean" }),
            Self::Text => json!({ "type": "string" }),
            Self::SomeText => json!({ "type": "string", "minLength": 1 }),
            Self::EmptyText => json!({ "type": "string", "maxLength": 0 }),
            Self::Choice(values) => json!({ "type": "string", "enum": values }),
            Self::Integer(min, max) => {
                let bounds = [("minimum", min, i64::MIN), ("maximum", max, i64::MAX)];
                let bounds = bounds.into_iter().filter(|(_, bound, none)| bound != none);
                bounded("integer", bounds.map(|(name, bound, _)| (name, bound.into())))
            }
            Self::Number(min, max) => bounded("number", finite([("minimum", min), ("maximum", max)])),
            Self::NumberAbove(min, max) => {
                bounded("number", finite([("exclusiveMinimum", min), ("maximum", max)]))
            }
            Self::List(of) => json!({ "type": "array", "items": of.schema() }),
            Self::SomeOf(of) => json!({ "type": "array", "items": of.schema(), "minItems": 1 }),
            Self::Object => json!({ "type": "object" }),
            Self::Biases => json!({
                "type": "object",
                "propertyNames": { "pattern": "^[0-9]+$" },
                "additionalProperties": { "type": "number" },
            }),
            Self::OneOf(kinds) => {
                json!({ "anyOf": kinds.iter().map(|kind| kind.schema()).collect::<Vec<_>>() })
            }
            Self::Fields(fields) => object_of(fields),
        }
    }
}

fn object_of(fields: &[(&'static str, Kind, bool)]) -> Value {
    let properties = fields.iter().map(|(name, kind, _)| ((*name).to_owned(), kind.schema()));
    let required: Vec<_> =
        fields.iter().filter(|(.., is_required)| *is_required).map(|field| field.0).collect();
    json!({ "type": "object", "properties": Value::Object(properties.collect()), "required": required })
}

fn bounded(kind: &str, bounds: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut schema = json!({ "type": kind });
    for (name, bound) in bounds {
        schema[name] = bound;
    }
    schema
}

fn finite(bounds: [(&'static str, f64); 2]) -> impl Iterator<Item = (&'static str, Value)> {
    bounds.into_iter().filter(|(_, bound)| bound.is_finite()).map(|(name, bound)| (name, bound.into()))
}

/// The schema with null as one more value.
fn nullable(mut schema: Value) -> Value {
    if let Some(kinds) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        kinds.push(json!({ "type": "null" }));
    } else if let Some(kind) = schema.get("type").filter(|kind| *kind != "null").cloned() {
        schema["type"] = json!([kind, "null"]);
        if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            values.push(Value::Null);
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_become_schemas() {
        let of = |kind| Field::new("x", kind, "t").schema();
        let integer = json!({"type": ["integer", "null"], "minimum": 0, "description": "t"});
        assert_eq!(of(Kind::Integer(0, i64::MAX)), integer);
        let number = json!({"type": ["number", "null"], "exclusiveMinimum": 0.0, "description": "t"});
        assert_eq!(of(Kind::NumberAbove(0.0, f64::INFINITY)), number);
        let either = json!({"anyOf": [{"type": "string"}, {"type": "null"}], "description": "t"});
        assert_eq!(of(Kind::OneOf(&[Kind::Text])), either);
        let needed = Field::new("x", Kind::Bool, "t").required().default(true).schema();
        assert_eq!(needed, json!({"type": "boolean", "description": "t", "default": true}));
    }
}
