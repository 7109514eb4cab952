//! The obviously right backend: plain host memory, every operation in f64, no speed.
//!
//! It is what other backends are compared with, and what tests of the layers above run on where numbers matter
//! and time does not. Activations are F32; every weight dtype, every plain KV dtype, any shape.

mod attention;
mod device;
mod elementwise;
mod linear;
mod memory;
mod moe;
mod sampling;

use std::sync::Arc;

use crate::{Device, DeviceId, KernelParts, Kernels};

/// Nominal memory of the device of [`kernels`].
const DEFAULT_TOTAL_BYTES: usize = 16 << 30;

/// The reference backend.
pub fn kernels() -> Kernels {
    kernels_with_memory(DEFAULT_TOTAL_BYTES)
}

/// The reference backend on a device that refuses to allocate more than `total_bytes`.
pub fn kernels_with_memory(total_bytes: usize) -> Kernels {
    let device = device::HostDevice::new(total_bytes);
    let id = device.id();
    Kernels::new(KernelParts {
        device: Arc::new(device),
        linear: Arc::new(linear::Linears(id)),
        norm: Arc::new(elementwise::Norm(id)),
        rope: Arc::new(elementwise::Rope(id)),
        activation: Arc::new(elementwise::Activation(id)),
        attention: Arc::new(attention::Attention(id)),
        sampling: Arc::new(sampling::Sampling(id)),
        fused: None,
        moe: Some(Arc::new(moe::Moe(id))),
        comm: None,
    })
    .expect("the parts were made for this device")
}

/// Implements [`Part`](crate::Part) for a part that is its device's id and serves one line of the table.
macro_rules! plain_part {
    ($part:ty, $op:literal) => {
        impl crate::Part for $part {
            fn device(&self) -> crate::DeviceId {
                self.0
            }

            fn dispatch(&self) -> Vec<crate::Dispatch> {
                vec![crate::Dispatch::new($op, "f64", "the reference backend has one kernel an operation")]
            }
        }
    };
}
use plain_part;

const fn backend_name() -> &'static str {
    "reference"
}

fn device_name(id: DeviceId) -> String {
    format!("{}{id}", backend_name())
}
