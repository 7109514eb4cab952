//! Parts that are not there yet: every operation answers that there is no kernel for it.

use quire_kernels::{
    Activation, ActivationKernels, AttentionArgs, AttentionKernels, DeviceId, Dispatch, Error, HostWeight,
    KvGroupSpec, KvLayer, KvLayout, Linear, LinearKernels, LogprobsOut, NormKernels, Part, Result,
    RopeKernels, RopeTable, SamplingKernels, SamplingRows, SamplingState, StepCtx, Tensor,
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

impl NormKernels for Missing {
    fn rms_norm(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: f32, _: &Tensor) -> Result<()> {
        self.answer("rms_norm")
    }

    fn add(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor) -> Result<()> {
        self.answer("add")
    }

    fn gather_rows(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<()> {
        self.answer("gather_rows")
    }
}

impl RopeKernels for Missing {
    fn rope(&self, _: &mut StepCtx, _: &Tensor, _: usize, _: &Tensor, _: &RopeTable) -> Result<()> {
        self.answer("rope")
    }
}

impl ActivationKernels for Missing {
    fn silu_mul(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor) -> Result<()> {
        self.answer("silu_mul")
    }
}

impl AttentionKernels for Missing {
    fn kv_layout(&self, _spec: &KvGroupSpec, _block_size: usize) -> Result<KvLayout> {
        self.answer("a cache of keys and values")
    }

    fn write_kv(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: &KvLayer, _: &Tensor) -> Result<()> {
        self.answer("write_kv")
    }

    fn forward(&self, _: &mut StepCtx, _: &AttentionArgs<'_>) -> Result<()> {
        self.answer("attention")
    }
}

impl SamplingKernels for Missing {
    fn add_bias(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<()> {
        self.answer("add_bias")
    }

    fn penalize(&self, _: &mut StepCtx, _: &SamplingState, _: &SamplingRows<'_>) -> Result<()> {
        self.answer("penalize")
    }

    fn sample(&self, _: &mut StepCtx, _: &SamplingState, _: &SamplingRows<'_>, _: &Tensor) -> Result<()> {
        self.answer("sample")
    }

    fn count(&self, _: &mut StepCtx, _: &SamplingState, _: &Tensor, _: &Tensor) -> Result<()> {
        self.answer("count")
    }

    fn logprobs(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: &LogprobsOut<'_>) -> Result<()> {
        self.answer("logprobs")
    }

    fn scatter(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<()> {
        self.answer("scatter")
    }
}
