//! A backend as a value made of parts.

use std::sync::Arc;

use crate::parts::{
    ActivationKernels, AttentionKernels, CommKernels, Dispatch, FusedKernels, LinearKernels, MoeKernels,
    NormKernels, Part, RopeKernels, SamplingKernels,
};
use crate::{DType, Device, Error, Limits, Result, StepCtx, Tensor};

/// The parts of a backend, for [`Kernels::new`].
#[derive(Clone)]
#[allow(missing_docs)]
pub struct KernelParts {
    pub device: Arc<dyn Device>,
    pub linear: Arc<dyn LinearKernels>,
    pub norm: Arc<dyn NormKernels>,
    pub rope: Arc<dyn RopeKernels>,
    pub activation: Arc<dyn ActivationKernels>,
    pub attention: Arc<dyn AttentionKernels>,
    pub sampling: Arc<dyn SamplingKernels>,
    /// Forms across parts; none where every composition is the plain one.
    pub fused: Option<Arc<dyn FusedKernels>>,
    /// Mixture of experts; none where the backend has none.
    pub moe: Option<Arc<dyn MoeKernels>>,
    /// Collectives; none on a single device.
    pub comm: Option<Arc<dyn CommKernels>>,
}

/// A backend: a device and the kernels that run on it. Cheap to clone.
#[derive(Clone)]
pub struct Kernels {
    parts: KernelParts,
}

impl Kernels {
    /// Assembles a backend.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignPart`] where a part belongs to another device.
    pub fn new(parts: KernelParts) -> Result<Self> {
        let kernels = Self { parts };
        for (name, part) in kernels.named_parts() {
            kernels.check_device(name, part)?;
        }
        Ok(kernels)
    }

    /// Replaces attention. The fused forms, which contain the old one, are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignPart`].
    pub fn with_attention(mut self, attention: Arc<dyn AttentionKernels>) -> Result<Self> {
        self.check_device("attention", attention.as_ref())?;
        self.parts.attention = attention;
        Ok(self.without_fused("attention"))
    }

    /// Replaces the linear layers. The fused forms are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignPart`].
    pub fn with_linear(mut self, linear: Arc<dyn LinearKernels>) -> Result<Self> {
        self.check_device("linear", linear.as_ref())?;
        self.parts.linear = linear;
        Ok(self.without_fused("linear"))
    }

    /// Replaces sampling.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignPart`].
    pub fn with_sampling(mut self, sampling: Arc<dyn SamplingKernels>) -> Result<Self> {
        self.check_device("sampling", sampling.as_ref())?;
        self.parts.sampling = sampling;
        Ok(self)
    }

    /// Sets the collectives of a tensor-parallel rank. The fused forms are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignPart`].
    pub fn with_comm(mut self, comm: Arc<dyn CommKernels>) -> Result<Self> {
        self.check_device("comm", comm.as_ref())?;
        self.parts.comm = Some(comm);
        Ok(self.without_fused("comm"))
    }

    /// All the parts, to build a backend that wraps this one.
    pub fn parts(&self) -> &KernelParts {
        &self.parts
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.parts.device
    }

    /// Linear layers.
    pub fn linear(&self) -> &dyn LinearKernels {
        self.parts.linear.as_ref()
    }

    /// Normalization, addition, gathering of rows.
    pub fn norm(&self) -> &dyn NormKernels {
        self.parts.norm.as_ref()
    }

    /// Rotary position embedding.
    pub fn rope(&self) -> &dyn RopeKernels {
        self.parts.rope.as_ref()
    }

    /// Gated activations.
    pub fn activation(&self) -> &dyn ActivationKernels {
        self.parts.activation.as_ref()
    }

    /// Paged attention.
    pub fn attention(&self) -> &dyn AttentionKernels {
        self.parts.attention.as_ref()
    }

    /// Sampling.
    pub fn sampling(&self) -> &dyn SamplingKernels {
        self.parts.sampling.as_ref()
    }

    /// Forms across parts.
    pub fn fused(&self) -> Option<&dyn FusedKernels> {
        self.parts.fused.as_deref()
    }

    /// Collectives; `None` on a single device.
    pub fn comm(&self) -> Option<&dyn CommKernels> {
        self.parts.comm.as_deref()
    }

    /// Mixture of experts.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the backend has none.
    pub fn moe(&self) -> Result<&dyn MoeKernels> {
        self.parts.moe.as_deref().ok_or_else(|| Error::Unsupported {
            backend: self.device().info().backend.clone(),
            part: "moe",
            what: "mixture-of-experts layers".to_owned(),
        })
    }

    /// Uploads plain values, e.g. a norm's weight; outside a step.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn upload<T: bytemuck::NoUninit>(
        &self,
        dtype: DType,
        dims: &[usize],
        values: &[T],
    ) -> Result<Tensor> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let tensor = Tensor::new(self.device().allocate(bytes.len())?, 0, dtype, dims);
        assert_eq!(tensor.span_bytes(), bytes.len(), "values for {tensor:?}");
        let mut queue = self.device().queue()?;
        queue.write(&tensor, bytes)?;
        queue.synchronize()?;
        Ok(tensor)
    }

    /// A step context with `scratch_bytes` of scratch.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn step_ctx(&self, scratch_bytes: usize) -> Result<StepCtx> {
        StepCtx::new(self.device().as_ref(), scratch_bytes)
    }

    /// Scratch that the parts take in a step within `limits`, beside the model's activations.
    pub fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.named_parts().iter().map(|(_, part)| part.scratch_bytes(limits)).sum()
    }

    /// Which kernel serves which operation.
    pub fn dispatch(&self) -> DispatchTable {
        let mut lines: Vec<_> = self.named_parts().iter().flat_map(|(_, part)| part.dispatch()).collect();
        lines.sort();
        lines.dedup();
        DispatchTable { lines }
    }

    fn named_parts(&self) -> Vec<(&'static str, &dyn Part)> {
        let p = &self.parts;
        let mut parts: Vec<(&'static str, &dyn Part)> = vec![
            ("linear", p.linear.as_ref()),
            ("norm", p.norm.as_ref()),
            ("rope", p.rope.as_ref()),
            ("activation", p.activation.as_ref()),
            ("attention", p.attention.as_ref()),
            ("sampling", p.sampling.as_ref()),
        ];
        parts.extend(p.fused.as_deref().map(|part| ("fused", part as &dyn Part)));
        parts.extend(p.moe.as_deref().map(|part| ("moe", part as &dyn Part)));
        parts.extend(p.comm.as_deref().map(|part| ("comm", part as &dyn Part)));
        parts
    }

    fn check_device(&self, part: &'static str, given: &dyn Part) -> Result<()> {
        let expected = self.device().id();
        let given = given.device();
        if given == expected { Ok(()) } else { Err(Error::ForeignPart { part, expected, given }) }
    }

    fn without_fused(mut self, replaced: &str) -> Self {
        if self.parts.fused.take().is_some() {
            tracing::info!(
                target: "quire::kernels",
                "[dispatch] fused forms dropped because part {replaced} was replaced"
            );
        }
        self
    }
}

/// Which kernel serves which operation, decided once at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchTable {
    /// In order of the operation's name.
    pub lines: Vec<Dispatch>,
}

impl DispatchTable {
    /// FNV-1a of operations and kernels: equal for equal tables, on every machine and at every version of the
    /// compiler. Ranks compare it, and outputs are recorded with it.
    pub fn fingerprint(&self) -> u64 {
        let text = self.lines.iter().map(|line| format!("{}={}\n", line.op, line.kernel));
        text.collect::<String>().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// Logs a line for each operation that `is_used` picks. The fingerprint is that of the whole table.
    pub fn log(&self, is_used: impl Fn(&Dispatch) -> bool) {
        for Dispatch { op, kernel, reason } in self.lines.iter().filter(|line| is_used(line)) {
            tracing::info!(target: "quire::kernels", "[dispatch] {op}={kernel} because {reason}");
        }
        tracing::info!(target: "quire::kernels", "[dispatch] fingerprint={:016x}", self.fingerprint());
    }
}
