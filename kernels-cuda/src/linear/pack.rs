//! From a checkpoint's bytes to device memory.
//!
//! Dense weights that are already in the activation dtype go straight from the mapped file to where they stay. Others
//! pass through a staging buffer on the device, slab by slab, and are converted or repacked by a kernel; the host
//! touches no element. Neighbouring weights of one form become one segment.

use quire_kernels::{DType, Device as _, Error, HostWeight, Result, StepCtx, Tensor, WeightError, quant};

use super::Shared;
use super::format::{Format, TILE_ROWS, num_records};
use super::params::{Convert, Recode, count};
use super::segment::{Bias, COLUMN_ALIGN, Segment, Storage};
use crate::launch::{Grid, launch};
use crate::memory::address;

/// Bytes of a slab, unless a single row tile is larger.
const STAGING_BYTES: usize = 32 << 20;

/// Packs weights that have been checked.
pub(super) fn pack(shared: &Shared, weights: &[HostWeight<'_>]) -> Result<Vec<Segment>> {
    runs(weights)?.into_iter().map(|(storage, run)| pack_run(shared, storage, run)).collect()
}

fn storage_of(weight: &HostWeight<'_>) -> Result<Storage> {
    if let Some(format) = Format::of(weight.dtype).filter(|_| weight.scales.is_none()) {
        return Ok(Storage::Records(format));
    }
    // What has no kernels of its own is dequantized on the host.
    if weight.dtype.is_float() || weight.dtype.is_quantized() || weight.scales.is_some() {
        return Ok(Storage::Dense);
    }
    Err(Error::Weight { name: weight.name.to_owned(), reason: WeightError::DType(weight.dtype) })
}

/// Neighbours that become one segment. Records of the next weight start at a whole tile of rows.
fn runs<'a, 'w>(weights: &'a [HostWeight<'w>]) -> Result<Vec<(Storage, &'a [HostWeight<'w>])>> {
    let storages = weights.iter().map(storage_of).collect::<Result<Vec<_>>>()?;
    let mut runs = Vec::new();
    let mut start = 0;
    for i in 1..=weights.len() {
        let joins = i < weights.len()
            && storages[i] == storages[start]
            && (storages[i] == Storage::Dense || weights[i - 1].rows.is_multiple_of(TILE_ROWS));
        if !joins {
            runs.push((storages[start], &weights[start..i]));
            start = i;
        }
    }
    Ok(runs)
}

fn pack_run(shared: &Shared, storage: Storage, weights: &[HostWeight<'_>]) -> Result<Segment> {
    let rows = weights.iter().map(|weight| weight.rows).sum();
    let columns = weights[0].columns;
    let device = &shared.device;
    let bytes_for = |rows: usize| match storage {
        Storage::Dense => 2 * rows * columns.next_multiple_of(COLUMN_ALIGN),
        Storage::Records(format) => format.bytes_for(rows, columns),
    };
    let num_bytes = bytes_for(rows);
    let memory = Tensor::new(device.allocate(num_bytes)?, 0, DType::U8, &[num_bytes]);
    let mut first_row = 0;
    for weight in weights {
        let (start, end) = (bytes_for(first_row), bytes_for(first_row + weight.rows));
        upload(shared, storage, weight, &memory.rows(start, end))?;
        first_row += weight.rows;
    }
    let bias = pack_bias(shared, weights, rows)?;
    Ok(Segment { storage, memory, rows, columns, bias })
}

fn upload(shared: &Shared, storage: Storage, weight: &HostWeight<'_>, memory: &Tensor) -> Result<()> {
    let is_ready = weight.dtype == shared.device.activation_dtype()
        && weight.scales.is_none()
        && weight.columns.is_multiple_of(COLUMN_ALIGN);
    match storage {
        _ if weight.data.is_empty() => Ok(()),
        Storage::Dense if is_ready => shared.device.upload(memory, weight.data),
        Storage::Dense => Staging::new(shared, weight, 1)?.convert(weight, memory),
        Storage::Records(_) => Staging::new(shared, weight, TILE_ROWS)?.repack(weight, memory),
    }
}

/// A slab of rows on their way. The bytes are as the kernels read them: 8-bit floats were widened on the host.
struct Staging<'a> {
    shared: &'a Shared,
    ctx: StepCtx,
    slab: Tensor,
    rows_per_slab: usize,
}

impl<'a> Staging<'a> {
    /// For slabs of a multiple of `row_align` rows.
    fn new(shared: &'a Shared, weight: &HostWeight<'_>, row_align: usize) -> Result<Self> {
        let dtype = staged_dtype(weight);
        let row_bytes = dtype.bytes_for(weight.columns).expect("the weight was checked").max(1);
        let fitting = STAGING_BYTES / row_bytes / row_align * row_align;
        let rows_per_slab = fitting.clamp(row_align, weight.rows.next_multiple_of(row_align));
        let num_bytes = rows_per_slab * row_bytes;
        let mut ctx = StepCtx::new(shared.device.as_ref(), num_bytes)?;
        let slab = ctx.alloc(DType::U8, &[num_bytes])?;
        Ok(Self { shared, ctx, slab, rows_per_slab })
    }

    /// Calls `f` with each slab's first row and number of rows, when its bytes have arrived.
    fn for_each(
        &mut self,
        weight: &HostWeight<'_>,
        mut f: impl FnMut(&mut StepCtx, &Tensor, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let row_bytes = weight.data.len() / weight.rows;
        for first_row in (0..weight.rows).step_by(self.rows_per_slab) {
            let rows = self.rows_per_slab.min(weight.rows - first_row);
            let bytes = &weight.data[first_row * row_bytes..(first_row + rows) * row_bytes];
            let widened;
            let bytes = if staged_dtype(weight) == weight.dtype {
                bytes
            } else {
                widened = decode_rows(weight, first_row, rows);
                bytemuck::cast_slice(&widened)
            };
            self.shared.device.upload(&self.slab.rows(0, bytes.len()), bytes)?;
            f(&mut self.ctx, &self.slab, first_row, rows)?;
            // The slab is written again by a copy that this queue knows nothing of.
            self.ctx.synchronize()?;
        }
        Ok(())
    }

    fn convert(mut self, weight: &HostWeight<'_>, memory: &Tensor) -> Result<()> {
        let kernel = self.shared.kernels.convert(staged_dtype(weight)).expect("dense weights convert");
        let out_columns = weight.columns.next_multiple_of(COLUMN_ALIGN);
        self.for_each(weight, |ctx, slab, first_row, rows| {
            let params = Convert {
                from: address(slab),
                to: address(memory) + 2 * (first_row * out_columns) as u64,
                columns: count(weight.columns),
                in_stride: count(weight.columns),
                out_columns: count(out_columns),
                pad: 0,
            };
            let grid = Grid { blocks: [count(rows), 1, 1], threads: 256, shared_bytes: 0, overlaps: false };
            // SAFETY: the slab holds `rows` rows of that type, the memory as many of the activation dtype from there on.
            unsafe { launch(ctx, kernel, grid, &params) }
        })
    }

    fn repack(mut self, weight: &HostWeight<'_>, memory: &Tensor) -> Result<()> {
        let kernel = self.shared.kernels.repack(weight.dtype).expect("block types repack");
        let format = Format::of(weight.dtype).expect("the storage is records");
        self.for_each(weight, |ctx, slab, first_row, rows| {
            let params = Recode {
                from: address(slab),
                to: address(memory) + format.bytes_for(first_row, weight.columns) as u64,
                rows: count(rows),
                columns: count(weight.columns),
            };
            let blocks = count(num_records(rows, weight.columns).div_ceil(8));
            let grid = Grid { blocks: [blocks, 1, 1], threads: 256, shared_bytes: 0, overlaps: false };
            // SAFETY: the slab holds `rows` rows of blocks, the memory the records of their tiles from there on.
            unsafe { launch(ctx, kernel, grid, &params) }
        })
    }
}

/// The type that the kernels read: what they have no name for is widened on the host.
fn staged_dtype(weight: &HostWeight<'_>) -> DType {
    match weight.dtype {
        _ if weight.scales.is_some() => DType::F32,
        dtype @ (DType::F32 | DType::F16 | DType::BF16) => dtype,
        dtype if Format::of(dtype).is_some() => dtype,
        _ => DType::F32,
    }
}

fn decode_rows(weight: &HostWeight<'_>, first_row: usize, rows: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows * weight.columns];
    for (row, out) in values.chunks_exact_mut(weight.columns.max(1)).enumerate() {
        weight.decode_row(first_row + row, out);
    }
    values
}

/// The biases of a run, zeros for weights without one.
fn pack_bias(shared: &Shared, weights: &[HostWeight<'_>], rows: usize) -> Result<Option<Bias>> {
    if weights.iter().all(|weight| weight.bias.is_none()) {
        return Ok(None);
    }
    let mut values = Vec::with_capacity(rows);
    for weight in weights {
        match weight.bias {
            Some(bias) => values.extend_from_slice(bias),
            None => values.resize(values.len() + weight.rows, 0.0),
        }
    }
    let dtype = shared.device.activation_dtype();
    let narrow = quant::encode(dtype, &values);
    let is_exact = quant::decode(dtype, &narrow) == values;
    let put = |dtype, bytes: &[u8]| -> Result<Tensor> {
        let tensor = Tensor::new(shared.device.allocate(bytes.len())?, 0, dtype, &[rows]);
        shared.device.upload(&tensor, bytes)?;
        Ok(tensor)
    };
    let exact = put(DType::F32, bytemuck::cast_slice(&values))?;
    let narrow = is_exact.then(|| put(dtype, &narrow)).transpose()?;
    Ok(Some(Bias { exact, narrow }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(dtype: DType, rows: usize) -> HostWeight<'static> {
        HostWeight { name: "w", dtype, rows, columns: 256, data: &[], scales: None, bias: None }
    }

    fn check(weights: &[(DType, usize)], expected: &[usize]) {
        let weights: Vec<_> = weights.iter().map(|&(dtype, rows)| weight(dtype, rows)).collect();
        let lens: Vec<_> = runs(&weights).unwrap().iter().map(|(_, run)| run.len()).collect();
        assert_eq!(lens, expected);
    }

    #[test]
    fn neighbours_of_one_form_become_one_segment() {
        check(&[(DType::BF16, 7), (DType::F32, 3), (DType::F16, 1)], &[3]);
        check(&[(DType::Q4_1, 32), (DType::Q4_1, 5), (DType::Q8_0, 16)], &[2, 1]);
        check(&[(DType::Q4_1, 32), (DType::Q4K, 5)], &[1, 1]);
        check(&[(DType::Q4K, 33), (DType::Q4K, 16), (DType::Q4K, 1)], &[1, 2]);
        check(&[(DType::Q4_0, 16), (DType::BF16, 16), (DType::Q4_0, 16)], &[1, 1, 1]);
    }

    #[test]
    fn a_dtype_without_kernels_is_refused() {
        let error = runs(&[weight(DType::I8, 1)]).unwrap_err();
        assert_eq!(error.to_string(), "weight w: this backend has no linear kernel for i8");
    }
}
