//! The device: what parts are made from.

use std::fmt;
use std::sync::Arc;

use quire_kernels::{Buffer, DType, Device, DeviceId, DeviceInfo, Queue, Result, Tensor, TransferQueue};

use crate::context::Context;
use crate::copy::CopyKernels;
use crate::host::HostBuffer;
use crate::memory::{DeviceMemory, address};
use crate::module::{Kernel, Modules};
use crate::nvtx::Nvtx;
use crate::pinned::PinnedPool;
use crate::queue::{CudaQueue, QueueParts};
use crate::transfer::CudaTransfers;
use crate::upload::Uploader;
use crate::{CudaConfig, Error};

/// Name of the backend.
pub(crate) const BACKEND: &str = "cuda";

/// One GPU.
pub(crate) struct CudaDevice {
    context: Arc<Context>,
    info: DeviceInfo,
    is_deterministic: bool,
    memory: DeviceMemory,
    parts: Arc<QueueParts>,
}

impl CudaDevice {
    /// Opens the device that `config` names.
    pub(crate) fn open(config: CudaConfig) -> Result<Arc<Self>, Error> {
        if !matches!(config.activation_dtype, DType::BF16 | DType::F16) {
            return Err(Error::ActivationDType(config.activation_dtype));
        }
        let context = Context::open(config.ordinal)?;
        let modules = Arc::new(Modules::new(&context));
        let parts = Arc::new(QueueParts {
            pinned: Arc::new(PinnedPool::new(&context)),
            copies: CopyKernels::load(&modules)?,
            uploader: Uploader::new(&context),
            nvtx: Nvtx::of_process(),
            modules,
            context: context.clone(),
        });
        let memory = DeviceMemory::new(&context)?;
        let info = device_info(&context, config.activation_dtype);
        tracing::debug!(target: "quire::kernels", device = info.name, "device opened");
        Ok(Arc::new(Self { context, info, is_deterministic: config.deterministic, memory, parts }))
    }

    /// A kernel of a family; at construction of a part, since it may load the family.
    pub(crate) fn kernel(&self, family: &'static str, name: &str) -> Result<Kernel, Error> {
        self.parts.modules.kernel(family, name)
    }

    /// Multiprocessors.
    pub(crate) fn num_sms(&self) -> u32 {
        self.context.properties().num_sms
    }

    /// Major and minor version.
    pub(crate) fn compute_capability(&self) -> (u32, u32) {
        self.context.properties().compute_capability
    }

    /// Shared memory that a block may have.
    pub(crate) fn max_shared_bytes(&self) -> u32 {
        self.context.properties().max_shared_bytes
    }

    /// The dtype of activations: BF16 or F16.
    pub(crate) fn activation_dtype(&self) -> DType {
        self.info.activation_dtype
    }

    /// Whether a row's result may not depend on what else is computed, nor on how.
    pub(crate) fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }

    /// The connection with the device.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Makes the device current on this thread.
    pub(crate) fn set_current(&self) -> Result<()> {
        self.context.bind()
    }

    /// Copies bytes to a contiguous tensor that no work under way uses, and waits; for loading.
    pub(crate) fn upload(&self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        assert!(dst.is_contiguous() && dst.span_bytes() == bytes.len(), "bytes for {dst:?}");
        // SAFETY: the tensor lies in its buffer, which is a live one.
        unsafe { self.parts.uploader.upload(address(dst), bytes) }
    }
}

fn device_info(context: &Context, activation_dtype: DType) -> DeviceInfo {
    let properties = context.properties();
    let (major, minor) = properties.compute_capability;
    DeviceInfo {
        backend: BACKEND.to_owned(),
        name: format!("{} (compute capability {major}.{minor})", properties.name),
        total_bytes: properties.total_bytes,
        activation_dtype,
        residual_dtype: DType::F32,
    }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        self.context.id()
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> usize {
        self.memory.free_bytes()
    }

    fn allocate(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(self.memory.allocate(num_bytes)?))
    }

    fn used_bytes(&self) -> Option<usize> {
        let (free, total) = self.context.memory_info().ok()?;
        Some(total - free)
    }

    fn reserve(&self, num_bytes: usize) -> Result<()> {
        self.memory.reserve(num_bytes)
    }

    fn finish_loading(&self) {
        self.parts.uploader.release();
        self.parts.pinned.release();
    }

    fn num_allocations(&self) -> u64 {
        self.memory.num_allocations()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CudaQueue::new(self.parts.clone())?))
    }

    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(HostBuffer::new(&self.context, num_bytes)?))
    }

    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        Ok(Box::new(CudaTransfers::new(self.parts.clone())?))
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.context.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_told_what_was_tried() {
        let error = match CudaDevice::open(CudaConfig::default()) {
            Err(error @ Error::NoLibrary { .. }) => error.to_string(),
            // There is a driver; what it says is the business of the tests on a GPU.
            _ => return,
        };
        for part in ["the NVIDIA driver", "libcuda.so.1", "QUIRE_CUDA_LIBRARIES"] {
            assert!(error.contains(part), "{part} in: {error}");
        }
    }

    #[test]
    fn a_dtype_without_kernels_is_refused_before_anything_is_opened() {
        let error = CudaDevice::open(CudaConfig { activation_dtype: DType::F32, ..CudaConfig::default() });
        assert!(matches!(error, Err(Error::ActivationDType(DType::F32))));
    }
}
