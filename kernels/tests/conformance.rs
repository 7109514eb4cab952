//! The suite on the reference backend, and the suite itself: it has to notice broken parts.

use std::sync::Arc;

use quire_kernels::conformance::{self, Report, RowIndependence};
use quire_kernels::{
    AttentionArgs, AttentionKernels, DeviceId, Dispatch, HostWeight, KernelParts, Kernels, KvGroupSpec,
    KvLayer, KvLayout, Linear, LinearKernels, LogprobsOut, NormKernels, Part, Result, SamplingKernels,
    SamplingRows, SamplingState, StepCtx, Tensor, reference,
};

#[test]
fn the_reference_conforms() {
    let report = conformance::run(&reference::kernels());
    println!("{report}");
    report.assert_ok();
    assert!(report.ops().iter().all(|op| op.unsupported.is_empty() && op.num_cases > 0));
}

#[test]
fn a_window_off_by_one_is_noticed() {
    let broken = Broken::new(Fault::WindowOffByOne);
    let kernels = broken.inner.clone().with_attention(broken).expect("the same device");
    assert_eq!(failures(&kernels, conformance::attention), ["attention"]);
}

#[test]
fn a_row_left_unwritten_is_noticed() {
    let failures = failures(&with_norm(Fault::LastRowForgotten), conformance::norm);
    assert_eq!(failures, ["rms_norm", "rms_norm.overflow"]);
}

#[test]
fn a_row_that_depends_on_its_neighbours_is_noticed() {
    assert_eq!(failures(&with_norm(Fault::DependsOnBatch), conformance::norm), ["rms_norm"]);
}

#[test]
fn a_write_beside_the_output_is_noticed() {
    assert_eq!(failures(&with_norm(Fault::WritesBeside), conformance::norm), ["add"]);
}

#[test]
fn a_forgotten_bias_is_noticed() {
    let broken = Broken::new(Fault::NoBias);
    let kernels = broken.inner.clone().with_linear(broken).expect("the same device");
    let failures = failures(&kernels, conformance::linear);
    assert!(failures.contains(&"linear.q4_k".to_owned()) && failures.contains(&"linear.merged".to_owned()));
}

#[test]
fn a_draw_that_ignores_the_position_is_noticed() {
    let broken = Broken::new(Fault::DrawsBySlot);
    let kernels = broken.inner.clone().with_sampling(broken).expect("the same device");
    let failures = failures(&kernels, conformance::sampling);
    assert!(
        ["sample", "sample.alone", "sample.distribution"]
            .iter()
            .all(|op| failures.contains(&(*op).to_owned()))
    );
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    WindowOffByOne,
    LastRowForgotten,
    DependsOnBatch,
    WritesBeside,
    NoBias,
    DrawsBySlot,
}

/// Parts of the reference with one fault.
struct Broken {
    inner: Kernels,
    fault: Fault,
}

impl Broken {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self { inner: reference::kernels(), fault })
    }
}

fn with_norm(fault: Fault) -> Kernels {
    let broken = Broken::new(fault);
    let parts = broken.inner.parts().clone();
    Kernels::new(KernelParts { norm: broken, ..parts }).expect("the same device")
}

/// The operations that a check finds fault with.
fn failures(kernels: &Kernels, check: fn(&Kernels, &mut Report)) -> Vec<String> {
    let mut report = Report::new(RowIndependence::Bitwise);
    check(kernels, &mut report);
    report.ops().iter().filter(|op| op.num_failures > 0).map(|op| op.op.clone()).collect()
}

impl Part for Broken {
    fn device(&self) -> DeviceId {
        self.inner.device().id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![]
    }
}

impl AttentionKernels for Broken {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        self.inner.attention().kv_layout(spec, block_size)
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slots: &Tensor,
    ) -> Result<()> {
        self.inner.attention().write_kv(ctx, k, v, kv, slots)
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        let window = args.window.map(|w| w + usize::from(self.fault == Fault::WindowOffByOne));
        self.inner.attention().forward(ctx, &AttentionArgs { window, ..*args })
    }
}

impl NormKernels for Broken {
    fn rms_norm(&self, ctx: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        let norm = self.inner.norm();
        let rows = x.num_rows();
        match self.fault {
            Fault::LastRowForgotten => {
                let n = rows.saturating_sub(1);
                norm.rms_norm(ctx, &x.rows(0, n), weight, eps, &out.rows(0, n))
            }
            // Far below every tolerance, but other bits.
            Fault::DependsOnBatch => norm.rms_norm(ctx, x, weight, eps + rows as f32 * 2e-7, out),
            _ => norm.rms_norm(ctx, x, weight, eps, out),
        }
    }

    fn add(&self, ctx: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()> {
        self.inner.norm().add(ctx, x, residual)?;
        if self.fault == Fault::WritesBeside {
            let dims = [residual.num_rows() + 1, residual.num_columns()];
            let longer =
                Tensor::new(residual.buffer().clone(), residual.offset_bytes(), residual.dtype(), &dims);
            let end = longer.rows(dims[0] - 1, dims[0]).columns(0, 1);
            ctx.write(&end, &[0.0f32])?;
        }
        Ok(())
    }

    fn gather_rows(&self, ctx: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()> {
        self.inner.norm().gather_rows(ctx, x, idx, out)
    }
}

impl LinearKernels for Broken {
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        let unbiased: Vec<_> = weights.iter().map(|w| HostWeight { bias: None, ..*w }).collect();
        self.inner.linear().pack(&unbiased)
    }
}

impl SamplingKernels for Broken {
    fn add_bias(&self, ctx: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()> {
        self.inner.sampling().add_bias(ctx, logits, edits, values)
    }

    fn mask(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.inner.sampling().mask(ctx, state, rows)
    }

    fn penalize(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.inner.sampling().penalize(ctx, state, rows)
    }

    fn sample(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        let rows = SamplingRows { positions: rows.slots, ..*rows };
        self.inner.sampling().sample(ctx, state, &rows, out)
    }

    fn filter(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.inner.sampling().filter(ctx, state, rows)
    }

    fn count(&self, ctx: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()> {
        self.inner.sampling().count(ctx, state, slots, tokens)
    }

    fn logprobs(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        self.inner.sampling().logprobs(ctx, logits, chosen, out)
    }

    fn scatter(
        &self,
        ctx: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()> {
        self.inner.sampling().scatter(ctx, src, src_idx, dst, dst_idx)
    }
}
