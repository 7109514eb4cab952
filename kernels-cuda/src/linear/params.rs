//! The parameter structs of the kernels, as `cuda/linear_*.cu` declare them.

/// `linear::Output`: where the sums of a layer go.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) rows: u32,
    pub(super) stride: u32,
    pub(super) num_tokens: u32,
    pub(super) is_f32: u32,
}

/// `LinearFewParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Few {
    pub(super) weight: u64,
    pub(super) x: u64,
    pub(super) out: Output,
    pub(super) columns: u32,
    pub(super) weight_stride: u32,
    pub(super) x_stride: u32,
    pub(super) row_groups: u32,
}

/// `LinearManyParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Many {
    pub(super) weight: u64,
    pub(super) x: u64,
    pub(super) out: Output,
    pub(super) columns: u32,
    pub(super) weight_stride: u32,
    pub(super) x_stride: u32,
    pub(super) num_slices: u32,
}

/// `LinearQuantFewParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QuantFew {
    pub(super) weight: u64,
    pub(super) x: u64,
    pub(super) out: Output,
    pub(super) columns: u32,
    pub(super) x_stride: u32,
    pub(super) row_groups: u32,
    pub(super) pad: u32,
}

/// `LinearRepackParams` and `LinearDequantizeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Recode {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) rows: u32,
    pub(super) columns: u32,
}

/// `LinearConvertParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Convert {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) columns: u32,
    pub(super) in_stride: u32,
    pub(super) out_columns: u32,
    pub(super) pad: u32,
}

/// `LinearEmbedParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Embed {
    pub(super) weight: u64,
    pub(super) ids: u64,
    pub(super) out: u64,
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) weight_stride: u32,
    pub(super) out_stride: u32,
    pub(super) pad: u32,
}

/// `LinearQuantEmbedParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QuantEmbed {
    pub(super) records: u64,
    pub(super) ids: u64,
    pub(super) out: u64,
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) out_stride: u32,
}

/// `LinearBiasParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddBias {
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) rows: u32,
    pub(super) stride: u32,
    pub(super) is_f32: u32,
    pub(super) pad: u32,
}

/// A count as kernels take it.
pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a layer has less than 2^32 rows, columns and tokens")
}
