//! The deferred device: it conforms, and it catches those who use a device wrongly.

use std::sync::Arc;

use quire_kernels::{
    Activation, DType, DeviceId, Dispatch, Error, HostWeight, KernelParts, Kernels, NormKernels, Part,
    Result, StepCtx, Tensor, conformance, reference, testing,
};

fn kernels() -> Kernels {
    testing::deferred(&reference::kernels())
}

fn ones(kernels: &Kernels, dims: &[usize]) -> Tensor {
    kernels.upload(DType::F32, dims, &vec![1.0f32; dims.iter().product()]).expect("memory")
}

#[test]
fn the_deferred_reference_conforms() {
    conformance::run(&kernels()).assert_ok();
}

#[test]
fn it_conforms_with_a_queue_that_is_always_full() {
    let kernels = testing::deferred_with_depth(&reference::kernels(), 1);
    let mut report = conformance::Report::new(conformance::RowIndependence::Bitwise);
    conformance::queue(&kernels, &mut report);
    conformance::fused(&kernels, &mut report);
    report.assert_ok();
}

#[test]
fn whoever_looks_too_early_sees_the_past() -> Result<()> {
    let kernels = kernels();
    let (x, sum) = (ones(&kernels, &[1, 2]), ones(&kernels, &[1, 2]));
    let (mut ctx, mut other) = (kernels.step_ctx(0)?, kernels.step_ctx(0)?);
    ctx.step(|ctx| kernels.norm().add(ctx, &x, &sum))?;
    assert_eq!(other.read(&sum)?.wait_as::<f32>()?, [1.0; 2], "the other queue did not wait for this one");
    ctx.synchronize()?;
    assert_eq!(other.read(&sum)?.wait_as::<f32>()?, [2.0; 2]);
    Ok(())
}

#[test]
fn a_dropped_queue_still_does_its_work() -> Result<()> {
    let kernels = kernels();
    let (x, sum) = (ones(&kernels, &[1, 2]), ones(&kernels, &[1, 2]));
    let mut ctx = kernels.step_ctx(0)?;
    kernels.norm().add(&mut ctx, &x, &sum)?;
    let read = ctx.read(&sum)?;
    drop(ctx);
    assert_eq!(read.wait_as::<f32>()?, [2.0; 2]);
    Ok(())
}

#[test]
fn what_cannot_be_captured_fails_inside_a_step() -> Result<()> {
    let kernels = kernels();
    let x = ones(&kernels, &[1, 2]);
    let mut ctx = kernels.step_ctx(0)?;
    let in_step = |ctx: &mut StepCtx, f: &dyn Fn(&mut StepCtx) -> Result<()>| match ctx.step(f) {
        Err(Error::NotInStep { operation }) => operation,
        other => panic!("{other:?} inside a step"),
    };
    let data = [0u8; 4];
    let weight = HostWeight {
        name: "w",
        dtype: DType::F32,
        rows: 1,
        columns: 1,
        data: &data,
        scales: None,
        bias: None,
    };
    assert_eq!(in_step(&mut ctx, &|_| kernels.device().allocate(4).map(drop)), "allocate");
    assert_eq!(in_step(&mut ctx, &|_| kernels.linear().pack(&[weight]).map(drop)), "pack a weight");
    assert_eq!(in_step(&mut ctx, &|ctx| ctx.read(&x).map(drop)), "read back");
    assert_eq!(in_step(&mut ctx, &|ctx| ctx.synchronize()), "synchronize");
    let elsewhere = std::thread::scope(|s| s.spawn(|| kernels.device().allocate(4).map(drop)).join());
    elsewhere.expect("no panic")?;
    assert!(kernels.device().allocate(4).is_ok(), "the step is over");
    Ok(())
}

/// The embedding of the token at `position`, once read from the device and once baked by the host.
#[test]
fn a_baked_position_is_replayed_as_it_was() -> Result<()> {
    let kernels = kernels();
    let rows = kernels.upload(DType::F32, &[3, 1], &[10.0f32, 11.0, 12.0])?;
    let (good_out, baked_out) = (ones(&kernels, &[1, 1]), ones(&kernels, &[1, 1]));
    let (good_idx, baked_idx) =
        (kernels.upload(DType::I32, &[1], &[0])?, kernels.upload(DType::I32, &[1], &[0])?);
    let mut ctx = kernels.step_ctx(1 << 10)?;
    let position = 0;
    let good = ctx.capture(|ctx| kernels.norm().gather_rows(ctx, &rows, &good_idx, &good_out))?;
    let baked = ctx.capture(|ctx| {
        ctx.write(&baked_idx, &[position])?;
        kernels.norm().gather_rows(ctx, &rows, &baked_idx, &baked_out)
    })?;
    let (good, baked) = (good.expect("the device has graphs"), baked.expect("the device has graphs"));
    assert_eq!(ctx.read(&good_out)?.wait_as::<f32>()?, [1.0], "recording runs nothing");
    for position in [2, 1] {
        ctx.write(&good_idx, &[position])?;
        ctx.write(&baked_idx, &[position])?;
        ctx.launch(good.as_ref())?;
        ctx.launch(baked.as_ref())?;
        assert_eq!(ctx.read(&good_out)?.wait_as::<f32>()?, [10.0 + position as f32]);
        assert_eq!(ctx.read(&baked_out)?.wait_as::<f32>()?, [10.0]);
    }
    Ok(())
}

#[test]
#[should_panic(expected = "overlaps the input")]
fn an_output_over_an_input_panics_in_the_call() {
    let kernels = kernels();
    let x = ones(&kernels, &[2, 4]);
    let mut ctx = kernels.step_ctx(0).expect("memory");
    let _ = kernels.activation().silu_mul(&mut ctx, &x, &x.columns(0, 2));
}

#[test]
#[should_panic(expected = "a tensor of the deferred device")]
fn a_tensor_of_the_inner_device_is_refused() {
    let inner = reference::kernels();
    let x = ones(&inner, &[1, 1]);
    let kernels = testing::deferred(&inner);
    let mut ctx = kernels.step_ctx(0).expect("memory");
    let _ = kernels.norm().add(&mut ctx, &x, &x);
}

#[test]
fn a_part_of_the_inner_device_is_refused() {
    let inner = reference::kernels();
    let part = inner.parts().attention.clone();
    let refused = testing::deferred(&inner).with_attention(part);
    assert!(matches!(refused, Err(Error::ForeignPart { part: "attention", .. })));
}

#[test]
fn an_output_that_nobody_wrote_is_poison() -> Result<()> {
    let kernels = testing::deferred(&with_norm(Fault::DoesNothing));
    let (x, out, weight) = (ones(&kernels, &[1, 2]), ones(&kernels, &[1, 2]), ones(&kernels, &[2]));
    let mut ctx = kernels.step_ctx(0)?;
    kernels.norm().rms_norm(&mut ctx, &x, &weight, 1e-5, &out)?;
    assert!(ctx.read(&out)?.wait_as::<f32>()?.iter().all(|v| v.is_nan()));
    Ok(())
}

#[test]
fn sampled_logits_are_poison_afterwards() -> Result<()> {
    let kernels = kernels();
    let state = quire_kernels::SamplingState::new(kernels.device().as_ref(), 1, 2)?;
    let logits = ones(&kernels, &[1, 2]);
    let zeros = kernels.upload(DType::I32, &[1], &[0])?;
    let out = kernels.upload(DType::I32, &[1], &[9])?;
    let rows = quire_kernels::SamplingRows { logits: &logits, slots: &zeros, positions: &zeros };
    let mut ctx = kernels.step_ctx(0)?;
    kernels.sampling().sample(&mut ctx, &state, &rows, &out)?;
    assert_eq!(ctx.read(&out)?.wait_as::<i32>()?, [0]);
    assert!(ctx.read(&logits)?.wait_as::<f32>()?.iter().all(|v| v.is_nan()));
    Ok(())
}

#[test]
fn a_panic_is_a_lost_device_and_not_a_hang() -> Result<()> {
    let kernels = testing::deferred(&with_norm(Fault::Panics));
    let (x, weight) = (ones(&kernels, &[1, 2]), ones(&kernels, &[2]));
    let mut ctx = kernels.step_ctx(0)?;
    kernels.norm().rms_norm(&mut ctx, &x, &weight, 1e-5, &x)?;
    let read = ctx.read(&x)?;
    let lost = |result: Result<()>| match result {
        Err(Error::DeviceLost { reason, .. }) => reason,
        other => panic!("{other:?} after a panic"),
    };
    assert!(lost(read.wait().map(drop)).contains("the kernel's own words"));
    assert!(lost(ctx.synchronize()).contains("the kernel's own words"));
    kernels.norm().add(&mut ctx, &x, &x)?;
    assert!(lost(ctx.synchronize()).contains("the kernel's own words"), "what is lost stays lost");
    assert_eq!(kernels.step_ctx(0)?.read(&x)?.wait_as::<f32>()?, [1.0; 2], "another queue works");
    Ok(())
}

#[test]
fn the_first_error_is_told_to_who_waits() -> Result<()> {
    let kernels = testing::deferred(&with_norm(Fault::Fails));
    let (x, weight) = (ones(&kernels, &[1, 2]), ones(&kernels, &[2]));
    let mut ctx = kernels.step_ctx(0)?;
    kernels.norm().rms_norm(&mut ctx, &x, &weight, 1e-5, &x)?;
    assert!(matches!(ctx.synchronize(), Err(Error::Unsupported { part: "norm", .. })));
    Ok(())
}

#[test]
fn a_layer_reads_its_activation_when_it_runs() -> Result<()> {
    let kernels = kernels();
    let data: Vec<u8> = [2.0f32, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let weight = HostWeight {
        name: "w",
        dtype: DType::F32,
        rows: 1,
        columns: 2,
        data: &data,
        scales: None,
        bias: Some(&[0.5]),
    };
    let layer = kernels.linear().pack(&[weight])?;
    let (x, out) = (ones(&kernels, &[1, 2]), ones(&kernels, &[1, 1]));
    let mut ctx = kernels.step_ctx(1 << 10)?;
    let graph = ctx.capture(|ctx| {
        let x: Activation = kernels.linear().activation(ctx, &x)?;
        layer.forward(ctx, &x, &out)
    })?;
    ctx.write(&x, &[10.0f32, 100.0])?;
    ctx.launch(graph.expect("the device has graphs").as_ref())?;
    assert_eq!(ctx.read(&out)?.wait_as::<f32>()?, [320.5]);
    Ok(())
}

#[derive(Clone, Copy)]
enum Fault {
    DoesNothing,
    Panics,
    Fails,
}

struct FaultyNorm(Fault, DeviceId);

fn with_norm(fault: Fault) -> Kernels {
    let inner = reference::kernels();
    let parts = inner.parts().clone();
    let norm = Arc::new(FaultyNorm(fault, inner.device().id()));
    Kernels::new(KernelParts { norm, ..parts }).expect("the same device")
}

impl Part for FaultyNorm {
    fn device(&self) -> DeviceId {
        self.1
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![]
    }
}

impl NormKernels for FaultyNorm {
    fn rms_norm(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: f32, _: &Tensor) -> Result<()> {
        match self.0 {
            Fault::DoesNothing => Ok(()),
            Fault::Panics => panic!("the kernel's own words"),
            Fault::Fails => {
                let (backend, what) = ("faulty".to_owned(), "anything".to_owned());
                Err(Error::Unsupported { backend, part: "norm", what })
            }
        }
    }

    fn add(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather_rows(&self, _: &mut StepCtx, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }
}
