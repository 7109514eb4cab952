//! Reading fields of a JSON object, with faults that name them.

use serde_json::{Map, Value};

use super::ConfigError;
use super::faults::Faults;
use crate::json::shortened;

/// An object, the path to it, and where faults go. A field that is `null` counts as absent, as in the reference; one that is
/// at fault is read as if it were absent.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    prefix: &'a str,
    faults: &'a Faults,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>, faults: &'a Faults) -> Self {
        Self { object, prefix: "", faults }
    }

    /// Where faults go.
    pub(super) fn faults(&self) -> &'a Faults {
        self.faults
    }

    /// Says that what a field asks for is not built.
    pub(super) fn refuse(&self, field: &str, given: impl Into<String>, expected: impl Into<String>) {
        let (field, given, expected) = (self.path(field), given.into(), expected.into());
        self.faults.add(ConfigError::Unsupported { field, given, expected });
    }

    /// Whether it has no field.
    pub(super) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// The names of all fields.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.object.keys()
    }

    pub(super) fn find(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn size(&self, field: &str) -> Option<usize> {
        self.read(field, "a whole number of at least 0", |value| {
            value.as_u64().and_then(|number| usize::try_from(number).ok())
        })
    }

    pub(super) fn required_size(&self, field: &str) -> Option<usize> {
        self.required(field, self.size(field))
    }

    pub(super) fn number(&self, field: &str) -> Option<f64> {
        self.read(field, "a number", Value::as_f64)
    }

    pub(super) fn required_number(&self, field: &str) -> Option<f64> {
        self.required(field, self.number(field))
    }

    pub(super) fn sizes(&self, field: &str) -> Option<Vec<usize>> {
        self.read(field, "a list of whole numbers of at least 0", |value| {
            let numbers = value.as_array()?.iter().map(Value::as_u64);
            numbers.map(|number| usize::try_from(number?).ok()).collect()
        })
    }

    pub(super) fn required_numbers(&self, field: &str) -> Option<Vec<f64>> {
        let numbers = self.read(field, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()
        });
        self.required(field, numbers)
    }

    pub(super) fn boolean(&self, field: &str) -> Option<bool> {
        self.read(field, "true or false", Value::as_bool)
    }

    pub(super) fn string(&self, field: &str) -> Option<&'a str> {
        self.read(field, "a string", Value::as_str)
    }

    pub(super) fn strings(&self, field: &str) -> Option<Vec<&'a str>> {
        self.read(field, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    pub(super) fn object(&self, field: &'a str) -> Option<Fields<'a>> {
        self.object_at(field, field)
    }

    /// As [`object`](Self::object), where `path` names it from the top.
    pub(super) fn object_at(&self, field: &str, path: &'a str) -> Option<Fields<'a>> {
        let object = self.read(field, "an object", Value::as_object)?;
        Some(Fields { object, prefix: path, faults: self.faults })
    }

    /// One token id, where a list would make no sense. Some files say -1 for "none".
    pub(super) fn token_id(&self, field: &str) -> Option<u32> {
        self.token_ids(field).first().copied()
    }

    /// A token id or a list of them; negative ones stand for "none".
    pub(super) fn token_ids(&self, field: &str) -> Vec<u32> {
        let ids = self.read(field, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|id| vec![id]),
        });
        let id =
            |id: i64| u32::try_from(id).map_err(|_| ConfigError::number(&self.path(field), "a token id", id));
        let ids = ids.unwrap_or_default().into_iter().filter(|id| *id >= 0);
        ids.filter_map(|given| self.faults.take(id(given))).collect()
    }

    pub(super) fn path(&self, field: &str) -> String {
        if self.prefix.is_empty() { field.to_owned() } else { format!("{}.{field}", self.prefix) }
    }

    fn read<T>(
        &self,
        field: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.find(field)?;
        let read = convert(value);
        if read.is_none() {
            let (field, given) = (self.path(field), shortened(value));
            self.faults.add(ConfigError::Value { field, expected, given });
        }
        read
    }

    fn required<T>(&self, field: &str, read: Option<T>) -> Option<T> {
        if read.is_none() {
            self.faults.add(ConfigError::Missing { field: self.path(field) });
        }
        read
    }
}
