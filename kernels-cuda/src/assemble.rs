//! The parts, put together.

use std::sync::Arc;

use quire_kernels::{KernelParts, Kernels};

use crate::activation::CudaActivation;
use crate::attention::CudaAttention;
use crate::device::CudaDevice;
use crate::fused::CudaFused;
use crate::linear::CudaLinear;
use crate::norm::CudaNorm;
use crate::rope::CudaRope;
use crate::sampling::CudaSampling;
use crate::{CudaConfig, Error, KernelTuning};

/// The backend on the device that `config` names.
pub(crate) fn kernels(config: CudaConfig, tuning: Option<&KernelTuning>) -> Result<Kernels, Error> {
    let device = CudaDevice::open(config)?;
    Ok(Kernels::new(KernelParts {
        linear: Arc::new(CudaLinear::new(device.clone(), tuning)?),
        norm: Arc::new(CudaNorm::new(device.clone())?),
        rope: Arc::new(CudaRope::new(device.clone())?),
        activation: Arc::new(CudaActivation::new(device.clone())?),
        attention: Arc::new(CudaAttention::new(device.clone())?),
        sampling: Arc::new(CudaSampling::new(device.clone())?),
        fused: Some(Arc::new(CudaFused::new(device.clone())?)),
        moe: None,
        comm: None,
        device,
    })?)
}
