//! Methods of Python's values: those that the library knows, and those that it does not.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::{made, tuple};

/// Calls a method of a value.
pub(super) fn call_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    made::before_method(state, value, method, args)?;
    let known = match value.as_str() {
        Some(text) => of_text(text, method, args)?,
        None if value.kind() == ValueKind::Map && method == "items" && args.is_empty() => Some(items(value)?),
        None => None,
    };
    match known {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn of_text(this: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let texts = |parts: [&str; 3]| Value::from_iter(parts.map(str::to_owned));
    Ok(Some(match (method, args.first().and_then(Value::as_str)) {
        ("removeprefix", Some(prefix)) => this.strip_prefix(prefix).unwrap_or(this).into(),
        ("removesuffix", Some(suffix)) => this.strip_suffix(suffix).unwrap_or(this).into(),
        ("partition", Some(mark)) => {
            texts(this.split_once(mark).map_or([this, "", ""], |(before, after)| [before, mark, after]))
        }
        ("rpartition", Some(mark)) => {
            texts(this.rsplit_once(mark).map_or(["", "", this], |(before, after)| [before, mark, after]))
        }
        ("rsplit", Some(mark)) if !mark.is_empty() => {
            let count =
                args.get(1).and_then(Value::as_usize).map_or(usize::MAX, |count| count.saturating_add(1));
            let mut parts: Vec<String> = this.rsplitn(count, mark).map(str::to_owned).collect();
            parts.reverse();
            Value::from(parts)
        }
        ("index", Some(part)) => place(this, this.find(part))?,
        ("rindex", Some(part)) => place(this, this.rfind(part))?,
        ("swapcase", None) => this.chars().map(swapped).collect::<String>().into(),
        ("casefold", None) => this.replace('ß', "ss").to_lowercase().into(),
        ("istitle", None) => is_title(this).into(),
        ("isdigit" | "isnumeric" | "isdecimal", None) => {
            (!this.is_empty() && this.chars().all(char::is_numeric)).into()
        }
        ("ljust" | "rjust" | "center" | "zfill", _) => padded(this, method, args)?.into(),
        _ => return Ok(None),
    }))
}

/// `dict.items()`: pairs, which are written as Python's tuples.
fn items(map: &Value) -> Result<Value, Error> {
    let pair = |key: Value| Ok(tuple::of([key.clone(), map.get_item(&key)?]));
    map.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>().map(Value::from)
}

fn place(this: &str, found: Option<usize>) -> Result<Value, Error> {
    let lacking = || Error::new(ErrorKind::InvalidOperation, "index: the text is not in it");
    found.map(|at| this[..at].chars().count().into()).ok_or_else(lacking)
}

fn swapped(c: char) -> String {
    if c.is_lowercase() { c.to_uppercase().to_string() } else { c.to_lowercase().to_string() }
}

/// Whether all words, and there are some, begin with a capital letter and have no other.
fn is_title(text: &str) -> bool {
    let (mut within, mut has_words) = (false, false);
    for c in text.chars() {
        if (c.is_uppercase() && within) || (c.is_lowercase() && !within) {
            return false;
        }
        within = c.is_alphabetic();
        has_words |= within;
    }
    has_words
}

/// The text, filled up to a width in characters.
pub(super) fn padded(this: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let refuse = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("{method}: expected {what}"));
    let width = args.first().and_then(Value::as_i64).ok_or_else(|| refuse("a width"))?;
    let width = usize::try_from(width).unwrap_or(0);
    made::check_width(width)?;
    let fill = match args.get(1).map(|fill| fill.as_str().unwrap_or_default()) {
        _ if method == "zfill" => '0',
        None => ' ',
        Some(fill) => match (fill.chars().next(), fill.chars().count()) {
            (Some(fill), 1) => fill,
            _ => return Err(refuse("one character to fill with")),
        },
    };
    let missing = width.saturating_sub(this.chars().count());
    // Python's own rule for what cannot be halved.
    let before = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let fill = |num: usize| std::iter::repeat_n(fill, num).collect::<String>();
    match this.chars().next() {
        Some(sign @ ('+' | '-')) if method == "zfill" => Ok(format!("{sign}{}{}", fill(before), &this[1..])),
        _ => Ok([&fill(before), this, &fill(missing - before)].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(this: &str, method: &str, args: &[Value], expected: &str) {
        let value = of_text(this, method, args).unwrap().expect("it is known");
        assert_eq!(value.to_string(), expected, "{this:?}.{method}({args:?})");
    }

    #[test]
    fn texts_are_filled_up_as_python_does() {
        check("x", "rjust", &[5.into()], "    x");
        check("x", "ljust", &[5.into(), "-".into()], "x----");
        check("ab", "center", &[5.into(), "*".into()], "**ab*");
        check("abc", "center", &[6.into(), "*".into()], "*abc**");
        check("-5", "zfill", &[4.into()], "-005");
        check("long", "rjust", &[2.into()], "long");
        check("é", "rjust", &[(-3).into()], "é");
        for args in [&[][..], &["a".into()], &[5.into(), "ab".into()], &[1_000_000.into()]] {
            assert!(of_text("x", "rjust", args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn texts_are_looked_at_as_python_does() {
        check("éabab", "rindex", &["ab".into()], "3");
        check("Straße", "casefold", &[], "strasse");
        for (text, expected) in
            [("Two Words", "True"), ("Two words", "False"), ("TWO", "False"), ("1", "False")]
        {
            check(text, "istitle", &[], expected);
        }
        check("12", "isdigit", &[], "True");
        check("", "isdigit", &[], "False");
        assert!(of_text("a", "index", &["b".into()]).is_err());
        assert!(of_text("a", "no_such", &[]).unwrap().is_none());
    }
}
