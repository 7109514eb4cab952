//! JSON as Python writes it.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::python::write_float;

/// The filter `tojson` of `transformers`: `json.dumps(value, ensure_ascii=False, ...)` with the arguments that it takes.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let style = Style {
        indent: indent(&kwargs)?,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: separators
            .map(<[String; 2]>::try_from)
            .transpose()
            .map_err(|_| refuse("separators: expected two"))?,
    };
    kwargs.assert_all_used()?;
    let mut text = String::new();
    style.write(&mut text, value, 0)?;
    Ok(Value::from_safe_string(text))
}

/// A number of spaces, or a text.
fn indent(kwargs: &Kwargs) -> Result<Option<String>, Error> {
    let given: Option<Value> = kwargs.get("indent")?;
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(None) };
    match (given.as_str(), given.as_usize()) {
        (Some(text), _) => Ok(Some(text.to_owned())),
        (None, Some(count)) if count <= 64 => Ok(Some(" ".repeat(count))),
        _ => Err(refuse("indent: expected at most 64 spaces, or a text")),
    }
}

fn refuse(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"))
}

/// How values are written.
struct Style {
    indent: Option<String>,
    ensure_ascii: bool,
    sort_keys: bool,
    separators: Option<[String; 2]>,
}

/// Values within values that are followed.
const MAX_DEPTH: usize = 200;

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse("the value is too deep"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.write_number(out, value),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all(out, ['[', ']'], &items, depth, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_all(out, ['{', '}'], &keys, depth, |out, key| {
                    let Some(name) = key.as_str() else { return Err(refuse("keys must be texts")) };
                    self.write_text(out, name);
                    out.push_str(self.separators.as_ref().map_or(": ", |[_, colon]| colon));
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            ValueKind::Undefined => {
                return Err(Error::new(ErrorKind::UndefinedError, "tojson: the value is undefined"));
            }
            _ => return Err(refuse("the value has no JSON form")),
        }
        Ok(())
    }

    fn write_all(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                let comma = if self.indent.is_some() { "," } else { ", " };
                out.push_str(self.separators.as_ref().map_or(comma, |[comma, _]| comma));
            }
            self.break_line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            self.break_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_number(&self, out: &mut String, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(number) if !value.is_integer() => match number {
                _ if number.is_nan() => out.push_str("NaN"),
                _ if number.is_infinite() => {
                    out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" })
                }
                _ => write_float(out, number).expect("a string takes all that is written"),
            },
            _ => write!(out, "{value}").expect("a string takes all that is written"),
        }
    }

    fn write_text(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}").expect("a string takes all that is written");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
