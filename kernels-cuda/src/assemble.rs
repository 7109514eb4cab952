//! The parts, put together.

use std::sync::Arc;

use quire_kernels::{Device as _, KernelParts, Kernels};

use crate::attention::CudaAttention;
use crate::device::CudaDevice;
use crate::missing::Missing;
use crate::{CudaConfig, Error};

/// The backend on the device that `config` names.
pub(crate) fn kernels(config: CudaConfig) -> Result<Kernels, Error> {
    let device = CudaDevice::open(config)?;
    let missing = |part| Arc::new(Missing { device: device.id(), part });
    Ok(Kernels::new(KernelParts {
        linear: missing("linear"),
        norm: missing("norm"),
        rope: missing("rope"),
        activation: missing("activation"),
        attention: Arc::new(CudaAttention::new(device.clone())?),
        sampling: missing("sampling"),
        fused: None,
        moe: None,
        comm: None,
        device,
    })?)
}
