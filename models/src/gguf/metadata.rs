//! Metadata values, read in place.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::GgufError;
use super::cursor::Cursor;

const MAX_NESTING: u32 = 4;

/// The type of a metadata value, as the specification numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// One metadata value. Numbers are widened; strings and arrays are places in the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Either float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string: where its bytes lie.
    String(Range<usize>),
    /// An array: where it lies.
    Array(Array),
}

/// An array in the metadata: checked to lie inside the file, not yet decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    element: ValueType,
    len: u64,
    bytes: Range<usize>,
}

/// The metadata of a file, over the file's bytes.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    pub(super) data: &'a [u8],
    pub(super) values: &'a BTreeMap<String, (ValueType, Value)>,
}

impl<'a> Metadata<'a> {
    /// Whether there is such a key.
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.values.keys().map(String::as_str)
    }

    /// The string under `key`, if there is one.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else, [`GgufError::Utf8`] if it is no text.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::String(range)) => text(&self.data[range.clone()], key).map(Some),
            _ => wrong_type(key, "a string", given),
        }
    }

    /// The integer under `key`, of whatever width; negative ones are refused.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::Unsigned(number)) => Ok(Some(*number)),
            (_, Value::Signed(number)) if *number >= 0 => Ok(Some(number.unsigned_abs())),
            _ => wrong_type(key, "an integer of at least 0", given),
        }
    }

    /// The number under `key`; integers are taken too.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::Float(number)) => Ok(Some(*number)),
            (_, Value::Unsigned(number)) => Ok(Some(*number as f64)),
            (_, Value::Signed(number)) => Ok(Some(*number as f64)),
            _ => wrong_type(key, "a number", given),
        }
    }

    /// The boolean under `key`.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::Bool(value)) => Ok(Some(*value)),
            _ => wrong_type(key, "a boolean", given),
        }
    }

    /// The strings of the array under `key`, in place. The iterator knows its exact length.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else; an item is an error where it is no text.
    pub fn strings(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = Result<&'a str, GgufError>> + use<'a>>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::Array(array)) if array.element == ValueType::String => {
                let mut rest = &self.data[array.bytes.clone()];
                let key = key.to_owned();
                Ok(Some((0..array.len as usize).map(move |_| {
                    let (head, tail) = rest.split_at(8);
                    let num_bytes = u64::from_le_bytes(head.try_into().expect("eight bytes were split off"));
                    let (bytes, after) = tail.split_at(num_bytes as usize);
                    rest = after;
                    text(bytes, &key)
                })))
            }
            _ => wrong_type(key, "an array of strings", given),
        }
    }

    /// The numbers of the array of 32-bit floats under `key`.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else.
    pub fn floats(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = f32> + use<'a>>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::Array(array)) if array.element == ValueType::F32 => {
                let numbers = self.data[array.bytes.clone()].as_chunks::<4>().0.iter();
                Ok(Some(numbers.map(|raw| f32::from_le_bytes(*raw))))
            }
            _ => wrong_type(key, "an array of 32-bit floats", given),
        }
    }

    /// The integers of the array under `key`, widened.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if it is something else.
    pub fn integers(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = i64> + use<'a>>, GgufError> {
        let Some(given) = self.values.get(key) else { return Ok(None) };
        match given {
            (_, Value::Array(array)) if array.element.is_integer() => {
                let element = array.element;
                let width = element.num_bytes().expect("integers have a width") as usize;
                Ok(Some(
                    self.data[array.bytes.clone()].chunks_exact(width).map(move |raw| widen(element, raw)),
                ))
            }
            _ => wrong_type(key, "an array of integers", given),
        }
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.values).finish()
    }
}

impl Value {
    /// Reads a value of type `kind`; arrays are walked to find their end.
    pub(super) fn read(cursor: &mut Cursor<'_>, kind: ValueType) -> Result<Self, GgufError> {
        Ok(match kind {
            ValueType::U8 => Self::Unsigned(cursor.array::<1>()?[0].into()),
            ValueType::I8 => Self::Signed(i8::from_le_bytes(cursor.array()?).into()),
            ValueType::U16 => Self::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
            ValueType::I16 => Self::Signed(i16::from_le_bytes(cursor.array()?).into()),
            ValueType::U32 => Self::Unsigned(cursor.u32()?.into()),
            ValueType::I32 => Self::Signed(i32::from_le_bytes(cursor.array()?).into()),
            ValueType::U64 => Self::Unsigned(cursor.u64()?),
            ValueType::I64 => Self::Signed(i64::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Self::Float(f32::from_le_bytes(cursor.array()?).into()),
            ValueType::F64 => Self::Float(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => Self::Bool(cursor.array::<1>()?[0] != 0),
            ValueType::String => Self::String(cursor.string_range()?),
            ValueType::Array => Self::Array(read_array(cursor, 1)?),
        })
    }
}

impl ValueType {
    /// The type numbered `id`.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of one value, where that does not depend on the value.
    fn num_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Bool | Self::String | Self::Array)
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_lowercase())
    }
}

/// Reads the type id of a value.
pub(super) fn read_type(cursor: &mut Cursor<'_>) -> Result<ValueType, GgufError> {
    let given = cursor.u32()?;
    ValueType::from_id(given).ok_or_else(|| GgufError::ValueType { field: cursor.field(), given })
}

fn read_array(cursor: &mut Cursor<'_>, depth: u32) -> Result<Array, GgufError> {
    if depth > MAX_NESTING {
        return Err(GgufError::Nesting { field: cursor.field(), max: MAX_NESTING });
    }
    let element = read_type(cursor)?;
    // A string is at least its length, an array at least its type and its length.
    let len = cursor.count(element.num_bytes().unwrap_or(8))?;
    let start = cursor.at();
    match (element, element.num_bytes()) {
        (_, Some(width)) => {
            cursor.skip(len * width)?;
        }
        (ValueType::Array, None) => (0..len).try_for_each(|_| read_array(cursor, depth + 1).map(drop))?,
        (_, None) => (0..len).try_for_each(|_| cursor.string_range().map(drop))?,
    }
    Ok(Array { element, len, bytes: start..cursor.at() })
}

fn widen(element: ValueType, raw: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[..raw.len()].copy_from_slice(raw);
    let unsigned = i64::from_le_bytes(wide);
    match element {
        ValueType::I8 => i64::from(unsigned as i8),
        ValueType::I16 => i64::from(unsigned as i16),
        ValueType::I32 => i64::from(unsigned as i32),
        _ => unsigned,
    }
}

fn text<'a>(bytes: &'a [u8], key: &str) -> Result<&'a str, GgufError> {
    std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { field: key.to_owned() })
}

fn wrong_type<T>(key: &str, expected: &'static str, given: &(ValueType, Value)) -> Result<T, GgufError> {
    Err(GgufError::WrongType { field: key.to_owned(), expected, given: given.0 })
}
