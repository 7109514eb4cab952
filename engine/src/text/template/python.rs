//! Values as Python writes them.

use std::fmt::{self, Write};

use minijinja::value::{Value, ValueKind};

use super::tuple;

/// `str(value)`.
pub(super) fn to_str(value: &Value) -> String {
    let mut text = String::new();
    write_str(&mut text, value).expect("a string takes all that is written");
    text
}

/// Writes `str(value)`; nothing for what is undefined.
pub(super) fn write_str(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// Writes `repr(value)`.
fn write_repr(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => write_float(out, number),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = tuple::is_tuple(value);
            out.write_char(if is_tuple { '(' } else { '[' })?;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index == 0 { "" } else { ", " })?;
                write_repr(out, &item)?;
            }
            out.write_str(match (is_tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            })
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index == 0 { "" } else { ", " })?;
                write_repr(out, &key)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

/// A text in quotes: single ones, unless it has some and no double ones.
fn write_quoted(out: &mut impl Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if c.is_control() => write!(out, "\\x{:02x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

/// Writes `repr` of a float: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn write_float(out: &mut impl Write, number: f64) -> fmt::Result {
    let is_plain = number == 0.0 || (1e-4..1e16).contains(&number.abs());
    if is_plain || !number.is_finite() {
        return match number {
            _ if number.is_nan() => out.write_str("nan"),
            _ if number.is_infinite() => out.write_str(if number > 0.0 { "inf" } else { "-inf" }),
            _ => write!(out, "{number:?}"),
        };
    }
    let written = format!("{number:e}");
    let (digits, exponent) = written.split_once('e').expect("it is written with an exponent");
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |exponent| ("-", exponent));
    write!(out, "{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        let check = |value: serde_json::Value, expected: &str| {
            assert_eq!(to_str(&Value::from_serialize(&value)), expected);
        };
        check(json!("a'\n"), "a'\n");
        check(json!(["a'\n", "\"'", null, true, 1]), r#"["a'\n", '"\'', None, True, 1]"#);
        check(
            json!({"a": {"b": [1.0, 1e16, 1e-5, 0.0001, -2.5e-7, 123456789012345680.0]}}),
            "{'a': {'b': [1.0, 1e+16, 1e-05, 0.0001, -2.5e-07, 1.2345678901234568e+17]}}",
        );
        let tuple =
            tuple::of([Value::from("a"), Value::from(vec![tuple::of([Value::from(1)]), tuple::of([])])]);
        assert_eq!(to_str(&tuple), "('a', [(1,), ()])");
        assert_eq!(to_str(&Value::UNDEFINED), "");
        assert_eq!(to_str(&Value::from(f64::INFINITY)), "inf");
    }
}
