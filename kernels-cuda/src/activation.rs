//! Gated activations.

use std::sync::Arc;

use quire_kernels::{ActivationKernels, Device as _, DeviceId, Dispatch, Part, Result, StepCtx, Tensor};

use crate::Error;
use crate::device::CudaDevice;
use crate::elementwise::{VECTOR, are_vectors, count, one_thread_each, stride, suffix};
use crate::launch::launch;
use crate::memory::address;
use crate::module::Kernel;

/// The activation part.
pub(crate) struct CudaActivation {
    device: Arc<CudaDevice>,
    silu_mul: SiluMul,
}

impl CudaActivation {
    pub(crate) fn new(device: Arc<CudaDevice>) -> std::result::Result<Self, Error> {
        Ok(Self { silu_mul: SiluMul::new(&device)?, device })
    }
}

impl Part for CudaActivation {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let kernel = format!("silu_mul {}", self.device.activation_dtype());
        vec![Dispatch::new("activation", kernel, "eight elements a thread, read once")]
    }
}

impl ActivationKernels for CudaActivation {
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        self.silu_mul.run(ctx, gate_up, out)
    }
}

/// The kernel of `silu(gate) · up`.
pub(crate) struct SiluMul(Kernel);

impl SiluMul {
    pub(crate) fn new(device: &CudaDevice) -> std::result::Result<Self, Error> {
        let name = format!("silu_mul_{}", suffix(device.activation_dtype()));
        Ok(Self(device.kernel("activation", &name)?))
    }

    pub(crate) fn run(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        let (rows, features) = (out.num_rows(), out.num_columns());
        assert_eq!(
            (gate_up.num_rows(), gate_up.num_columns()),
            (rows, 2 * features),
            "a row holds gate and up projection"
        );
        let params = SiluMulParams {
            gate_up: address(gate_up),
            out: address(out),
            gate_up_stride: stride(gate_up),
            out_stride: stride(out),
            rows: count(rows),
            features: count(features),
            is_vector: u32::from(are_vectors(&[gate_up, out])),
            unused: 0,
        };
        let grid = one_thread_each(rows * features.div_ceil(VECTOR));
        // SAFETY: the struct is the kernel's; the tensors have the rows and features that it names.
        unsafe { launch(ctx, &self.0, grid, &params) }
    }
}

/// `SiluMulParams` of `cuda/activation.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SiluMulParams {
    gate_up: u64,
    out: u64,
    gate_up_stride: i64,
    out_stride: i64,
    rows: u32,
    features: u32,
    is_vector: u32,
    unused: u32,
}
