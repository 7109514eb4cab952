//! The kernel contract of Quire: tensors, dtypes, and the traits of the parts that a backend is made of.
//!
//! ```text
//!      models, executor          written over `Kernels`, a value made of parts
//!             |
//!      quire-kernels             the contract; a reference backend; a suite and a wrapper that test others
//!         /        \
//!  kernels-cpu   kernels-cuda    provide the parts
//! ```
//!
//! This crate depends on no other of ours and names no backend. Besides the contract it holds
//!
//! - [`quant`] and [`convert`]: the values of every dtype, equal bit for bit to those of the reference
//!   implementation of the GGUF format;
//! - [`random`]: the noise that sampling draws, the same on every backend;
//! - [`mod@reference`]: the obviously right backend, in f64;
//! - [`conformance`]: one suite that every backend runs;
//! - [`testing`]: an asynchronous device out of any backend, for the tests of those who use backends;
//! - [`trace`]: statistics of every operation's outputs, on any backend.
//!
//! A linear layer, from a weight on the host to its output:
//!
//! ```
//! use quire_kernels::{DType, Error, HostWeight, Tensor, quant, reference};
//!
//! let kernels = reference::kernels();
//! let values: Vec<f32> = (0..64).map(|i| i as f32 / 8.0).collect();
//! let data = quant::encode(DType::Q8_0, &values);
//! let weight = HostWeight { name: "w", dtype: DType::Q8_0, rows: 2, columns: 32, data: &data, scales: None, bias: None };
//! let layer = kernels.linear().pack(&[weight])?;
//!
//! let x = kernels.upload(DType::F32, &[1, 32], &[1.0f32; 32])?;
//! let out = Tensor::new(kernels.device().allocate(8)?, 0, DType::F32, &[1, 2]);
//! let mut ctx = kernels.step_ctx(1 << 16)?;
//! ctx.step(|ctx| {
//!     let x = kernels.linear().activation(ctx, &x)?;
//!     layer.forward(ctx, &x, &out)
//! })?;
//! let sums = ctx.read(&out)?.wait_as::<f32>()?;
//! assert!((sums[0] - 62.0).abs() < 0.5 && (sums[1] - 190.0).abs() < 1.0);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Invariants
//!
//! - A [`Tensor`] never reaches outside of its buffer; it is a handle, and only a [`Queue`] moves its data.
//! - All parts of a [`Kernels`] belong to one device; a part of another is refused when it is put in.
//! - Work of one queue happens in the order in which it was enqueued, at any time until somebody waits.
//! - Queues of one device are ordered among each other by [`Fence`]s alone.
//! - Inside a step nothing is allocated, read back or waited for, and no launch depends on anything but shapes.
//! - A row's result does not depend on the other rows of a call, except in a backend that documents it.
//! - Same seed, sequence, position and logits: same token, on every backend and in every batch.
//! - The traits panic on shapes that break memory safety and return errors for what a caller cannot foresee.

pub mod conformance;
pub mod convert;
mod ctx;
mod device;
mod dtype;
mod error;
mod fence;
mod kernels;
mod math;
pub mod parts;
pub mod quant;
pub mod random;
pub mod reference;
mod step;
mod tensor;
pub mod testing;
pub mod trace;
mod transfer;

pub use ctx::StepCtx;
pub use device::{Device, DeviceId, DeviceInfo, Graph, Mark, PendingRead, Queue, Readback};
pub use dtype::DType;
pub use error::{Error, Result, WeightError};
pub use fence::{Fence, reached};
pub use kernels::{DispatchTable, KernelParts, Kernels};
pub use parts::*;
pub use step::{Limits, ShapeKey, StepBuffers, StepRows, StepView, write_head};
pub use tensor::{Buffer, MAX_DIMS, Tensor};
pub use transfer::{SwapLayer, SwapRows, SwapRun, TransferQueue};
