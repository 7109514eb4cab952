//! The CPU kernel backend of Quire: SIMD chosen at run time, many threads.
//!
//! The crate provides the parts of `quire-kernels` for processors, and depends on nothing else of ours; only the
//! server, examples and tests name it. It is the default backend, and runs wherever Rust does.
//!
//! # Example
//!
//! ```
//! use quire_kernels::{DType, HostWeight};
//! use quire_kernels_cpu::{CpuConfig, kernels};
//!
//! let kernels = kernels(CpuConfig { threads: Some(2), ..CpuConfig::default() })?;
//! let weight: Vec<u8> = [1.0f32, 0.0, 0.0, 0.0, 2.0, 0.0].iter().flat_map(|w| w.to_le_bytes()).collect();
//! let weight =
//!     HostWeight { name: "w", dtype: DType::F32, rows: 2, columns: 3, data: &weight, scales: None, bias: Some(&[0.5, 0.0]) };
//! let layer = kernels.linear().pack(&[weight])?;
//!
//! let mut ctx = kernels.step_ctx(kernels.linear().activation_bytes(1, 3))?;
//! let x = kernels.upload(DType::F32, &[1, 3], &[3.0f32, 4.0, 5.0])?;
//! let y = kernels.upload(DType::F32, &[1, 2], &[0.0f32; 2])?;
//! let x = kernels.linear().activation(&mut ctx, &x)?;
//! layer.forward(&mut ctx, &x, &y)?;
//! assert_eq!(ctx.read(&y)?.wait_as::<f32>()?, [3.5, 8.0]);
//! # Ok::<(), quire_kernels::Error>(())
//! ```
//!
//! [`host`] lets a part of one's own at the elements of tensors.
//!
//! # Invariants
//!
//! - A result depends on its own row alone, bit for bit: not on the other rows, the threads, or the instruction
//!   set. Every sum has one order, and products are fused everywhere.
//! - An operation has run when its call returns, and one runs at a time on a device: a session holds the
//!   threads and the bytes of all buffers.
//! - No safe caller can make tensors alias: a session checks each operation's tensors before it makes slices of them.
//! - Activations are f32; weights stay at about the size that they have in their file.
//! - A thread that has lost its processor delays only what it has claimed, and a panic in one becomes a panic of
//!   the caller after all have stopped.
#![allow(unsafe_code)]

mod access;
mod activation;
mod attention;
mod buffer;
mod device;
mod fused;
pub mod host;
mod isa;
mod lanes;
mod linear;
mod machine;
mod moe;
mod norm;
mod pool;
mod rope;
mod sampling;
#[cfg(test)]
mod testing;
mod transfer;

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
    let linear = Arc::new(linear::CpuLinear::new(device.clone()));
    let moe = moe::CpuMoe::new(device.clone(), Arc::clone(&linear));
    Kernels::new(KernelParts {
        linear,
        norm: Arc::new(norm::CpuNorm::new(device.clone())),
        rope: Arc::new(rope::CpuRope::new(device.clone())),
        activation: Arc::new(activation::CpuActivation::new(device.clone())),
        attention: Arc::new(attention::CpuAttention::new(device.clone())),
        sampling: Arc::new(sampling::CpuSampling::new(device.clone())),
        fused: Some(Arc::new(fused::CpuFused::new(device.clone()))),
        moe: Some(Arc::new(moe)),
        comm: None,
        device: Arc::new(device),
    })
}
