//! JSON files, with errors that name the file.

mod error;

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::file;
use crate::safetensors::LFS_POINTER;

pub use error::JsonError;

/// Reads the object that `path` is.
pub(crate) fn read(path: &Path) -> Result<Map<String, Value>> {
    let text = file::read(path)?;
    match parse(path, &text)? {
        Value::Object(object) => Ok(object),
        other => {
            let (path, given) = (path.to_owned(), described(&other));
            Err(Error::JsonForm { path, expected: "a JSON object", given })
        }
    }
}

/// Reads `path` if there is such a file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Map<String, Value>>> {
    if file::is_there(path)? { read(path).map(Some) } else { Ok(None) }
}

/// The value that the text of the file `path` is.
pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Value> {
    check_encoding(path, text)?;
    serde_json::from_slice(text)
        .map_err(|error| Error::Json { path: path.to_owned(), source: JsonError::of(&error, text) })
}

/// Editors of some systems write a mark in front that no reader of JSON understands, and git leaves pointers behind.
pub(crate) fn check_encoding(path: &Path, text: &[u8]) -> Result<()> {
    if text.starts_with(LFS_POINTER) {
        return Err(Error::LfsPointer { path: path.to_owned() });
    }
    const MARKS: [(&[u8], &str); 3] =
        [(b"\xef\xbb\xbf", "UTF-8"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];
    match MARKS.iter().find(|(mark, _)| text.starts_with(mark)) {
        Some((_, encoding)) => Err(Error::ByteOrderMark { path: path.to_owned(), encoding }),
        None => Ok(()),
    }
}

/// A word for what a value is.
pub(crate) fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A value as it is written, of a long one the beginning.
pub(crate) fn shortened(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
