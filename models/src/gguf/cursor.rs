//! A position in bytes that are not trusted.

use std::ops::Range;

use super::GgufError;

/// Reads little-endian numbers and strings one after the other; every read is checked against the end.
pub(super) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    /// What is being read, for errors.
    field: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, field: String::new() }
    }

    /// Names what is read from here on.
    pub(super) fn set_field(&mut self, field: &str) {
        field.clone_into(&mut self.field);
    }

    pub(super) fn field(&self) -> String {
        self.field.clone()
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> u64 {
        (self.data.len() - self.at) as u64
    }

    /// The next `num_bytes`, as a range of the whole.
    pub(super) fn skip(&mut self, num_bytes: u64) -> Result<Range<usize>, GgufError> {
        if num_bytes > self.left() {
            return Err(GgufError::Truncated {
                field: self.field(),
                at: self.at as u64,
                needed: num_bytes,
                left: self.left(),
            });
        }
        let start = self.at;
        self.at += num_bytes as usize;
        Ok(start..self.at)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let range = self.skip(N as u64)?;
        Ok(self.data[range].try_into().expect("the range is N bytes long"))
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of entries of at least `min_bytes` each, refused if they could not all be there. This
    /// is what keeps a lying count from reserving memory.
    pub(super) fn count(&mut self, min_bytes: u64) -> Result<u64, GgufError> {
        let given = self.u64()?;
        match given.checked_mul(min_bytes) {
            Some(needed) if needed <= self.left() => Ok(given),
            _ => Err(GgufError::Count { field: self.field(), given, left: self.left() }),
        }
    }

    /// A string's place: its length in front, its bytes not looked at.
    pub(super) fn string_range(&mut self) -> Result<Range<usize>, GgufError> {
        let num_bytes = self.u64()?;
        self.skip(num_bytes)
    }

    /// A string that must be UTF-8.
    pub(super) fn string(&mut self) -> Result<&'a str, GgufError> {
        let range = self.string_range()?;
        std::str::from_utf8(&self.data[range]).map_err(|_| GgufError::Utf8 { field: self.field() })
    }
}
