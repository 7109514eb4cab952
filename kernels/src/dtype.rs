//! Element types, plain and block-quantized.

use std::fmt;

/// The type of a tensor's elements.
///
/// The plain types hold one element in a fixed number of bytes. The block types are those of the GGUF file
/// format: a *block* of [`block_len`](Self::block_len) consecutive elements of one row shares its scales and
/// takes [`block_bytes`](Self::block_bytes) bytes. For a plain type the block length is one (two for the integers of
/// half a byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    F32,
    F16,
    BF16,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (the `fn` variant).
    F8E4M3,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2,
    I8,
    U8,
    /// Unsigned integers of 4 bits, two a byte, the first in the low half.
    U4,
    I32,
    U32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    IQ4NL,
    IQ4XS,
}

impl DType {
    /// Every type, in declaration order.
    pub const ALL: [Self; 23] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I8,
        Self::U8,
        Self::U4,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::IQ4NL,
        Self::IQ4XS,
    ];

    /// Elements a block holds; one for the plain types, two for the integers of half a byte.
    pub const fn block_len(self) -> usize {
        match self {
            Self::U4 => 2,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4NL => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::IQ4XS => 256,
            _ => 1,
        }
    }

    /// Bytes a block takes; the size of one element for the plain types.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::U4 => 1,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 4 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 4 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q2K => 16 + 64 + 2 + 2,
            Self::Q3K => 32 + 64 + 12 + 2,
            Self::Q4K => 4 + 12 + 128,
            Self::Q5K => 4 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
            Self::IQ4NL => 2 + 16,
            Self::IQ4XS => 2 + 2 + 4 + 128,
        }
    }

    /// Bytes that `num_elements` consecutive elements take, or `None` where they are no whole number of blocks
    /// or the product overflows.
    pub const fn bytes_for(self, num_elements: usize) -> Option<usize> {
        if !num_elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (num_elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether elements share scales in blocks.
    pub const fn is_quantized(self) -> bool {
        self.block_len() >= 32
    }

    /// Whether this is a plain floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::F8E4M3 | Self::F8E5M2)
    }

    /// The name users write and read: `f32`, `bf16`, `fp8_e4m3`, `q4_k`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8E4M3 => "fp8_e4m3",
            Self::F8E5M2 => "fp8_e5m2",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::U4 => "u4",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::IQ4NL => "iq4_nl",
            Self::IQ4XS => "iq4_xs",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_whole_blocks() {
        assert_eq!(DType::F32.bytes_for(3), Some(12));
        assert_eq!(DType::Q4_1.bytes_for(64), Some(40));
        assert_eq!(DType::Q6K.bytes_for(256), Some(210));
        assert_eq!(DType::Q4_1.bytes_for(33), None, "half a block has no size");
        assert_eq!(DType::F32.bytes_for(usize::MAX), None, "an overflow is not a size");
    }

    #[test]
    fn names_are_distinct() {
        let mut names = DType::ALL.map(DType::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DType::ALL.len());
    }
}
