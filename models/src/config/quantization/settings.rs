//! Settings that several methods have.

use serde_json::Value;

use crate::config::ConfigError;
use crate::config::fields::Fields;
use crate::json::shortened;

/// Settings that change what weights mean, and that nothing here heeds: they must be off.
pub(super) fn refuse_set(fields: Fields<'_>, names: &[&str]) {
    let is_off = |value: &Value| match value {
        Value::Bool(given) => !given,
        Value::Object(given) => given.is_empty(),
        Value::Array(given) => given.is_empty(),
        _ => false,
    };
    for name in names {
        if let Some(given) = fields.find(name).filter(|value| !is_off(value)) {
            fields.refuse(name, shortened(given), "none");
        }
    }
}

/// Two sizes of at least one.
pub(super) fn sizes(fields: Fields<'_>, field: &str) -> Option<[usize; 2]> {
    let value = fields.find(field)?;
    let read = |at: usize| usize::try_from(value.as_array()?.get(at)?.as_u64()?).ok().filter(|&n| n > 0);
    match (value.as_array().map(Vec::len), read(0), read(1)) {
        (Some(2), Some(rows), Some(columns)) => Some([rows, columns]),
        _ => {
            let expected = "two numbers of at least 1";
            fields.faults().add(ConfigError::number(&fields.path(field), expected, value));
            None
        }
    }
}

pub(super) fn bits(fields: Fields<'_>, names: &[&str], supported: &[u32], default: u32) -> u32 {
    let Some((name, given)) = names.iter().find_map(|name| Some((name, fields.size(name)?))) else {
        return default;
    };
    let found = supported.iter().find(|&&bits| bits as usize == given);
    if found.is_none() {
        let expected: Vec<_> = supported.iter().map(u32::to_string).collect();
        fields.refuse(name, given.to_string(), expected.join(" or "));
    }
    found.copied().unwrap_or(default)
}

/// -1 stands for one group.
pub(super) fn group_size(fields: Fields<'_>, names: &[&str]) -> Option<usize> {
    const DEFAULT: usize = 128;
    let Some((name, given)) = names.iter().find_map(|name| Some((name, fields.find(name)?))) else {
        return Some(DEFAULT);
    };
    match given.as_i64() {
        Some(-1) => None,
        Some(size) if size > 0 => usize::try_from(size).ok(),
        _ => {
            fields.refuse(name, given.to_string(), "-1 or a number of columns");
            Some(DEFAULT)
        }
    }
}
