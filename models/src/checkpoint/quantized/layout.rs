//! What the headers say of a quantized module.

use quire_kernels::DType;

use super::parts::Parts;
use crate::error::Result;

const WORD_BITS: usize = 32;

/// All that reading a module needs to know; the shapes of its parts agree with it.
pub(super) struct Layout {
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows and columns that share a scale.
    pub(super) block: [usize; 2],
    pub(super) num_scales: usize,
    pub(super) has_zeros: bool,
}

impl Layout {
    pub(super) fn gptq(parts: &Parts<'_>, bits: u32, group_size: Option<usize>) -> Result<Self> {
        let per_word = WORD_BITS / bits as usize;
        let [words, rows] = parts.matrix("qweight", DType::I32)?;
        let columns = words.saturating_mul(per_word);
        let group_size = group_size.unwrap_or(columns).max(1);
        let groups = columns.div_ceil(group_size);
        parts.expect("scales", &[groups, rows])?;
        parts.expect_of("qzeros", &[groups, rows / per_word], DType::I32)?;
        if parts.has("g_idx") {
            parts.expect_of("g_idx", &[columns], DType::I32)?;
        }
        if !rows.is_multiple_of(per_word) {
            return Err(parts.wrong_shape("qweight", &[words, rows.next_multiple_of(per_word)]));
        }
        let dtype = if bits == 4 { DType::U4 } else { DType::U8 };
        let num_scales = groups * rows;
        Ok(Self { dtype, rows, columns, block: [1, group_size], num_scales, has_zeros: true })
    }

    pub(super) fn awq(parts: &Parts<'_>, group_size: Option<usize>) -> Result<Self> {
        const PER_WORD: usize = 8;
        let [columns, words] = parts.matrix("qweight", DType::I32)?;
        let rows = words.saturating_mul(PER_WORD);
        let group_size = group_size.unwrap_or(columns).max(1);
        let groups = columns.div_ceil(group_size);
        parts.expect("scales", &[groups, rows])?;
        parts.expect_of("qzeros", &[groups, words], DType::I32)?;
        if !columns.is_multiple_of(2) {
            return Err(parts.wrong_shape("qweight", &[columns.next_multiple_of(2), words]));
        }
        let num_scales = groups * rows;
        Ok(Self { dtype: DType::U4, rows, columns, block: [1, group_size], num_scales, has_zeros: true })
    }

    /// How many columns fill the words is said by `weight_shape`; where it is not there, by the model's need.
    pub(super) fn packed(parts: &Parts<'_>, wanted: &[usize]) -> Result<Self> {
        let [rows, words] = parts.matrix("weight_packed", DType::I32)?;
        let columns = match parts.has("weight_shape") {
            true => {
                parts.expect_of("weight_shape", &[2], DType::I64)?;
                let shape = parts.bytes("weight_shape")?;
                let last = shape.last_chunk::<8>().expect("two numbers of 8 bytes were checked");
                usize::try_from(i64::from_le_bytes(*last)).unwrap_or(0)
            }
            false => wanted.last().copied().unwrap_or(0),
        };
        let fits = |per_word: usize| columns > 0 && words == columns.div_ceil(per_word);
        let dtype = match (fits(8), fits(4)) {
            (true, _) => DType::U4,
            (_, true) => DType::U8,
            _ => return Err(parts.wrong_shape("weight_packed", &[rows, columns.div_ceil(8)])),
        };
        if dtype == DType::U4 && !columns.is_multiple_of(2) {
            return Err(parts.wrong_shape("weight_packed", &[rows, columns.next_multiple_of(2) / 8]));
        }
        let block = block_of(parts, "weight_scale", rows, columns, None)?;
        let num_scales = rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
        if parts.has("weight_zero_point") {
            let per_word = if dtype == DType::U4 { 8 } else { 4 };
            parts.expect_of(
                "weight_zero_point",
                &[rows.div_ceil(per_word), columns.div_ceil(block[1])],
                DType::I32,
            )?;
        }
        if parts.has("weight_g_idx") {
            parts.expect_of("weight_g_idx", &[columns], DType::I32)?;
        }
        Ok(Self { dtype, rows, columns, block, num_scales, has_zeros: true })
    }

    pub(super) fn bytes(
        parts: &Parts<'_>,
        dtype: DType,
        scale: &str,
        block: Option<[usize; 2]>,
    ) -> Result<Self> {
        let [rows, columns] = parts.matrix("weight", dtype)?;
        let block = block_of(parts, scale, rows, columns, block)?;
        let num_scales = rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
        let has_zeros = dtype == DType::I8 && parts.has("weight_zero_point");
        if has_zeros {
            let shape = parts.shape(scale)?.to_vec();
            parts.expect_of("weight_zero_point", &shape, DType::I8)?;
        }
        if parts.has("weight_g_idx") {
            parts.expect_of("weight_g_idx", &[columns], DType::I32)?;
        }
        let dtype = if has_zeros { DType::U8 } else { dtype };
        Ok(Self { dtype, rows, columns, block, num_scales, has_zeros })
    }

    /// Groups of a row.
    pub(super) fn num_groups(&self) -> usize {
        self.columns.div_ceil(self.block[1])
    }
}

/// What shares a scale, from the shape of the scales: one number, one a row, groups of a row; or from `given`.
fn block_of(
    parts: &Parts<'_>,
    part: &str,
    rows: usize,
    columns: usize,
    given: Option<[usize; 2]>,
) -> Result<[usize; 2]> {
    parts.float_dtype(part)?;
    let shape = parts.shape(part)?;
    if let Some(block) = given {
        parts.expect(part, &[rows.div_ceil(block[0]), columns.div_ceil(block[1])])?;
        return Ok(block);
    }
    match *shape {
        [] | [1] | [1, 1] => Ok([rows.max(1), columns.max(1)]),
        [n] | [n, 1] if n == rows => Ok([1, columns.max(1)]),
        [n, groups] if n == rows && groups > 0 && columns.is_multiple_of(groups) => Ok([1, columns / groups]),
        _ => Err(parts.wrong_shape(part, &[rows, 1])),
    }
}
