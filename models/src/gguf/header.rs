//! Everything in front of the tensors' bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use quire_kernels::DType;

use super::cursor::Cursor;
use super::metadata::read_type;
use super::tensor_type::{known, tensor_type};
use super::{GgufError, Metadata, Value, ValueType};
use crate::safetensors::LFS_POINTER;

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;
/// Key length, type and the smallest value; name length, dimension count, type and offset.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// A parsed header. All of its places have been checked against the length of the data it came from.
#[derive(Debug)]
pub struct Header {
    version: u32,
    metadata: BTreeMap<String, (ValueType, Value)>,
    tensors: Vec<TensorEntry>,
    /// Names of tensors that are not sound.
    lost: BTreeSet<String>,
    by_name: BTreeMap<String, usize>,
    num_bytes: usize,
    num_trailing: u64,
}

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl TensorEntry {
    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its shape with the slowest dimension first: a matrix is `[rows, columns]`, columns contiguous
    /// (the file itself lists them the other way round).
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
    /// The first thing that is not as it must be, naming field or tensor.
    pub fn parse(data: &[u8]) -> Result<Self, GgufError> {
        let mut errors = Vec::new();
        let header = Self::survey(data, &mut errors)?;
        errors.into_iter().next().map_or(Ok(header), Err)
    }

    /// The same, with every tensor that is not as it must be in `errors`; the header has the others.
    ///
    /// # Errors
    /// What makes it impossible to go on.
    pub fn survey(data: &[u8], errors: &mut Vec<GgufError>) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(data);
        let version = read_version(&mut cursor, data)?;
        cursor.set_field("tensor count");
        let num_tensors = cursor.count(MIN_TENSOR_BYTES)?;
        cursor.set_field("metadata count");
        let num_entries = cursor.count(MIN_ENTRY_BYTES)?;
        let metadata = read_metadata(&mut cursor, num_entries)?;
        let alignment = alignment(&metadata)?;
        let raw = read_tensors(&mut cursor, num_tensors)?;

        let num_bytes = cursor.at();
        let data_start = (num_bytes as u64).next_multiple_of(alignment);
        let place = Placement { data_start, alignment, file_bytes: data.len() as u64 };
        let (mut tensors, mut lost) = (Vec::new(), BTreeSet::new());
        for tensor in raw {
            let name = tensor.name.clone();
            match place.locate(tensor) {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => {
                    errors.push(error);
                    lost.insert(name);
                }
            }
        }
        find_overlaps(&tensors, errors);
        let by_name = index_by_name(&tensors, errors);
        let end = tensors.iter().map(|tensor| tensor.range.end as u64).max().unwrap_or(data_start);
        let padded = end.next_multiple_of(alignment);
        let num_trailing = if lost.is_empty() { place.file_bytes.saturating_sub(padded) } else { 0 };
        Ok(Self { version, metadata, tensors, lost, by_name, num_bytes, num_trailing })
    }

    /// Bytes behind the last tensor, and what it is padded with, that belong to none; 0 where a tensor is lost.
    pub fn num_trailing(&self) -> u64 {
        self.num_trailing
    }

    /// Whether a tensor is not here because it is not sound.
    pub fn is_lost(&self, name: &str) -> bool {
        self.lost.contains(name)
    }

    /// How long it is.
    pub fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata over `data`, which must be what this header was parsed from.
    ///
    /// # Panics
    /// The readers of the result may panic if `data` is anything else.
    pub fn metadata<'a>(&'a self, data: &'a [u8]) -> Metadata<'a> {
        Metadata { data, values: &self.metadata }
    }

    /// Every tensor, in the order of the file.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }
}

/// A tensor as the file describes it, not yet checked.
struct RawTensor {
    name: String,
    type_id: u32,
    /// The slowest first.
    shape: Vec<u64>,
    offset: u64,
}

fn read_version(cursor: &mut Cursor<'_>, data: &[u8]) -> Result<u32, GgufError> {
    cursor.set_field("magic");
    if data.starts_with(LFS_POINTER) {
        return Err(GgufError::LfsPointer);
    }
    if data.is_empty() || !MAGIC.starts_with(&data[..data.len().min(4)]) {
        return Err(GgufError::Magic { given: data[..data.len().min(4)].to_vec() });
    }
    cursor.skip(4)?;
    cursor.set_field("version");
    match cursor.u32()? {
        version @ (2 | 3) => Ok(version),
        given if matches!(given.swap_bytes(), 2 | 3) => Err(GgufError::BigEndian),
        given => Err(GgufError::Version { given }),
    }
}

fn read_metadata(
    cursor: &mut Cursor<'_>,
    num_entries: u64,
) -> Result<BTreeMap<String, (ValueType, Value)>, GgufError> {
    let mut metadata = BTreeMap::new();
    for entry in 0..num_entries {
        cursor.set_field(&format!("metadata key {entry}"));
        let key = cursor.string()?;
        cursor.set_field(key);
        let kind = read_type(cursor)?;
        let value = Value::read(cursor, kind)?;
        if metadata.insert(key.to_owned(), (kind, value)).is_some() {
            return Err(GgufError::Duplicate { field: key.to_owned() });
        }
    }
    Ok(metadata)
}

fn read_tensors(cursor: &mut Cursor<'_>, num_tensors: u64) -> Result<Vec<RawTensor>, GgufError> {
    let mut tensors = Vec::new();
    for tensor in 0..num_tensors {
        cursor.set_field(&format!("name of tensor {tensor}"));
        let name = cursor.string()?.to_owned();
        cursor.set_field(&format!("tensor {name}"));
        let given = cursor.u32()?;
        if given > MAX_DIMENSIONS {
            return Err(GgufError::Dimensions { tensor: name, given, max: MAX_DIMENSIONS });
        }
        let mut shape = (0..given).map(|_| cursor.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        tensors.push(RawTensor { name, shape, type_id: cursor.u32()?, offset: cursor.u64()? });
    }
    Ok(tensors)
}

fn alignment(metadata: &BTreeMap<String, (ValueType, Value)>) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    // Only numbers are read, so no bytes are needed behind them.
    let given = Metadata { data: &[], values: metadata }.unsigned(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if given.is_power_of_two() && u32::try_from(given).is_ok() {
        Ok(given)
    } else {
        Err(GgufError::Alignment { given })
    }
}

struct Placement {
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
}

impl Placement {
    fn locate(&self, raw: RawTensor) -> Result<TensorEntry, GgufError> {
        let RawTensor { name, type_id, shape, offset } = raw;
        let (type_name, dtype) = match tensor_type(type_id) {
            Ok(found) => found,
            Err(given) => return Err(GgufError::UnsupportedType { tensor: name, given, known: known() }),
        };
        if offset % self.alignment != 0 {
            return Err(GgufError::Misaligned { tensor: name, given: offset, alignment: self.alignment });
        }
        let Some((dims, num_bytes)) = size_in_bytes(&shape, dtype) else {
            return Err(GgufError::Shape { tensor: name, shape, dtype: type_name });
        };
        let start = self.data_start.saturating_add(offset);
        let end = start.saturating_add(num_bytes);
        if end > self.file_bytes {
            let missing = end - self.file_bytes;
            return Err(GgufError::OutOfBounds { tensor: name, end, file_bytes: self.file_bytes, missing });
        }
        // Both lie below the file's length, which is a `usize`.
        Ok(TensorEntry { name, dtype, shape: dims, range: start as usize..end as usize })
    }
}

/// The shape and its bytes; `None` if empty, too large, or if a row is no whole number of blocks.
fn size_in_bytes(shape: &[u64], dtype: DType) -> Option<(Vec<usize>, u64)> {
    let dims = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>()?;
    let columns = dims.last().copied().unwrap_or(1);
    let rows = dims.iter().rev().skip(1).try_fold(1_usize, |all, &dim| all.checked_mul(dim))?;
    let num_bytes = dtype.bytes_for(columns)?.checked_mul(rows)?;
    (num_bytes > 0).then_some((dims, num_bytes as u64))
}

fn find_overlaps(tensors: &[TensorEntry], errors: &mut Vec<GgufError>) {
    let mut by_start: Vec<&TensorEntry> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| tensor.range.start);
    for pair in by_start.windows(2).filter(|pair| pair[0].range.end > pair[1].range.start) {
        errors.push(GgufError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
    }
}

fn index_by_name(tensors: &[TensorEntry], errors: &mut Vec<GgufError>) -> BTreeMap<String, usize> {
    let mut by_name = BTreeMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        if by_name.insert(tensor.name.clone(), at).is_some() {
            errors.push(GgufError::Duplicate { field: format!("tensor {}", tensor.name) });
        }
    }
    by_name
}
