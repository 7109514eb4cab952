//! The kernels for one kind of cache, loaded.

use std::sync::Arc;

use quire_kernels::DType;

use super::shape::HeadShape;
use crate::Error;
use crate::device::CudaDevice;
use crate::launch::Grid;
use crate::module::Kernel;

const DECODE_THREADS: u32 = 128;
const WGMMA_FAMILY: &str = "attention_prefill_wgmma";
const WGMMA_THREADS: u32 = 384;

/// The kernels for one kind of cache.
pub(super) struct Variant {
    pub(super) device: Arc<CudaDevice>,
    shape: HeadShape,
    pub(super) decode: Loaded,
    /// For few tokens, on devices with clusters of blocks.
    pub(super) decode_cluster: Option<Loaded>,
    pub(super) prefill: Prefill,
}

/// The kernel for tiles of queries.
pub(super) enum Prefill {
    /// A block a tile.
    Portable(Loaded),
    /// Blocks that stay, Hopper's matrix instructions and copy engine.
    Wgmma(Loaded),
}

/// A kernel and how it is launched.
pub(super) struct Loaded {
    pub(super) kernel: Kernel,
    threads: u32,
    shared_bytes: u32,
}

impl Loaded {
    fn new(
        device: &CudaDevice,
        family: &'static str,
        name: &str,
        threads: u32,
        shared_bytes: usize,
    ) -> Result<Self, Error> {
        let kernel = device.kernel(family, name)?;
        let shared_bytes = shared_bytes as u32;
        kernel.allow_shared_bytes(shared_bytes)?;
        Ok(Self { kernel, threads, shared_bytes })
    }

    pub(super) fn grid(&self, blocks: [usize; 2]) -> Grid {
        Grid {
            blocks: [blocks[0] as u32, blocks[1] as u32, 1],
            threads: self.threads,
            shared_bytes: self.shared_bytes,
            overlaps: true,
        }
    }
}

/// Whether blocks can read each other's shared memory there.
pub(super) fn has_clusters(device: &CudaDevice) -> bool {
    device.compute_capability() >= (9, 0)
}

/// Whether there are Hopper's matrix instructions.
pub(super) fn has_wgmma(device: &CudaDevice) -> bool {
    device.compute_capability() == (9, 0)
}

impl Variant {
    pub(super) fn load(device: &Arc<CudaDevice>, shape: HeadShape) -> Result<Self, Error> {
        let (activation, max_shared) = (device.activation_dtype(), device.max_shared_bytes() as usize);
        let suffix = format!("{activation}_{}_{}", shape.kv_dtype, shape.head_dim);
        let family = match activation {
            DType::F16 => "attention_decode_f16",
            _ => "attention_decode_bf16",
        };
        let decode = |kind| {
            let name = format!("{kind}_{suffix}");
            Loaded::new(device, family, &name, DECODE_THREADS, shape.decode_shared_bytes(max_shared))
        };
        Ok(Self {
            shape,
            decode: decode("attention_decode")?,
            decode_cluster: has_clusters(device).then(|| decode("attention_decode_cluster")).transpose()?,
            prefill: Prefill::load(device, shape, &suffix)?,
            device: device.clone(),
        })
    }

    pub(super) fn shape(&self) -> HeadShape {
        self.shape
    }
}

impl Prefill {
    fn load(device: &CudaDevice, shape: HeadShape, suffix: &str) -> Result<Self, Error> {
        let activation = device.activation_dtype();
        if let Some(bytes) = has_wgmma(device).then(|| shape.wgmma_shared_bytes(activation)).flatten() {
            let name = format!("{WGMMA_FAMILY}_{suffix}");
            return Ok(Self::Wgmma(Loaded::new(device, WGMMA_FAMILY, &name, WGMMA_THREADS, bytes)?));
        }
        let family = match activation {
            DType::F16 => "attention_prefill_f16",
            _ => "attention_prefill_bf16",
        };
        let name = format!("attention_prefill_{suffix}");
        let bytes = shape.prefill_shared_bytes(device.max_shared_bytes() as usize);
        Ok(Self::Portable(Loaded::new(device, family, &name, shape.prefill_threads(), bytes)?))
    }
}
