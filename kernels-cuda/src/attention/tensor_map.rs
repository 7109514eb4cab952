//! How Hopper's copy engine sees a layer's cache.

use quire_kernels::{DType, KvLayer, Result};

use crate::device::CudaDevice;
use crate::ffi;
use crate::memory::address;

/// Elements of a row that one copy takes: 128 bytes of 16-bit ones.
const BOX_COLUMNS: u32 = 64;

/// `CUtensorMap`: a matrix of rows of one head, those of a block's keys and then its values, block after block; a copy
/// takes the tokens of one head in one block.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct TensorMap([u64; 16]);

impl TensorMap {
    /// The map of a cache of 16-bit elements.
    pub(super) fn of(device: &CudaDevice, kv: &KvLayer) -> Result<Self> {
        let layout = &kv.layout;
        let dtype = if layout.dtype == DType::F16 { ffi::TENSOR_F16 } else { ffi::TENSOR_BF16 };
        let num_rows = kv.blocks.num_rows() * 2 * layout.num_kv_heads * layout.block_size;
        let dims = [layout.head_dim as u64, num_rows as u64];
        let strides = [(layout.head_dim * layout.dtype.block_bytes()) as u64];
        let boxes = [BOX_COLUMNS, layout.block_size as u32];
        let mut map = Self([0; 16]);
        // SAFETY: the map is as long and as aligned as the driver wants it; two dimensions have two sizes, one
        // stride, two box sizes and two element strides, which the driver reads before it returns.
        let code = unsafe {
            ffi::cuTensorMapEncodeTiled(
                map.0.as_mut_ptr().cast(),
                dtype,
                2,
                address(&kv.blocks),
                dims.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                [1u32; 2].as_ptr(),
                ffi::TENSOR_PLAIN,
                ffi::TENSOR_SWIZZLE_128,
                ffi::TENSOR_PROMOTE_256,
                ffi::TENSOR_FILL_ZEROS,
            )
        };
        device.context().check("cuTensorMapEncodeTiled", code)?;
        Ok(map)
    }
}
