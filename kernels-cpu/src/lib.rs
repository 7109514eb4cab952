//! The CPU kernel backend of Quire: SIMD chosen at run time, many threads.
#![allow(unsafe_code)]

mod access;
mod activation;
mod attention;
mod buffer;
mod device;
mod fused;
mod isa;
mod lanes;
mod linear;
mod machine;
mod norm;
mod pool;
mod rope;
mod sampling;
#[cfg(test)]
mod testing;

pub use isa::Isa;

use std::sync::Arc;

use quire_kernels::{Device as _, KernelParts, Kernels, Result};

/// How the backend is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads, the caller of an operation included; `None` is what this machine gives the process.
    pub threads: Option<usize>,
    /// Instructions to use; `None` is the best that this machine has.
    pub isa: Option<Isa>,
}

/// The CPU backend.
///
/// # Errors
///
/// [`DeviceLost`](quire_kernels::Error::DeviceLost) where the system refuses the threads,
/// [`Unsupported`](quire_kernels::Error::Unsupported) for instructions that this machine has not.
pub fn kernels(config: CpuConfig) -> Result<Kernels> {
    let isa = config.isa.unwrap_or_else(Isa::best);
    if !isa.is_available() {
        let what = format!("the instruction set {isa}, which this machine has not");
        return Err(quire_kernels::Error::Unsupported {
            backend: device::BACKEND.to_owned(),
            part: "device",
            what,
        });
    }
    let device = device::CpuDevice::new(config.threads.unwrap_or_else(machine::num_threads), isa)?;
    tracing::debug!(target: "quire::kernels", device = device.info().name, "device opened");
    Kernels::new(KernelParts {
        linear: Arc::new(linear::CpuLinear::new(device.clone())),
        norm: Arc::new(norm::CpuNorm::new(device.clone())),
        rope: Arc::new(rope::CpuRope::new(device.clone())),
        activation: Arc::new(activation::CpuActivation::new(device.clone())),
        attention: Arc::new(attention::CpuAttention::new(device.clone())),
        sampling: Arc::new(sampling::CpuSampling::new(device.clone())),
        fused: Some(Arc::new(fused::CpuFused::new(device.clone()))),
        moe: None,
        comm: None,
        device: Arc::new(device),
    })
}
