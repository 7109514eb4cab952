//! The kernel contract of Quire: tensors, dtypes, and the traits of the parts that a backend is made of.
//!
//! `executor` and `models` are written over [`Kernels`], a value made of parts; `kernels-cpu` and
//! `kernels-cuda` provide parts. This crate depends on no other of ours and names no backend.

pub mod conformance;
pub mod convert;
mod ctx;
mod device;
mod dtype;
mod error;
mod kernels;
mod math;
pub mod parts;
pub mod quant;
pub mod random;
pub mod reference;
mod step;
mod tensor;
pub mod testing;

pub use ctx::StepCtx;
pub use device::{Device, DeviceId, DeviceInfo, Graph, PendingRead, Queue, Readback};
pub use dtype::DType;
pub use error::{Error, Result, WeightError};
pub use kernels::{DispatchTable, KernelParts, Kernels};
pub use parts::*;
pub use step::{Limits, ShapeKey, StepBuffers, StepRows, StepView, write_head};
pub use tensor::{Buffer, MAX_DIMS, Tensor};
