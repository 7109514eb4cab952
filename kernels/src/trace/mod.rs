//! Statistics of every operation's outputs, on any backend, so that two of them can be compared op by op.
//!
//! [`traced`] wraps a backend: each part does what it does, then what it wrote is read back, reduced to a
//! [`TraceRecord`] and handed to a [`TraceSink`]. Two backends that run the same steps give records that match one to
//! one, by step and index; the first pair that differs beyond rounding is where they part.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use quire_kernels::trace::{TraceRecord, traced};
//! use quire_kernels::{DType, Error, reference};
//!
//! let records = Arc::new(Mutex::new(Vec::new()));
//! let sink = {
//!     let records = records.clone();
//!     Arc::new(move |record: &TraceRecord| records.lock().unwrap().push(record.clone()))
//! };
//! let kernels = traced(&reference::kernels(), sink);
//! let x = kernels.upload(DType::F32, &[1, 2], &[3.0f32, 4.0])?;
//! let sum = kernels.upload(DType::F32, &[1, 2], &[0.0f32, 0.0])?;
//! let mut ctx = kernels.step_ctx(0)?;
//! ctx.step(|ctx| kernels.norm().add(ctx, &x, &sum))?;
//!
//! let records = records.lock().unwrap();
//! assert_eq!((records[0].op, records[0].tensor), ("norm.add", "residual"));
//! assert_eq!((records[0].stats.max, records[0].stats.mean), (Some(4.0), Some(3.5)));
//! # Ok::<(), Error>(())
//! ```
//!
//! # What is recorded
//!
//! - One record an output, in the order of the calls. A fused form gives the records of the composition that it stands
//!   for, so a backend that has it and one that has not still match.
//! - What only one backend can read is left out: prepared activations, plans of attention, blocks of the KV cache. For
//!   `attention.write_kv` the keys and values that go to the cache are recorded, for `sampling.count` the tokens that
//!   are counted, for `sampling.scatter` the elements that were written.
//! - A step ends when something is read back, which is what a runner does once a step.
//!
//! # Invariants
//!
//! - The traced backend computes what the inner one does: same device, same tensors, same dispatch table.
//! - Its queue records no graphs, and waits for the device after every operation: it shows what is computed, not how
//!   fast.
//! - A part that is put in afterwards ([`Kernels::with_attention`]) is not traced.

mod fused;
mod linear;
mod moe;
mod parts;
mod queue;
mod record;
mod sampling;

use std::sync::Arc;

pub use record::{TensorStats, TraceRecord};

use crate::{DeviceId, Dispatch, KernelParts, Kernels, Limits, Part};

/// Where records go. It is called on the thread that enqueues, once an output.
pub trait TraceSink: Send + Sync {
    /// Takes a record.
    fn record(&self, record: &TraceRecord);
}

impl<F: Fn(&TraceRecord) + Send + Sync> TraceSink for F {
    fn record(&self, record: &TraceRecord) {
        self(record);
    }
}

/// The backend `inner`, with every operation's outputs told to `sink`.
pub fn traced(inner: &Kernels, sink: Arc<dyn TraceSink>) -> Kernels {
    let parts = inner.parts().clone();
    Kernels::new(KernelParts {
        device: Arc::new(queue::TracedDevice::new(parts.device, sink)),
        linear: Traced::new(parts.linear),
        norm: Traced::new(parts.norm),
        rope: Traced::new(parts.rope),
        activation: Traced::new(parts.activation),
        attention: Traced::new(parts.attention),
        sampling: Traced::new(parts.sampling),
        fused: parts.fused.map(|part| Traced::new(part) as _),
        moe: parts.moe.map(|part| Traced::new(part) as _),
        comm: parts.comm.map(|part| Traced::new(part) as _),
    })
    .expect("the parts belong to one device, as they did before")
}

/// A part whose outputs are recorded.
struct Traced<P: ?Sized>(Arc<P>);

impl<P: ?Sized> Traced<P> {
    fn new(part: Arc<P>) -> Arc<Self> {
        Arc::new(Self(part))
    }
}

impl<P: Part + ?Sized> Part for Traced<P> {
    fn device(&self) -> DeviceId {
        self.0.device()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.0.scratch_bytes(limits)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        self.0.dispatch()
    }
}
