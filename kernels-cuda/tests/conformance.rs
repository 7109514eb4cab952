//! The conformance suite on a GPU.
#![cfg(feature = "cuda")]

mod gpu;

use quire_kernels::conformance::{self, RowIndependence};
use quire_kernels::{DType, Kernels};
use quire_kernels_cuda::{CudaConfig, kernels};

/// Runs the suite and prints what each operation missed by; on a machine without a GPU says that it does not.
fn check(activation_dtype: DType, deterministic: bool, rows: RowIndependence) {
    let Some(kernels) =
        gpu::open(|| kernels(CudaConfig { activation_dtype, deterministic, ..Default::default() }))
    else {
        return;
    };
    println!("{}", kernels.device().info().name);
    let report = run(&kernels, rows);
    println!("{report}");
    report.assert_ok();
}

fn run(kernels: &Kernels, rows: RowIndependence) -> conformance::Report {
    conformance::run_with(kernels, rows)
}

#[test]
fn bf16_activations_pass() {
    check(DType::BF16, false, RowIndependence::WithinTolerance);
}

#[test]
fn f16_activations_pass() {
    check(DType::F16, false, RowIndependence::WithinTolerance);
}

#[test]
fn rows_are_independent_bit_for_bit_in_the_deterministic_mode() {
    check(DType::BF16, true, RowIndependence::Bitwise);
}
