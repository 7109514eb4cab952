//! The conformance suite on a GPU. `QUIRE_TEST_PARTS=norm,rope` runs some of it, `QUIRE_TEST_SHARE=3/25` the third of 25
//! shares of attention's shapes: under a tool that watches memory the whole takes minutes.
#![cfg(feature = "cuda")]

mod gpu;

use quire_kernels::conformance::{self, Report, RowIndependence};
use quire_kernels::{DType, Kernels, testing};
use quire_kernels_cuda::{CudaConfig, kernels};

const BF16: CudaConfig = CudaConfig { ordinal: 0, activation_dtype: DType::BF16, deterministic: false };

/// The checks of a part of the backend.
type Check = fn(&Kernels, &mut Report);

const PARTS: [(&str, Check); 9] = [
    ("queue", conformance::queue),
    ("swap", conformance::swap),
    ("linear", conformance::linear),
    ("norm", conformance::norm),
    ("rope", conformance::rope),
    ("activation", conformance::activation),
    ("attention", conformance::attention),
    ("fused", conformance::fused),
    ("sampling", conformance::sampling),
];

/// Runs the suite and prints how far each operation was off; on a machine without a GPU says that it does not.
fn check(config: CudaConfig, rows: RowIndependence, wrap: impl FnOnce(&Kernels) -> Kernels) {
    let Some(kernels) = gpu::open(|| kernels(config)) else { return };
    println!("{}", kernels.device().info().name);
    let (share, num_shares) = share();
    let (kernels, mut report) = (wrap(&kernels), Report::new(rows).with_share(share, num_shares));
    let chosen = std::env::var("QUIRE_TEST_PARTS").ok();
    let is_chosen = |part: &str| chosen.as_ref().is_none_or(|parts| parts.split(',').any(|p| p == part));
    for (part, check) in PARTS {
        if is_chosen(part) {
            check(&kernels, &mut report);
        }
    }
    println!("{report}");
    report.assert_ok();
}

/// The share that `QUIRE_TEST_SHARE` asks for, counted from 0, and of how many.
fn share() -> (usize, usize) {
    let Ok(text) = std::env::var("QUIRE_TEST_SHARE") else { return (0, 1) };
    let (share, num_shares) = text.split_once('/').expect("QUIRE_TEST_SHARE is like 3/25");
    let (share, num_shares): (usize, usize) =
        (share.parse().expect("a share's number"), num_shares.parse().expect("a number of shares"));
    assert!((1..=num_shares).contains(&share), "share {share} of {num_shares}");
    (share - 1, num_shares)
}

#[test]
fn bf16_activations_pass() {
    check(BF16, RowIndependence::WithinTolerance, Kernels::clone);
}

#[test]
fn f16_activations_pass() {
    let config = CudaConfig { activation_dtype: DType::F16, ..BF16 };
    check(config, RowIndependence::WithinTolerance, Kernels::clone);
}

#[test]
fn rows_are_independent_bit_for_bit_in_the_deterministic_mode() {
    let config = CudaConfig { deterministic: true, ..BF16 };
    check(config, RowIndependence::Bitwise, Kernels::clone);
}

/// Work runs on another thread, outputs hold NaN until somebody waits, and a step that allocates fails.
#[test]
fn an_asynchronous_device_around_it_passes() {
    check(BF16, RowIndependence::WithinTolerance, testing::deferred);
}
