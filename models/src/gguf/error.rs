//! What can be wrong with a GGUF file.

use super::ValueType;

/// Why a GGUF file is refused, with the field or tensor at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error("not a gguf file: it starts with {given:02x?}, expected the bytes of \"GGUF\"")]
    Magic {
        /// Up to four bytes found.
        given: Vec<u8>,
    },
    /// A version this reader does not know.
    #[error("gguf version {given} is not supported, expected 2 or 3")]
    Version {
        /// The version found.
        given: u32,
    },
    /// A file for machines of the other byte order.
    #[error(
        "the file is big-endian: expected a little-endian one, as `gguf_convert_endian.py` of llama.cpp makes it"
    )]
    BigEndian,
    /// The file ends inside the header.
    #[error("{field}: needs {needed} bytes at byte {at}, the file has {left} left")]
    Truncated {
        /// What was being read.
        field: String,
        /// Offset in the file.
        at: u64,
        /// Bytes that should follow.
        needed: u64,
        /// Bytes that do follow.
        left: u64,
    },
    /// A count larger than the rest of the file could hold.
    #[error("{field}: {given} entries cannot fit in the {left} bytes left")]
    Count {
        /// Which count.
        field: String,
        /// The count found.
        given: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("{field}: not valid utf-8")]
    Utf8 {
        /// Which string.
        field: String,
    },
    /// The same key or tensor name twice.
    #[error("{field}: given twice")]
    Duplicate {
        /// The key or tensor.
        field: String,
    },
    /// A metadata type id that the specification does not have.
    #[error("{field}: unknown metadata type {given}, expected 0 to 12")]
    ValueType {
        /// The key.
        field: String,
        /// The id found.
        given: u32,
    },
    /// Arrays in arrays in arrays.
    #[error("{field}: arrays nested more than {max} deep")]
    Nesting {
        /// The key.
        field: String,
        /// The depth allowed.
        max: u32,
    },
    /// A metadata value of another type than its key needs.
    #[error("{field}: expected {expected}, given {given}")]
    WrongType {
        /// The key.
        field: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file holds.
        given: ValueType,
    },
    /// A metadata value that must be there.
    #[error("{field}: missing")]
    MissingKey {
        /// The key.
        field: String,
    },
    /// `general.alignment` that is no power of two.
    #[error("general.alignment: expected a power of two, given {given}")]
    Alignment {
        /// The value found.
        given: u64,
    },
    /// More dimensions than the format allows.
    #[error("tensor {tensor}: {given} dimensions, expected at most {max}")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Dimensions found.
        given: u32,
        /// Dimensions allowed.
        max: u32,
    },
    /// A shape whose size is zero or overflows, or whose rows are no whole blocks.
    #[error("tensor {tensor}: shape {shape:?} is not possible in {dtype}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, the slowest first.
        shape: Vec<u64>,
        /// Its type's name.
        dtype: &'static str,
    },
    /// A tensor type that exists but cannot be computed with here.
    #[error("tensor {tensor}: quantization {given} is not supported; known are {known}")]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The type's name or number.
        given: String,
        /// The names of those supported.
        known: String,
    },
    /// A tensor offset that is no multiple of the alignment.
    #[error("tensor {tensor}: offset {given} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// The offset found.
        given: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor whose bytes reach past the end of the file.
    #[error("tensor {tensor}: ends at byte {end}, the file ends at {file_bytes}: {missing} bytes missing")]
    OutOfBounds {
        /// The tensor.
        tensor: String,
        /// Where it would end.
        end: u64,
        /// The file's length.
        file_bytes: u64,
        /// The difference.
        missing: u64,
    },
    /// Metadata that says something else than the tensors.
    #[error("{field}: {given}, but {tensors} are {counted}")]
    Contradiction {
        /// The key.
        field: String,
        /// What it says.
        given: u64,
        /// What was counted, in words.
        tensors: &'static str,
        /// How many there are.
        counted: u64,
    },
    /// One file of several that is not there.
    #[error("the model is in several files, of which {file} is missing")]
    MissingPart {
        /// The file's name.
        file: String,
    },
    /// One file of several under a name that does not lead to the others.
    #[error(
        "the file is one of {count}, but its name is not one as NAME-00001-of-{count:05}.gguf, by which the others are found"
    )]
    PartName {
        /// How many there are.
        count: u64,
    },
    /// A pointer that stands for a file in Git's large file storage.
    #[error("the file is a pointer of git lfs, not the model itself: `git lfs pull` fetches it")]
    LfsPointer,
    /// Two tensors that share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts before the first ends.
        second: String,
    },
}
