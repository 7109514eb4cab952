//! An asynchronous device made of any backend, for the tests of those who use backends.
//!
//! A CPU backend has done its work when a call returns, and forgives what a GPU would not. [`deferred`] wraps a
//! backend so that nothing is forgiven:
//!
//! - Operations are put in a queue and run later, on another thread, on tensors that the call cloned: when the
//!   host waits, or when the queue is full. Whoever looks too early sees what was there before.
//! - Outputs are filled with poison (NaN; for integers a number far out of any range) right before an operation
//!   runs, and so are the logits after sampling: whoever counts on old contents finds none.
//! - An output that overlaps an input, where the operation does not work in place, panics in the call.
//! - Inside a step allocating, packing, reading back and waiting fail with [`NotInStep`](crate::Error::NotInStep).
//! - Steps can be captured: recorded once, replayed with what the tensors hold then. A value that the host
//!   computed and baked into the step, or wrote to a tensor from inside of it, is replayed as it was.
//! - Blocks are swapped on a thread of their own, which starts when somebody waits for the fence: whoever does not let
//!   it wait for the step in front, or the next step for it, copies or reads what should not be there. What is swapped
//!   in is poisoned first; memory of the host is refused by all kernels.
//! - A panic of an operation ends its queue: the next wait returns [`DeviceLost`](crate::Error::DeviceLost).
//!
//! Laying out activations and planning attention run in the call, as they do everywhere: they only take scratch
//! and write to it, which goes through the queue too.
//!
//! ```
//! use quire_kernels::{DType, Error, reference, testing};
//!
//! let kernels = testing::deferred(&reference::kernels());
//! let mut ctx = kernels.step_ctx(1 << 20)?;
//! let x = kernels.upload(DType::F32, &[1, 4], &[1.0f32, 2.0, 3.0, 4.0])?;
//! let too_early = ctx.step(|ctx| ctx.read(&x)?.wait());
//! assert!(matches!(too_early, Err(Error::NotInStep { .. })));
//! assert_eq!(ctx.read(&x)?.wait_as::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
//! # Ok::<(), Error>(())
//! ```

mod attention;
mod device;
mod elementwise;
mod enqueue;
mod fence;
mod fused;
mod line;
mod linear;
mod moe;
mod on_inner;
mod queue;
mod sampling;
mod transfer;
mod worker;

pub use queue::RECORDING_BYTES;

use std::sync::Arc;

use crate::{Device, DeviceId, Dispatch, KernelParts, Kernels, Limits, Part};

/// Commands that wait in a queue of [`deferred`] before it starts to work by itself.
const MAX_QUEUED: usize = 512;

/// The backend `inner` as an asynchronous device. Its tensors and parts are its own: those of `inner` are refused.
pub fn deferred(inner: &Kernels) -> Kernels {
    deferred_with_depth(inner, MAX_QUEUED)
}

/// As [`deferred`], with queues that start to work when `max_queued` commands wait in them.
pub fn deferred_with_depth(inner: &Kernels, max_queued: usize) -> Kernels {
    let device = Arc::new(device::DeferredDevice::new(inner.device().clone(), max_queued));
    let id = device.id();
    let parts = inner.parts().clone();
    let moe = |part| Arc::new(moe::DeferredMoe { part, device: device.clone() }) as _;
    Kernels::new(KernelParts {
        linear: Arc::new(linear::DeferredLinears { part: parts.linear, device: device.clone() }),
        moe: parts.moe.map(moe),
        norm: Deferred::new(parts.norm, id),
        rope: Deferred::new(parts.rope, id),
        activation: Deferred::new(parts.activation, id),
        attention: Deferred::new(parts.attention, id),
        sampling: Deferred::new(parts.sampling, id),
        fused: parts.fused.map(|part| fused::DeferredFused::new(part, inner.clone(), id) as _),
        comm: parts.comm.map(|part| Deferred::new(part, id) as _),
        device,
    })
    .expect("the parts were made for this device")
}

/// A part whose operations are queued.
struct Deferred<P: ?Sized> {
    part: Arc<P>,
    device: DeviceId,
}

impl<P: ?Sized> Deferred<P> {
    fn new(part: Arc<P>, device: DeviceId) -> Arc<Self> {
        Arc::new(Self { part, device })
    }
}

impl<P: Part + ?Sized> Part for Deferred<P> {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.part.scratch_bytes(limits)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        self.part.dispatch()
    }
}
