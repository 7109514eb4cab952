//! The formats that block-quantized weights are repacked into: records of 16 rows x 64 columns, see
//! `cuda/linear_quant.cuh`.

use quire_kernels::DType;

/// Rows of a record.
pub(super) const TILE_ROWS: usize = 16;

/// Columns of a record.
const TILE_COLUMNS: usize = 64;

/// A record's format: bits of a quant, and what scales it has: plain, with minimums beside them, or those of a K format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Q4,
    Q4Min,
    Q4K,
    Q5,
    Q5Min,
    Q5K,
    Q6K,
    Q8,
}

impl Format {
    pub(super) const ALL: [Self; 8] =
        [Self::Q4, Self::Q4Min, Self::Q4K, Self::Q5, Self::Q5Min, Self::Q5K, Self::Q6K, Self::Q8];

    /// The format that holds a GGUF type; `None` for another type.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::Q4_0 => Self::Q4,
            DType::Q4_1 => Self::Q4Min,
            DType::Q4K => Self::Q4K,
            DType::Q5_0 => Self::Q5,
            DType::Q5_1 => Self::Q5Min,
            DType::Q5K => Self::Q5K,
            DType::Q6K => Self::Q6K,
            DType::Q8_0 => Self::Q8,
            _ => return None,
        })
    }

    /// Its name in the kernels' names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Q4 => "q4",
            Self::Q4Min => "q4min",
            Self::Q4K => "q4k",
            Self::Q5 => "q5",
            Self::Q5Min => "q5min",
            Self::Q5K => "q5k",
            Self::Q6K => "q6k",
            Self::Q8 => "q8",
        }
    }

    /// Shared memory that a warp of the kernels for few tokens takes: its ring of records.
    pub(super) fn ring_bytes(self) -> usize {
        let stages = match self {
            Self::Q4 | Self::Q4Min | Self::Q4K => 8,
            Self::Q5 | Self::Q5Min | Self::Q5K | Self::Q6K => 6,
            Self::Q8 => 4,
        };
        stages * self.record_bytes()
    }

    /// Bytes of a record: quants, then scales.
    fn record_bytes(self) -> usize {
        match self {
            Self::Q4 => 512 + 64,
            Self::Q4Min | Self::Q4K => 512 + 128,
            Self::Q5 => 640 + 64,
            Self::Q5Min | Self::Q5K => 640 + 128,
            Self::Q6K => 768 + 128,
            Self::Q8 => 1024 + 64,
        }
    }

    /// Bytes that so many rows take; they are filled up to whole tiles.
    pub(super) fn bytes_for(self, rows: usize, columns: usize) -> usize {
        num_records(rows, columns) * self.record_bytes()
    }
}

/// Records of a weight.
pub(super) fn num_records(rows: usize, columns: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * columns.div_ceil(TILE_COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_type_has_a_format_of_about_its_size() {
        for dtype in DType::ALL {
            let Some(format) = Format::of(dtype) else { continue };
            let (ours, theirs) = (format.bytes_for(16, 256), dtype.bytes_for(16 * 256).unwrap());
            let growth = ours as f64 / theirs as f64;
            assert!((1.0..1.12).contains(&growth), "{dtype}: {ours} bytes for {theirs}");
        }
    }

    #[test]
    fn records_cover_odd_shapes() {
        assert_eq!(num_records(1, 32), 1);
        assert_eq!(num_records(17, 96), 4);
        assert_eq!(Format::Q4.bytes_for(17, 96), 4 * 576);
    }
}
