//! Parts that are not there yet: every operation answers that there is no kernel for it.

use quire_kernels::{
    Activation, DeviceId, Dispatch, Error, HostWeight, Linear, LinearKernels, Part, Result, StepCtx, Tensor,
};

use crate::device::BACKEND;

/// Stands where a part is missing.
pub(crate) struct Missing {
    pub(crate) device: DeviceId,
    pub(crate) part: &'static str,
}

impl Missing {
    fn answer<T>(&self, operation: &str) -> Result<T> {
        let what = operation.to_owned();
        Err(Error::Unsupported { backend: BACKEND.to_owned(), part: self.part, what })
    }
}

impl Part for Missing {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![Dispatch::new(self.part, "none", "this part of the CUDA backend is not there yet")]
    }
}

impl LinearKernels for Missing {
    fn pack(&self, _weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        self.answer("linear layers")
    }

    fn layout_activation(&self, _ctx: &mut StepCtx, _x: &Tensor) -> Result<Activation> {
        self.answer("inputs of linear layers")
    }
}
