//! Traced backends: they compute what the inner ones do, and their records match op by op.

use std::sync::{Arc, Mutex};

use quire_kernels::trace::{TraceRecord, traced};
use quire_kernels::{
    Activation, AddRmsNorm, DType, DeviceId, Dispatch, FusedKernels, HostWeight, KernelParts, Kernels,
    KvGroupSpec, KvKind, KvLayer, KvScales, Limits, Linear, LinearKernels, Part, Result, RopeStyle,
    RopeTable, RopeWriteKv, ShapeKey, StepBuffers, StepCtx, Tensor, add_rms_norm, conformance, reference,
    rope_write_kv, silu_mul, testing, write_head,
};

type Records = Arc<Mutex<Vec<TraceRecord>>>;

fn recorded(inner: &Kernels) -> (Kernels, Records) {
    let records = Records::default();
    let sink = records.clone();
    let kernels =
        traced(inner, Arc::new(move |record: &TraceRecord| sink.lock().unwrap().push(record.clone())));
    (kernels, records)
}

fn taken(records: &Records) -> Vec<TraceRecord> {
    std::mem::take(&mut records.lock().unwrap())
}

#[test]
fn a_traced_backend_conforms() {
    for inner in [reference::kernels(), testing::deferred(&reference::kernels())] {
        let (kernels, records) = recorded(&inner);
        let mut report = conformance::Report::new(conformance::RowIndependence::Bitwise);
        conformance::queue(&kernels, &mut report);
        conformance::norm(&kernels, &mut report);
        conformance::rope(&kernels, &mut report);
        conformance::activation(&kernels, &mut report);
        conformance::fused(&kernels, &mut report);
        conformance::sampling(&kernels, &mut report);
        report.assert_ok();
        let records = taken(&records);
        assert!(records.iter().all(|record| record.stats.samples.len() <= 8));
        let has = |op: &str| records.iter().any(|record| record.op == op);
        assert!(has("norm.gather_rows") && has("sampling.logprobs") && has("linear.forward"));
    }
}

/// Attention and linear layers take the longest: once is enough.
#[test]
fn traced_attention_and_linear_layers_conform() {
    let (kernels, records) = recorded(&reference::kernels());
    let mut report = conformance::Report::new(conformance::RowIndependence::Bitwise);
    conformance::linear(&kernels, &mut report);
    conformance::attention(&kernels, &mut report);
    report.assert_ok();
    assert!(taken(&records).iter().any(|record| record.op == "attention.write_kv" && record.tensor == "v"));
}

#[test]
fn a_traced_backend_looks_like_the_inner_one() {
    let inner = reference::kernels();
    let (kernels, _) = recorded(&inner);
    assert_eq!(kernels.dispatch(), inner.dispatch());
    assert_eq!(kernels.device().id(), inner.device().id());
    assert_eq!(kernels.device().info().backend, inner.device().info().backend);
    assert!(kernels.with_attention(inner.parts().attention.clone()).is_ok(), "the device is the same");
}

/// The reference's linear layers, with answers of their own to what is asked before anything is packed.
struct Choosy(Kernels);

impl Part for Choosy {
    fn device(&self) -> DeviceId {
        self.0.device().id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        Vec::new()
    }
}

impl LinearKernels for Choosy {
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        self.0.linear().pack(weights)
    }

    fn packed_bytes(&self, _: DType, num_bytes: usize) -> usize {
        3 * num_bytes
    }

    fn supports(&self, dtype: DType) -> bool {
        dtype == DType::F16
    }

    fn activation_bytes(&self, num_tokens: usize, in_features: usize) -> usize {
        num_tokens * in_features
    }
}

#[test]
fn what_wraps_a_backend_answers_as_it_does() -> Result<()> {
    let plain = reference::kernels();
    let inner = plain.clone().with_linear(Arc::new(Choosy(plain)))?;
    for kernels in [recorded(&inner).0, testing::deferred(&inner)] {
        let linear = kernels.linear();
        assert!(linear.supports(DType::F16) && !linear.supports(DType::Q4K));
        assert_eq!((linear.packed_bytes(DType::F16, 5), linear.activation_bytes(2, 7)), (15, 14));
    }
    Ok(())
}

#[test]
fn steps_end_where_something_is_read_and_operations_are_counted_by_name() -> Result<()> {
    let (kernels, records) = recorded(&reference::kernels());
    let x = kernels.upload(DType::F32, &[1, 2], &[1.0f32, 2.0])?;
    let sum = kernels.upload(DType::F32, &[1, 2], &[0.0f32; 2])?;
    let idx = kernels.upload(DType::I32, &[1], &[0])?;
    let norm = kernels.norm();
    let mut ctx = kernels.step_ctx(0)?;
    for _ in 0..2 {
        ctx.step(|ctx| {
            norm.add(ctx, &x, &sum)?;
            norm.gather_rows(ctx, &x, &idx, &sum)?;
            norm.add(ctx, &x, &sum)
        })?;
        ctx.read(&sum)?.wait()?;
    }
    kernels.norm().add(&mut kernels.step_ctx(0)?, &x, &sum)?;
    let places: Vec<_> =
        taken(&records).iter().map(|r| (r.step, r.op_idx, r.op, r.ordinal, r.stats.mean)).collect();
    let (add, gather) = ("norm.add", "norm.gather_rows");
    let expected = [
        (0, 0, add, 0, Some(1.5)),
        (0, 1, gather, 0, Some(1.5)),
        (0, 2, add, 1, Some(3.0)),
        (1, 0, add, 0, Some(4.5)),
        (1, 1, gather, 0, Some(1.5)),
        (1, 2, add, 1, Some(3.0)),
        (2, 0, add, 0, Some(4.5)),
    ];
    assert_eq!(places, expected);
    Ok(())
}

#[test]
fn a_slice_of_columns_is_recorded_without_its_surroundings() -> Result<()> {
    let (kernels, records) = recorded(&reference::kernels());
    let x = kernels.upload(DType::F32, &[3, 2], &[0.0f32; 6])?;
    let values: Vec<f32> = (0..12).map(|i| if i % 4 == 3 { f32::NAN } else { i as f32 }).collect();
    let matrix = kernels.upload(DType::F32, &[3, 4], &values)?;
    kernels.norm().add(&mut kernels.step_ctx(0)?, &x, &matrix.columns(1, 3))?;
    let record = taken(&records).remove(0);
    assert_eq!(record.dims, [3, 2]);
    assert_eq!((record.stats.num_nan, record.stats.min, record.stats.max), (0, Some(1.0), Some(10.0)));
    assert_eq!(record.stats.samples, [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
    Ok(())
}

#[test]
fn of_a_scatter_only_what_was_written_is_recorded() -> Result<()> {
    let (kernels, records) = recorded(&reference::kernels());
    let ints = |values: &[i32]| kernels.upload(DType::I32, &[values.len()], values);
    let (src, dst) = (ints(&[5, 6, 7])?, ints(&[-9; 4])?);
    let (src_idx, dst_idx) = (ints(&[2, 0, 1])?, ints(&[3, -1, 0])?);
    kernels.sampling().scatter(&mut kernels.step_ctx(0)?, &src, &src_idx, &dst, &dst_idx)?;
    let record = taken(&records).remove(0);
    assert_eq!((record.dims, record.stats.samples), (vec![2], vec![7.0, 6.0]));
    Ok(())
}

#[test]
fn nothing_is_captured() -> Result<()> {
    let (kernels, records) = recorded(&testing::deferred(&reference::kernels()));
    let x = kernels.upload(DType::F32, &[1, 1], &[1.0f32])?;
    let mut ctx = kernels.step_ctx(0)?;
    let graph = ctx.capture(|ctx| kernels.norm().add(ctx, &x.clone(), &x.clone()));
    assert!(graph.is_ok_and(|graph| graph.is_none()), "the work was done at once");
    assert_eq!(taken(&records)[0].stats.samples, [2.0]);
    Ok(())
}

/// Fused forms that are the compositions of `0`.
struct Fused(Kernels);

impl Part for Fused {
    fn device(&self) -> DeviceId {
        self.0.device().id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        Vec::new()
    }
}

impl FusedKernels for Fused {
    fn add_rms_norm(&self, ctx: &mut StepCtx, args: &AddRmsNorm<'_>, out: &Activation) -> Result<bool> {
        let AddRmsNorm { delta, residual, weight, eps } = *args;
        delta.map_or(Ok(()), |delta| self.0.norm().add(ctx, delta, residual))?;
        self.0.norm().rms_norm(ctx, residual, weight, eps, &out.x)?;
        Ok(true)
    }

    fn rope_write_kv(&self, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<bool> {
        rope_write_kv(&self.0, ctx, args)?;
        Ok(true)
    }

    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Activation) -> Result<bool> {
        self.0.activation().silu_mul(ctx, gate_up, &out.x)?;
        Ok(true)
    }
}

/// A norm with and without something to add, a rotation with its write, a gate.
fn run_compositions(kernels: &Kernels) -> Result<()> {
    const WIDTH: usize = 64;
    let values: Vec<f32> = (0..4 * WIDTH).map(|i| (i as f32).sin()).collect();
    let matrix = || kernels.upload(DType::F32, &[2, 2 * WIDTH], &values);
    let halves = |x: &Tensor| (x.columns(0, WIDTH), x.columns(WIDTH, 2 * WIDTH));
    let ((residual, delta), (q, k), v) =
        (halves(&matrix()?), halves(&matrix()?), matrix()?.columns(7, 7 + WIDTH));
    let weight = kernels.upload(DType::F32, &[WIDTH], &values[..WIDTH])?;
    let cos_sin = kernels.upload(DType::F32, &[4, WIDTH], &values)?;
    let table = RopeTable { cos_sin, style: RopeStyle::Halves };
    let limits = Limits { max_num_batched_tokens: 2, max_num_seqs: 1, max_model_len: 8, block_size: 8 };
    let spec = KvGroupSpec {
        layers: vec![0],
        kind: KvKind::Full,
        num_kv_heads: 1,
        head_dim: WIDTH,
        dtype: DType::F32,
    };
    let layout = kernels.attention().kv_layout(&spec, limits.block_size)?;
    let blocks =
        Tensor::new(kernels.device().allocate(layout.block_bytes)?, 0, DType::U8, &[1, layout.block_bytes]);
    let kv = KvLayer { blocks, layout, scales: KvScales::ONE };
    let buffers = StepBuffers::new(kernels.device().as_ref(), &limits)?;
    let step = buffers.view(ShapeKey { num_tokens: 2, num_rows: 1, max_query_len: 2, num_logits: 0 });
    let mut ctx = kernels.step_ctx(1 << 16)?;
    write_head(&mut ctx, &buffers.positions, &[0, 1])?;
    write_head(&mut ctx, &buffers.slot_mapping, &[0, 1])?;
    let (eps, weight) = (1e-6, &weight);
    ctx.step(|ctx| {
        for delta in [None, Some(&delta)] {
            add_rms_norm(kernels, ctx, &AddRmsNorm { delta, residual: &residual, weight, eps })?;
        }
        rope_write_kv(
            kernels,
            ctx,
            &RopeWriteKv { q: &q, k: &k, v: &v, table: &table, kv: &kv, step: &step },
        )?;
        silu_mul(kernels, ctx, &residual).map(drop)
    })
}

#[test]
fn fused_forms_are_recorded_as_their_compositions() -> Result<()> {
    let plain = reference::kernels();
    let fused = KernelParts { fused: Some(Arc::new(Fused(plain.clone()))), ..plain.parts().clone() };
    let records = [plain, Kernels::new(fused)?].map(|inner| {
        let (kernels, records) = recorded(&inner);
        run_compositions(&kernels).map(|()| taken(&records))
    });
    let [plain, fused] = records;
    let (plain, mut fused) = (plain?, fused?);
    let ops: Vec<_> = plain.iter().map(|record| record.op).collect();
    let expected = [
        "norm.rms_norm",
        "norm.add",
        "norm.rms_norm",
        "rope.rope",
        "rope.rope",
        "attention.write_kv",
        "attention.write_kv",
        "activation.silu_mul",
    ];
    assert_eq!(ops, expected);
    assert!(fused.iter().all(|record| record.is_fused) && plain.iter().all(|record| !record.is_fused));
    fused.iter_mut().for_each(|record| record.is_fused = false);
    assert_eq!(fused, plain);
    Ok(())
}
