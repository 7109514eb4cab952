//! Turning tensors into another dtype, on the host, over all cores.

use quire_kernels::{DType, quant};

use super::{HostScales, HostTensor};
use crate::mmap::TensorBytes;
use crate::parallel;

/// Elements converted at a time: a multiple of every block's length, small enough for the first cache.
const CHUNK: usize = 4096;

/// `tensor` in `dtype`; as it is if that is its dtype. The error is the dtype that cannot be converted.
pub(super) fn convert(tensor: HostTensor, dtype: DType) -> Result<HostTensor, DType> {
    if tensor.dtype == dtype {
        return Ok(tensor);
    }
    if !can_decode(&tensor) || !dtype.is_float() {
        return Err(tensor.dtype);
    }
    if tensor.scales.is_some() {
        return Ok(convert_rows(&tensor, dtype));
    }
    let num_elements: usize = tensor.shape.iter().product();
    let out_bytes = dtype.block_bytes();
    let mut converted = vec![0; num_elements * out_bytes];
    parallel::for_each_chunk(&mut converted, CHUNK * out_bytes, |at, out| {
        let mut values = [0.0; CHUNK];
        let values = &mut values[..out.len() / out_bytes];
        quant::dequantize(tensor.dtype, chunk_of(&tensor, at, values.len()), values);
        out.copy_from_slice(&quant::encode(dtype, values));
    });
    Ok(HostTensor { dtype, shape: tensor.shape, bytes: TensorBytes::Owned(converted), scales: None })
}

/// A matrix with scales, a row at a time.
fn convert_rows(tensor: &HostTensor, dtype: DType) -> HostTensor {
    let weight = tensor.as_host_weight("", None);
    let row_bytes = weight.columns * dtype.block_bytes();
    let mut converted = vec![0; weight.rows * row_bytes];
    parallel::for_each_chunk(&mut converted, row_bytes.max(1), |row, out| {
        let mut values = vec![0.0; weight.columns];
        weight.decode_row(row, &mut values);
        out.copy_from_slice(&quant::encode(dtype, &values));
    });
    HostTensor { dtype, shape: tensor.shape.clone(), bytes: TensorBytes::Owned(converted), scales: None }
}

/// A float matrix in an 8-bit float, with a scale for each row; as it is if it is no float of more bits.
pub(super) fn quantize(tensor: HostTensor, dtype: DType) -> HostTensor {
    let &[rows, columns] = tensor.shape.as_slice() else { return tensor };
    if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) || tensor.bytes.is_empty() {
        return tensor;
    }
    let weight = tensor.as_host_weight("", None);
    let mut out = vec![0; rows * (columns + size_of::<f32>())];
    // A row and its scale at a time, on all cores; then apart.
    parallel::for_each_chunk(&mut out, columns + size_of::<f32>(), |row, out| {
        let mut values = vec![0.0; columns];
        weight.decode_row(row, &mut values);
        let (elements, scales) = quant::quantize_rows(dtype, &values, columns);
        let (bytes, scale) = out.split_at_mut(columns);
        bytes.copy_from_slice(&elements);
        scale.copy_from_slice(&scales[0].to_le_bytes());
    });
    let parts = out.chunks_exact(columns + size_of::<f32>()).map(|row| row.split_at(columns));
    let mut elements = Vec::with_capacity(rows * columns);
    let mut scales = Vec::with_capacity(rows);
    for (bytes, scale) in parts {
        elements.extend_from_slice(bytes);
        scales.extend(quant::decode(DType::F32, scale));
    }
    let scales = HostScales { block: [1, columns], scales, zeros: None, column_groups: None };
    HostTensor { dtype, shape: tensor.shape, bytes: TensorBytes::Owned(elements), scales: Some(scales) }
}

/// The elements of `tensor`; `None` where its dtype is no number to compute with.
pub(super) fn to_f32(tensor: &HostTensor) -> Option<Vec<f32>> {
    if !can_decode(tensor) {
        return None;
    }
    Some(quant::decode(tensor.dtype, &tensor.bytes))
}

/// The bytes of the elements of chunk `at`, the last of which may be shorter than [`CHUNK`].
fn chunk_of(tensor: &HostTensor, at: usize, num_elements: usize) -> &[u8] {
    let dtype = tensor.dtype;
    let start = dtype.bytes_for(at * CHUNK).expect("a chunk is a whole number of blocks");
    let len = dtype.bytes_for(num_elements).expect("a checked shape is a whole number of blocks");
    &tensor.bytes[start..start + len]
}

fn can_decode(tensor: &HostTensor) -> bool {
    tensor.dtype.is_float() || tensor.dtype.is_quantized() || tensor.scales.is_some()
}
