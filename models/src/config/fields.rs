//! Reading fields of a JSON object, with errors that name them.

use serde_json::{Map, Value};

use super::ConfigError;
use crate::json::shortened;

/// An object and the path to it. A field that is `null` counts as absent, as in the reference.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Self {
        Self { object, prefix: "" }
    }

    /// The names of all fields.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.object.keys()
    }

    pub(super) fn find(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn size(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        self.read(field, "a whole number of at least 0", |value| {
            value.as_u64().and_then(|number| usize::try_from(number).ok())
        })
    }

    pub(super) fn required_size(&self, field: &str) -> Result<usize, ConfigError> {
        self.size(field)?.ok_or_else(|| ConfigError::Missing { field: self.path(field) })
    }

    pub(super) fn number(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.read(field, "a number", Value::as_f64)
    }

    pub(super) fn required_number(&self, field: &str) -> Result<f64, ConfigError> {
        self.number(field)?.ok_or_else(|| ConfigError::Missing { field: self.path(field) })
    }

    pub(super) fn sizes(&self, field: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        self.read(field, "a list of whole numbers of at least 0", |value| {
            let numbers = value.as_array()?.iter().map(Value::as_u64);
            numbers.map(|number| usize::try_from(number?).ok()).collect()
        })
    }

    pub(super) fn required_numbers(&self, field: &str) -> Result<Vec<f64>, ConfigError> {
        let numbers = self.read(field, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()
        })?;
        numbers.ok_or_else(|| ConfigError::Missing { field: self.path(field) })
    }

    pub(super) fn boolean(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.read(field, "true or false", Value::as_bool)
    }

    pub(super) fn string(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        self.read(field, "a string", Value::as_str)
    }

    pub(super) fn strings(&self, field: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        self.read(field, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    pub(super) fn object(&self, field: &'a str) -> Result<Option<Fields<'a>>, ConfigError> {
        self.object_at(field, field)
    }

    /// As [`object`](Self::object), where `path` names it from the top.
    pub(super) fn object_at(&self, field: &str, path: &'a str) -> Result<Option<Fields<'a>>, ConfigError> {
        let object = self.read(field, "an object", Value::as_object)?;
        Ok(object.map(|object| Fields { object, prefix: path }))
    }

    /// One token id, where a list would make no sense. Some files say -1 for "none".
    pub(super) fn token_id(&self, field: &str) -> Result<Option<u32>, ConfigError> {
        Ok(self.token_ids(field)?.first().copied())
    }

    /// A token id or a list of them; negative ones stand for "none".
    pub(super) fn token_ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        let ids = self.read(field, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|id| vec![id]),
        })?;
        let ids = ids.unwrap_or_default().into_iter().filter(|id| *id >= 0);
        ids.map(|id| u32::try_from(id).map_err(|_| ConfigError::number(&self.path(field), "a token id", id)))
            .collect()
    }

    pub(super) fn path(&self, field: &str) -> String {
        if self.prefix.is_empty() { field.to_owned() } else { format!("{}.{field}", self.prefix) }
    }

    fn read<T>(
        &self,
        field: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.find(field) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| ConfigError::Value {
            field: self.path(field),
            expected,
            given: shortened(value),
        })
    }
}
