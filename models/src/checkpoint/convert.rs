//! Turning tensors into another dtype, on the host, over all cores.

use quire_kernels::{DType, quant};

use super::HostTensor;
use crate::mmap::TensorBytes;
use crate::parallel;

/// Elements converted at a time: a multiple of every block's length, small enough for the first cache.
const CHUNK: usize = 4096;

/// `tensor` in `dtype`; as it is if that is its dtype. The error is the dtype that cannot be converted.
pub(super) fn convert(tensor: HostTensor, dtype: DType) -> Result<HostTensor, DType> {
    if tensor.dtype == dtype {
        return Ok(tensor);
    }
    if !can_decode(tensor.dtype) || !dtype.is_float() {
        return Err(tensor.dtype);
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
    Ok(HostTensor { dtype, shape: tensor.shape, bytes: TensorBytes::Owned(converted) })
}

/// The elements of `tensor`; `None` where its dtype is no number to compute with.
pub(super) fn to_f32(tensor: &HostTensor) -> Option<Vec<f32>> {
    if !can_decode(tensor.dtype) {
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

fn can_decode(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_quantized()
}
