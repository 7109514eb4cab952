//! Forms across parts: a row is read once, and one job does what would be several.
//!
//! They are the same functions of a row as the parts use, one after the other, so a fused form and its plain
//! composition give the same bits.

use quire_kernels::{
    Activation, AddRmsNorm, Device as _, DeviceId, Dispatch, FusedKernels, Part, Result, RopeWriteKv,
    StepCtx, Tensor,
};

use crate::activation::Gated;
use crate::attention::{self, BlockShape};
use crate::device::CpuDevice;
use crate::lanes::{self, Program, Simd};
use crate::linear::activation::QuantBlock;
use crate::norm::{ScaleBy, Sum, grain_rows, inverse_rms};
use crate::rope::{cos_sin_at, rotate};

/// The fused part.
#[derive(Debug)]
pub(crate) struct CpuFused {
    device: CpuDevice,
}

impl CpuFused {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device }
    }
}

impl Part for CpuFused {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let isa = self.device.isa();
        let line =
            |op: &str, kernel| Dispatch::new(format!("fused.{op}"), kernel, "one job instead of three");
        vec![
            line("add_rms_norm", format!("add, rms, quantize {isa}")),
            line("rope_write_kv", format!("rotate, write {isa}")),
            line("silu_mul", format!("silu_mul, quantize {isa}")),
        ]
    }
}

impl FusedKernels for CpuFused {
    /// Declines rows that no quantized weight can have; those are not prepared.
    fn add_rms_norm(&self, _: &mut StepCtx, args: &AddRmsNorm<'_>, out: &Activation) -> Result<bool> {
        let Some(prepared) = out.prepared.first() else { return Ok(false) };
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [weight, delta], [residual, x, quants]) =
            session.open([args.weight, args.delta.unwrap_or(args.weight)], [args.residual, &out.x, prepared]);
        let weight = weight.slice::<f32>();
        let delta = args.delta.map(|_| delta.rows::<f32>());
        let (mut residual, x, quants) = (residual.rows::<f32>(), x.rows::<f32>(), quants.rows::<u8>());
        let (grain, columns) = (grain_rows(weight.len()), 0..weight.len());
        residual.for_each(pool, grain, |row, residual| {
            // SAFETY: the pool visits each row once.
            let (x, quants) =
                unsafe { (x.slice_mut(row, columns.clone()), quants.slice_mut(row, 0..quants.columns())) };
            let (delta, quants) = (delta.map(|delta| delta.row(row)), bytemuck::cast_slice_mut(quants));
            lanes::run(isa, NormRow { delta, residual, weight, eps: args.eps, x, quants });
        });
        Ok(true)
    }

    fn rope_write_kv(&self, _: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<bool> {
        let isa = self.device.isa();
        let shape = BlockShape::of(&args.kv.layout);
        let (step, style) = (args.step, args.table.style);
        let mut session = self.device.session();
        let (pool, [v, positions, slots, cos_sin], [q, k, blocks]) = session.open(
            [args.v, &step.positions, &step.slot_mapping, &args.table.cos_sin],
            [args.q, args.k, &args.kv.blocks],
        );
        let (positions, slots) = (positions.slice::<i32>(), slots.slice::<i32>());
        let (mut q, k, cos_sin) = (q.rows::<f32>(), k.rows::<f32>(), cos_sin.rows::<f32>());
        let grain = grain_rows(q.columns() + k.columns());
        q.for_each(pool, grain, |token, q| {
            let cos_sin = cos_sin_at(cos_sin, positions[token]);
            // SAFETY: the pool visits each token once.
            let k = unsafe { k.slice_mut(token, 0..k.columns()) };
            rotate(isa, q, shape.head_dim, cos_sin, style);
            rotate(isa, k, shape.head_dim, cos_sin, style);
        });
        let blocks = blocks.rows();
        attention::write_rows(isa, pool, (k.as_rows(), v.rows()), slots, (&blocks, shape), args.kv.scales);
        Ok(true)
    }

    /// Declines as [`add_rms_norm`](Self::add_rms_norm).
    fn silu_mul(&self, _: &mut StepCtx, gate_up: &Tensor, out: &Activation) -> Result<bool> {
        let Some(prepared) = out.prepared.first() else { return Ok(false) };
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [gate_up], [x, quants]) = session.open([gate_up], [&out.x, prepared]);
        let (gate_up, mut x, quants) = (gate_up.rows::<f32>(), x.rows::<f32>(), quants.rows::<u8>());
        x.for_each(pool, grain_rows(gate_up.columns()), |row, x| {
            // SAFETY: the pool visits each row once.
            let quants = unsafe { quants.slice_mut(row, 0..quants.columns()) };
            let (gate, up) = gate_up.row(row).split_at(x.len());
            lanes::run(isa, GateRow { gate, up, x, quants: bytemuck::cast_slice_mut(quants) });
        });
        Ok(true)
    }
}

/// Adds to the residual, normalizes it, and quantizes the result.
struct NormRow<'a> {
    delta: Option<&'a [f32]>,
    residual: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
    x: &'a mut [f32],
    quants: &'a mut [QuantBlock],
}

impl Program for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if let Some(delta) = self.delta {
            lanes::update(s, self.residual, delta, Sum);
        }
        let inverse = inverse_rms(s, self.residual, self.eps);
        lanes::map2(s, self.x, self.residual, self.weight, ScaleBy(inverse));
        QuantBlock::quantize_row(s, self.x, self.quants);
    }
}

/// Gates, and quantizes the result.
struct GateRow<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    x: &'a mut [f32],
    quants: &'a mut [QuantBlock],
}

impl Program for GateRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        lanes::map2(s, self.x, self.gate, self.up, Gated);
        QuantBlock::quantize_row(s, self.x, self.quants);
    }
}

#[cfg(test)]
mod tests {
    use quire_kernels::{
        ActivationKernels, AttentionKernels, DType, KvGroupSpec, KvKind, KvLayer, KvScales, LinearKernels,
        NormKernels, RopeKernels, RopeStyle, RopeTable, ShapeKey, StepView,
    };

    use super::*;
    use crate::Isa;
    use crate::activation::CpuActivation;
    use crate::attention::CpuAttention;
    use crate::linear::CpuLinear;
    use crate::norm::CpuNorm;
    use crate::rope::CpuRope;
    use crate::testing::{Memory, bits, noise};

    /// A device and a fused part on it.
    fn rig(isa: Isa) -> (CpuDevice, CpuFused, StepCtx) {
        let device = CpuDevice::new(2, isa).unwrap();
        let ctx = StepCtx::new(&device, 1 << 20).unwrap();
        (device.clone(), CpuFused::new(device), ctx)
    }

    fn matrix(device: &CpuDevice, rows: usize, columns: usize, seed: u32) -> Tensor {
        device.upload(DType::F32, &[rows, columns], &noise(rows * columns, seed))
    }

    /// Bits of an activation and of what was prepared of it.
    fn contents(device: &CpuDevice, activation: &Activation) -> (Vec<u32>, Vec<u8>) {
        let prepared = activation.prepared.first().map(|prepared| device.download(prepared));
        (bits(&device.download(&activation.x)), prepared.unwrap_or_default())
    }

    fn check_norm(isa: Isa, rows: usize, columns: usize, has_delta: bool) {
        let (device, fused, mut ctx) = rig(isa);
        let (norm, linear) = (CpuNorm::new(device.clone()), CpuLinear::new(device.clone()));
        let weight = device.upload(DType::F32, &[columns], &noise(columns, 1));
        let delta = matrix(&device, rows, columns, 2);
        let residuals = [matrix(&device, rows, columns, 3), matrix(&device, rows, columns, 3)];
        let outputs = [(), ()].map(|()| {
            let x = ctx.alloc(DType::F32, &[rows, columns]).unwrap();
            linear.layout_activation(&mut ctx, &x).unwrap()
        });

        let (delta, eps) = (has_delta.then_some(&delta), 1e-5);
        let args = AddRmsNorm { delta, residual: &residuals[0], weight: &weight, eps };
        assert!(fused.add_rms_norm(&mut ctx, &args, &outputs[0]).unwrap());
        if let Some(delta) = delta {
            norm.add(&mut ctx, delta, &residuals[1]).unwrap();
        }
        norm.rms_norm(&mut ctx, &residuals[1], &weight, eps, &outputs[1].x).unwrap();
        linear.prepare(&mut ctx, &outputs[1]).unwrap();

        let sums = residuals.map(|residual| bits(&device.download(&residual)));
        assert!(sums[0] == sums[1] && contents(&device, &outputs[0]) == contents(&device, &outputs[1]));
    }

    fn check_silu(isa: Isa, rows: usize, features: usize) {
        let (device, fused, mut ctx) = rig(isa);
        let (gate, linear) = (CpuActivation::new(device.clone()), CpuLinear::new(device.clone()));
        let gate_up = matrix(&device, rows, 2 * features, 4);
        let outputs = [(), ()].map(|()| {
            let x = ctx.alloc(DType::F32, &[rows, features]).unwrap();
            linear.layout_activation(&mut ctx, &x).unwrap()
        });
        assert!(fused.silu_mul(&mut ctx, &gate_up, &outputs[0]).unwrap());
        gate.silu_mul(&mut ctx, &gate_up, &outputs[1].x).unwrap();
        linear.prepare(&mut ctx, &outputs[1]).unwrap();
        assert!(contents(&device, &outputs[0]) == contents(&device, &outputs[1]));
    }

    #[test]
    fn fused_rows_have_the_bits_of_the_composition() {
        for isa in Isa::available() {
            for (rows, columns) in [(0, 64), (1, 32), (1, 576), (5, 96), (130, 256)] {
                check_norm(isa, rows, columns, true);
                check_norm(isa, rows, columns, false);
                check_silu(isa, rows, columns);
            }
        }
    }

    #[test]
    fn rows_that_are_not_quantized_are_declined() {
        let (device, fused, mut ctx) = rig(Isa::best());
        let weight = device.upload(DType::F32, &[33], &noise(33, 1));
        let residual = matrix(&device, 2, 33, 2);
        let out = Activation { x: matrix(&device, 2, 33, 3), prepared: Vec::new() };
        let args = AddRmsNorm { delta: None, residual: &residual, weight: &weight, eps: 1e-5 };
        assert!(!fused.add_rms_norm(&mut ctx, &args, &out).unwrap());
        assert!(!fused.silu_mul(&mut ctx, &matrix(&device, 2, 66, 4), &out).unwrap());
    }

    /// Rotates and writes `tokens` tokens; the bits of queries, keys and cache.
    fn rotated_and_written(
        style: RopeStyle,
        tokens: usize,
        (dtype, scales): (DType, KvScales),
        is_fused: bool,
    ) -> (Vec<u32>, Vec<u8>) {
        let (device, fused, mut ctx) = rig(Isa::best());
        let (rope, attention) = (CpuRope::new(device.clone()), CpuAttention::new(device.clone()));
        let kind = KvKind::Full;
        let spec = KvGroupSpec { layers: vec![0], kind, num_kv_heads: 3, head_dim: 64, dtype };
        let layout = attention.kv_layout(&spec, 16).unwrap();
        let blocks = device.upload(DType::U8, &[20, layout.block_bytes], &vec![0u8; 20 * layout.block_bytes]);
        let kv = KvLayer { blocks, layout, scales };
        let qkv = matrix(&device, tokens, 15 * 64, 5);
        let (q, k, v) = (qkv.columns(0, 9 * 64), qkv.columns(9 * 64, 12 * 64), qkv.columns(12 * 64, 15 * 64));
        let table = RopeTable { cos_sin: matrix(&device, 300, 48, 6), style };
        let i32s = |values: Vec<i32>| device.upload(DType::I32, &[values.len()], &values);
        let positions = i32s((0..tokens as i32).collect());
        let slot_mapping = i32s((0..tokens as i32).map(|t| if t == 2 { -1 } else { t + 7 }).collect());
        let key = ShapeKey { num_tokens: tokens, num_rows: 1, max_query_len: tokens, num_logits: 0 };
        let none = i32s(vec![]);
        let step = StepView {
            key,
            token_ids: none.clone(),
            positions: positions.clone(),
            slot_mapping: slot_mapping.clone(),
            query_start: none.clone(),
            seq_lens: none.clone(),
            block_tables: none.clone(),
            logits_idx: none,
        };
        if is_fused {
            let args = RopeWriteKv { q: &q, k: &k, v: &v, table: &table, kv: &kv, step: &step };
            assert!(fused.rope_write_kv(&mut ctx, &args).unwrap());
        } else {
            rope.rope(&mut ctx, &q, 64, &positions, &table).unwrap();
            rope.rope(&mut ctx, &k, 64, &positions, &table).unwrap();
            attention.write_kv(&mut ctx, &k, &v, &kv, &slot_mapping).unwrap();
        }
        (bits(&device.download(&qkv)), device.download(&kv.blocks))
    }

    #[test]
    fn fused_rotation_and_writing_have_the_bits_of_the_composition() {
        for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
            for tokens in [0, 1, 3, 300] {
                let scaled = (DType::F8E4M3, KvScales { k: 0.03, v: 7.0 });
                for cache in [(DType::F16, KvScales::ONE), scaled] {
                    let fused = rotated_and_written(style, tokens, cache, true);
                    let apart = rotated_and_written(style, tokens, cache, false);
                    assert!(fused == apart, "{style:?} of {tokens} tokens, {cache:?}");
                }
            }
        }
    }
}
