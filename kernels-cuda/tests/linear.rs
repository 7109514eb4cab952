//! Linear layers on a GPU: the conformance suite's, and shapes of real models on every path.
#![cfg(feature = "cuda")]

mod gpu;

use quire_kernels::conformance::{self, RowIndependence};
use quire_kernels::{DType, HostWeight, Kernels, Result, StepCtx, Tensor, quant};
use quire_kernels_cuda::{CudaConfig, kernels};

fn open(activation_dtype: DType, deterministic: bool) -> Option<Kernels> {
    gpu::open(|| kernels(CudaConfig { activation_dtype, deterministic, ..Default::default() }))
}

fn check_conformance(activation_dtype: DType, deterministic: bool, rows: RowIndependence) {
    let Some(kernels) = open(activation_dtype, deterministic) else { return };
    let mut report = conformance::Report::new(rows);
    conformance::linear(&kernels, &mut report);
    println!("{activation_dtype} deterministic {deterministic}\n{report}");
    report.assert_ok();
}

#[test]
fn bf16_conforms() {
    check_conformance(DType::BF16, false, RowIndependence::WithinTolerance);
}

#[test]
fn f16_conforms() {
    check_conformance(DType::F16, false, RowIndependence::WithinTolerance);
}

#[test]
fn deterministic_rows_are_independent_bit_for_bit() {
    check_conformance(DType::BF16, true, RowIndependence::Bitwise);
    check_conformance(DType::F16, true, RowIndependence::Bitwise);
}

/// Reproducible values, roughly normal.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (uniform() + uniform() + uniform()) * 2.0).collect()
}

/// Runs a layer on `num_tokens` rows of `x`.
fn forward(kernels: &Kernels, weight: &HostWeight<'_>, x: &[f32], out_dtype: DType) -> Result<Vec<f32>> {
    let dtype = kernels.device().info().activation_dtype;
    let layer = kernels.linear().pack(&[*weight])?;
    let num_tokens = x.len() / weight.columns;
    let x = kernels.upload(dtype, &[num_tokens, weight.columns], &quant::encode(dtype, x))?;
    let mut ctx = kernels.step_ctx(64 << 20)?;
    let num_bytes = out_dtype.bytes_for(num_tokens * weight.rows).expect("plain elements");
    let out = Tensor::new(kernels.device().allocate(num_bytes)?, 0, out_dtype, &[num_tokens, weight.rows]);
    ctx.write(&out, &vec![0xffu8; num_bytes])?;
    ctx.step(|ctx: &mut StepCtx| {
        let activation = kernels.linear().activation(ctx, &x)?;
        layer.forward(ctx, &activation, &out)
    })?;
    Ok(quant::decode(out_dtype, &ctx.read(&out)?.wait()?))
}

/// ‖out − reference‖ / ‖reference‖ over the tokens.
fn relative_error(weight: &[f32], x: &[f32], columns: usize, bias: Option<&[f32]>, out: &[f32]) -> f64 {
    let rows = weight.len() / columns;
    let (mut error, mut norm) = (0.0, 0.0);
    for (x, out) in x.chunks(columns).zip(out.chunks(rows)) {
        for (r, (w, &out)) in weight.chunks(columns).zip(out).enumerate() {
            let dot: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let expected = dot + bias.map_or(0.0, |bias| f64::from(bias[r]));
            error += (expected - f64::from(out)).powi(2);
            norm += expected * expected;
        }
    }
    (error / norm).sqrt()
}

#[test]
fn shapes_of_models_are_right_for_every_number_of_tokens() {
    for deterministic in [false, true] {
        let Some(kernels) = open(DType::BF16, deterministic) else { return };
        for (dtype, rows, columns, bias) in [
            (DType::BF16, 1152, 896, true),
            (DType::BF16, 896, 4864, false),
            (DType::BF16, 4608, 1024, true),
            (DType::BF16, 18_000, 128, false),
            (DType::Q4K, 1152, 1024, true),
            (DType::Q6K, 896, 4864, false),
            (DType::Q8_0, 18_000, 160, false),
        ] {
            let data = quant::encode(dtype, &values(rows * columns, 1));
            let weights = quant::decode(dtype, &data);
            let bias: Option<Vec<f32>> =
                bias.then(|| quant::decode(DType::BF16, &quant::encode(DType::BF16, &values(rows, 3))));
            let bias = bias.as_deref();
            let weight = HostWeight { name: "w", dtype, rows, columns, data: &data, scales: None, bias };
            for (num_tokens, out) in [
                (1, DType::BF16),
                (8, DType::F32),
                (13, DType::BF16),
                (32, DType::F32),
                (33, DType::BF16),
                (64, DType::F32),
                (130, DType::BF16),
            ] {
                let x = quant::encode(DType::BF16, &values(num_tokens * columns, 7));
                let x = quant::decode(DType::BF16, &x);
                let got = forward(&kernels, &weight, &x, out).unwrap();
                // Every tenth token: the reference is slow.
                let some =
                    |v: &[f32], n: usize| v.chunks(n).step_by(10).flatten().copied().collect::<Vec<_>>();
                let error = relative_error(&weights, &some(&x, columns), columns, bias, &some(&got, rows));
                println!("{dtype} [{rows}, {columns}] x {num_tokens} to {out}: {error:.1e}");
                // Weights of block types are rounded to bf16 for many tokens; outputs to theirs.
                assert!(error < 5e-3, "{dtype} [{rows}, {columns}] x {num_tokens} to {out}: {error:e}");
            }
        }
    }
}
