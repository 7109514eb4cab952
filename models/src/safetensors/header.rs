//! The JSON header of one file.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use quire_kernels::DType;

use super::raw::{self, RawEntry};
use crate::json::JsonError;

const LENGTH_BYTES: usize = 8;
/// The format's own limit, so that nobody's header can ask for more.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// How a pointer of Git's large file storage starts.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Why a safetensors file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// Shorter than the length field in front.
    #[error("the file has {file_bytes} bytes, expected at least 8")]
    TooShort {
        /// The file's length.
        file_bytes: u64,
    },
    /// A pointer that stands for a file in Git's large file storage.
    #[error("the file is a pointer of git lfs, not the weights themselves: `git lfs pull` fetches them")]
    LfsPointer,
    /// A header length that cannot be right.
    #[error(
        "header length {given} is out of range, expected at most {max} (the file has {file_bytes} bytes)"
    )]
    HeaderLength {
        /// The length found.
        given: u64,
        /// The most it could be.
        max: u64,
        /// The file's length.
        file_bytes: u64,
    },
    /// The header is no JSON.
    #[error("the header is not valid json")]
    HeaderJson(#[source] JsonError),
    /// The header is JSON of another form.
    #[error("the header is not valid: {field}: expected {expected}, given {given}")]
    HeaderForm {
        /// Where in it.
        field: String,
        /// What belongs there.
        expected: &'static str,
        /// What is there, shortened.
        given: String,
    },
    /// A name or field that is in the header twice.
    #[error("the header is not valid: {field} is given twice")]
    Twice {
        /// The tensor, or its field.
        field: String,
    },
    /// Offsets that end before they start, or beyond what a number holds.
    #[error("tensor {tensor}: data offsets {start}..{end} are not a range")]
    Offsets {
        /// The tensor.
        tensor: String,
        /// The first offset.
        start: u64,
        /// The second offset.
        end: u64,
    },
    /// A tensor whose bytes reach past the end of the file.
    #[error("tensor {tensor}: ends at byte {end}, the file ends at {file_bytes}: {missing} bytes missing")]
    OutOfBounds {
        /// The tensor.
        tensor: String,
        /// Where it would end in the file.
        end: u64,
        /// The file's length.
        file_bytes: u64,
        /// The difference.
        missing: u64,
    },
    /// A size that does not follow from dtype and shape.
    #[error("tensor {tensor}: {dtype} {shape:?} takes {expected} bytes, its offsets give {given}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// What dtype and shape need; the largest number where that overflows.
        expected: u64,
        /// What the offsets give.
        given: u64,
    },
    /// Bytes behind the last tensor.
    #[error("the tensors end at byte {end}, the file at {file_bytes}: {extra} bytes belong to none")]
    ExtraBytes {
        /// Where the last tensor ends.
        end: u64,
        /// The file's length.
        file_bytes: u64,
        /// The difference.
        extra: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts before the first ends.
        second: String,
    },
}

impl SafetensorsError {
    /// The tensor that cannot be read.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::Offsets { tensor, .. } | Self::OutOfBounds { tensor, .. } | Self::Size { tensor, .. } => {
                Some(tensor)
            }
            _ => None,
        }
    }
}

/// A parsed header, by tensor name.
#[derive(Debug)]
pub struct Header {
    entries: BTreeMap<String, Entry>,
    num_bytes: usize,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    dtype: StoredDType,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// The dtype of a stored tensor. One that is not known matters only when the tensor is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredDType {
    /// One that can be computed with.
    Known(DType),
    /// Any other, by the name in the file.
    Foreign(String),
}

impl Entry {
    /// Its dtype.
    pub fn dtype(&self) -> &StoredDType {
        &self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its bytes in the file.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Header {
    /// Parses and checks the header of the whole file `data`.
    ///
    /// # Errors
    /// The first thing that is not as it must be, naming the tensor.
    pub fn parse(data: &[u8]) -> Result<Self, SafetensorsError> {
        let mut errors = Vec::new();
        let header = Self::survey(data, &mut errors);
        errors.into_iter().next().map_or(Ok(header), Err)
    }

    /// The same, with everything that is not as it must be; the tensors are those that are sound.
    pub fn survey(data: &[u8], errors: &mut Vec<SafetensorsError>) -> Self {
        let mut entries = BTreeMap::new();
        let (data_start, raw) = match read_raw(data) {
            Ok(read) => read,
            Err(error) => {
                errors.push(error);
                return Self { entries, num_bytes: 0 };
            }
        };
        for (name, raw) in raw {
            match raw.locate(name.clone(), data_start as u64, data.len() as u64) {
                Ok(entry) => {
                    entries.insert(name, entry);
                }
                Err(error) => errors.push(error),
            }
        }
        find_overlaps(&entries, errors);
        if errors.is_empty() {
            find_extra_bytes(&entries, data_start, data.len(), errors);
        }
        Self { entries, num_bytes: data_start }
    }

    /// How long it is, with its length in front; 0 where it cannot be read.
    pub fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// Every tensor, by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }
}

fn data_start(data: &[u8]) -> Result<usize, SafetensorsError> {
    if data.starts_with(LFS_POINTER) {
        return Err(SafetensorsError::LfsPointer);
    }
    let file_bytes = data.len() as u64;
    let Some(length) = data.first_chunk::<LENGTH_BYTES>() else {
        return Err(SafetensorsError::TooShort { file_bytes });
    };
    let given = u64::from_le_bytes(*length);
    let max = MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES as u64);
    if given > max {
        return Err(SafetensorsError::HeaderLength { given, max, file_bytes });
    }
    Ok(LENGTH_BYTES + given as usize)
}

fn read_raw(data: &[u8]) -> Result<(usize, BTreeMap<String, RawEntry>), SafetensorsError> {
    let data_start = data_start(data)?;
    Ok((data_start, raw::read(&data[LENGTH_BYTES..data_start])?))
}

fn find_overlaps(entries: &BTreeMap<String, Entry>, errors: &mut Vec<SafetensorsError>) {
    // Empty tensors share no byte with anything.
    let mut by_start: Vec<_> = entries.iter().filter(|(_, entry)| !entry.range.is_empty()).collect();
    by_start.sort_by_key(|(_, entry)| entry.range.start);
    for pair in by_start.windows(2).filter(|pair| pair[0].1.range.end > pair[1].1.range.start) {
        errors.push(SafetensorsError::Overlap { first: pair[0].0.clone(), second: pair[1].0.clone() });
    }
}

/// The format has none; they are what is left of another file, or a header that lacks tensors.
fn find_extra_bytes(
    entries: &BTreeMap<String, Entry>,
    data_start: usize,
    file_bytes: usize,
    errors: &mut Vec<SafetensorsError>,
) {
    let end = entries.values().map(|entry| entry.range.end).fold(data_start, usize::max);
    if end < file_bytes {
        let (end, file_bytes) = (end as u64, file_bytes as u64);
        errors.push(SafetensorsError::ExtraBytes { end, file_bytes, extra: file_bytes - end });
    }
}

impl RawEntry {
    fn locate(self, tensor: String, data_start: u64, file_bytes: u64) -> Result<Entry, SafetensorsError> {
        let (start, end) = self.data_offsets;
        let Some(given) = end.checked_sub(start) else {
            return Err(SafetensorsError::Offsets { tensor, start, end });
        };
        let dtype = StoredDType::from_name(self.dtype);
        if let StoredDType::Known(dtype) = dtype {
            let elements = self.shape.iter().try_fold(1_usize, |all, &dim| all.checked_mul(dim));
            let expected =
                elements.and_then(|count| dtype.bytes_for(count)).map_or(u64::MAX, |bytes| bytes as u64);
            if expected != given {
                return Err(SafetensorsError::Size { tensor, dtype, shape: self.shape, expected, given });
            }
        }
        let end = data_start.saturating_add(end);
        if end > file_bytes {
            let missing = end - file_bytes;
            return Err(SafetensorsError::OutOfBounds { tensor, end, file_bytes, missing });
        }
        let range = (end - given) as usize..end as usize;
        Ok(Entry { dtype, shape: self.shape, range })
    }
}

impl StoredDType {
    fn from_name(name: String) -> Self {
        Self::Known(match name.as_str() {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "F8_E4M3" => DType::F8E4M3,
            "F8_E5M2" => DType::F8E5M2,
            "I8" => DType::I8,
            "U8" => DType::U8,
            "I32" => DType::I32,
            "U32" => DType::U32,
            "I64" => DType::I64,
            _ => return Self::Foreign(name),
        })
    }
}

impl fmt::Display for StoredDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(dtype) => dtype.fmt(f),
            Self::Foreign(name) => f.pad(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, num_data_bytes: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + num_data_bytes, 7);
        file
    }

    fn check(header: &str, num_data_bytes: usize, expected: &str) {
        let error = Header::parse(&file(header, num_data_bytes)).expect_err("the file must be refused");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_sound_file_gives_its_tensors() {
        let header =
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
        let parsed = Header::parse(&file(header, 24)).unwrap();
        let entry = &parsed.entries()["a"];
        assert_eq!(entry.dtype(), &StoredDType::Known(DType::F32));
        assert_eq!(entry.shape(), [2, 3]);
        assert_eq!(entry.range(), 8 + header.len()..8 + header.len() + 24);
    }

    #[test]
    fn a_header_length_out_of_range_is_refused() {
        let mut data = (1_u64 << 40).to_le_bytes().to_vec();
        data.extend([0; 92]);
        let error = Header::parse(&data).unwrap_err();
        assert_eq!(
            error.to_string(),
            "header length 1099511627776 is out of range, expected at most 92 (the file has 100 bytes)"
        );
    }

    #[test]
    fn a_size_that_does_not_follow_from_the_shape_is_refused() {
        let header = r#"{"a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,24]}}"#;
        check(header, 24, "tensor a: f16 [2, 3] takes 12 bytes, its offsets give 24");
    }

    #[test]
    fn offsets_past_the_end_name_the_missing_bytes() {
        let header = r#"{"a":{"dtype":"U8","shape":[40],"data_offsets":[0,40]}}"#;
        check(header, 30, "tensor a: ends at byte 103, the file ends at 93: 10 bytes missing");
    }

    #[test]
    fn tensors_that_overlap_or_repeat_are_refused() {
        let overlap = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                          "b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
        check(overlap, 7, "tensors a and b overlap");
        let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                        "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        check(twice, 2, "the header is not valid: tensor a is given twice");
    }
}
