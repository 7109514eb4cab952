//! Forms across parts: one kernel, and one pass over memory, instead of two or three.
//!
//! A fused form gives the same bits as its plain composition: it rounds where that one stores.

use std::sync::Arc;

use quire_kernels::{
    Activation, AddRmsNorm, Device as _, DeviceId, Dispatch, FusedKernels, Part, Result, RopeWriteKv,
    StepCtx, Tensor,
};

use crate::Error;
use crate::activation::SiluMul;
use crate::attention::KvWriter;
use crate::device::CudaDevice;
use crate::norm::{RmsNorm, RmsNormArgs};

/// The fused part.
pub(crate) struct CudaFused {
    device: Arc<CudaDevice>,
    rms_norm: RmsNorm,
    silu_mul: SiluMul,
    writer: KvWriter,
}

impl CudaFused {
    pub(crate) fn new(device: Arc<CudaDevice>) -> std::result::Result<Self, Error> {
        Ok(Self {
            rms_norm: RmsNorm::new(&device)?,
            silu_mul: SiluMul::new(&device)?,
            writer: KvWriter::new(&device)?,
            device,
        })
    }
}

impl Part for CudaFused {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let dtype = self.device.activation_dtype();
        vec![
            Dispatch::new(
                "fused.add_rms_norm",
                format!("rms_norm {dtype}, residual f32"),
                "one pass instead of two",
            ),
            Dispatch::new(
                "fused.silu_mul",
                format!("silu_mul {dtype}"),
                "linear layers read its output as it is",
            ),
        ]
    }
}

/// Linear layers of this backend read activations as they are; one that wants them prepared gets the plain form.
impl FusedKernels for CudaFused {
    fn add_rms_norm(&self, ctx: &mut StepCtx, args: &AddRmsNorm<'_>, out: &Activation) -> Result<bool> {
        if !out.prepared.is_empty() {
            return Ok(false);
        }
        let AddRmsNorm { delta, residual, weight, eps } = *args;
        self.rms_norm.run(ctx, &RmsNormArgs { x: residual, delta, weight, eps, out: &out.x })?;
        Ok(true)
    }

    fn rope_write_kv(&self, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<bool> {
        self.writer.rope_write_kv(ctx, args)?;
        Ok(true)
    }

    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Activation) -> Result<bool> {
        if !out.prepared.is_empty() {
            return Ok(false);
        }
        self.silu_mul.run(ctx, gate_up, &out.x)?;
        Ok(true)
    }
}
