//! Linear layers: `y = x Wᵀ + b` for dense and block-quantized weights.
//!
//! Packing interleaves sixteen rows of a weight into a group ([`layout`]), so that a lane of a vector is an output and
//! the columns are walked in order. Every output is one sum in one order: neither the number of rows, nor the
//! threads, nor the instruction set change a bit of it. Dense weights ([`dense`]) are widened to f32 exactly;
//! quantized ones ([`quant`]) are multiplied in integers with activations in 8 bits ([`activation`]), which are
//! made once for all layers that read them; what has no such product ([`scaled`], and block types of few bits) is decoded
//! to f32 a tile at a time ([`decoded`]). Merged weights are segments of one layer, each in its own format.
//!
//! # What the speed can be
//!
//! *Decode* reads every weight once a token. SmolLM2-135M in Q4_1 with its head in Q8_0 has 66 MB of layers and 30 MB
//! of head: at 25 GB/s of memory a token takes 3.9 ms at least, 260 tokens/s. The arithmetic hides behind that:
//! 135 M products are 0.26 M blocks of 16 x 32, 13 vector instructions each, two a cycle: 0.6 ms of one core at
//! 2.9 GHz. Measured with two threads on a shared machine: 32 GB/s in the median of a quiet minute, 24 in busy ones.
//!
//! *Prefill* is arithmetic: 106 M products a token without the head. AVX-512 with VNNI does 512 products of a block in
//! 8 instructions, and 5 more bring them to f32: 79 products a cycle, 229 a nanosecond and core. Measured: 182 in
//! Q4_1. A fused multiply-add does 16, two a cycle: 93 a nanosecond; measured 67 in bf16, 70 in f32.
//!
//! # How exact the quantized path is
//!
//! Against f32 on the golden prompts: mean KL divergence 0.0024 nats and the same best token at 96.9 % of the places
//! for SmolLM2-135M in Q4_1; 0.0005 nats and 98.8 % for Qwen2.5-Coder-0.5B. Activations in 16 bits would double the
//! arithmetic for the little that is left.

pub(crate) mod activation;
mod decoded;
mod dense;
mod layout;
mod packed;
mod quant;
mod scaled;
mod segment;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;
use quire_kernels::{
    Activation, DType, Device, DeviceId, Dispatch, EmbeddingTable, HostWeight, Linear, LinearKernels, Part,
    Result, SharedBytes, StepCtx, Tensor,
};

use self::activation::{BLOCK_BYTES, BLOCK_LEN, QuantBlock};
use self::layout::layout_of;
use self::packed::PackedLinear;
use self::segment::PackedMemory;
use self::table::KeptTable;
use crate::device::CpuDevice;
use crate::lanes::{self, Program, Simd};

/// Scratch tensors take multiples of this.
const SCRATCH_ALIGN: usize = 256;

/// The linear layers of a CPU device.
pub(crate) struct CpuLinear {
    device: CpuDevice,
    memory: Mutex<PackedMemory>,
}

impl CpuLinear {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device, memory: Mutex::default() }
    }
}

impl Part for CpuLinear {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let isa = self.device.isa();
        let line = |dtype: DType| {
            let kernel = layout_of(dtype)?.kernel(isa);
            let reason = match decoded::layout_of(dtype) {
                Some(_) => "no product of integers: decoded a tile at a time".to_owned(),
                None => isa.reason().to_string(),
            };
            Some(Dispatch::new(format!("linear.{dtype}"), kernel, reason))
        };
        let scaled = |dtype: DType| {
            let kernel = format!("{dtype} with scales decoded x f32 {isa}");
            Dispatch::new(
                format!("linear.scaled.{dtype}"),
                kernel,
                "no product of integers: decoded a tile at a time",
            )
        };
        let with_scales = DType::ALL.into_iter().filter(|dtype| scaled::supports(*dtype)).map(scaled);
        DType::ALL.into_iter().filter_map(line).chain(with_scales).collect()
    }
}

impl LinearKernels for CpuLinear {
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        HostWeight::check_merged(weights)?;
        Ok(Box::new(PackedLinear::pack(&self.device, &mut self.memory.lock(), weights)?))
    }

    /// Left where it lies: packing would read and write all of it for the few rows that are ever looked up.
    fn pack_table(&self, weight: &HostWeight<'_>, bytes: SharedBytes) -> Result<Box<dyn EmbeddingTable>> {
        if weight.scales.is_some() || !self.supports(weight.dtype) {
            return Ok(Box::new(Arc::<dyn Linear>::from(self.pack(&[*weight])?)));
        }
        weight.check()?;
        Ok(Box::new(KeptTable::new(&self.device, weight, bytes)))
    }

    fn supports(&self, dtype: DType) -> bool {
        layout_of(dtype).is_some()
    }

    fn supports_scaled(&self, dtype: DType) -> bool {
        scaled::supports(dtype)
    }

    /// Quants for every input of a width that quantized weights can have: making them costs little beside any
    /// product, and the input does not know who reads it.
    fn layout_activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        let prepared = if x.num_columns().is_multiple_of(BLOCK_LEN) {
            vec![ctx.alloc(DType::U8, &[x.num_rows(), x.num_columns() / BLOCK_LEN * BLOCK_BYTES])?]
        } else {
            Vec::new()
        };
        Ok(Activation { x: x.clone(), prepared })
    }

    fn prepare(&self, _: &mut StepCtx, activation: &Activation) -> Result<()> {
        let Some(prepared) = activation.prepared.first() else { return Ok(()) };
        let mut session = self.device.session();
        let (pool, [x], [quants]) = session.open([&activation.x], [prepared]);
        let x = x.rows::<f32>();
        quants.rows::<u8>().for_each(pool, QUANTIZE_GRAIN.div_ceil(x.columns().max(1)), |token, quants| {
            let out = bytemuck::cast_slice_mut(quants);
            lanes::run(self.device.isa(), Quantize { values: x.row(token), out });
        });
        Ok(())
    }

    fn activation_bytes(&self, num_tokens: usize, in_features: usize) -> usize {
        (num_tokens * (in_features / BLOCK_LEN) * BLOCK_BYTES).next_multiple_of(SCRATCH_ALIGN)
    }
}

/// Values that are worth a claim of the pool.
const QUANTIZE_GRAIN: usize = 8192;

/// Quantizes a row.
struct Quantize<'a> {
    values: &'a [f32],
    out: &'a mut [QuantBlock],
}

impl Program for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        QuantBlock::quantize_row(s, self.values, self.out);
    }
}
