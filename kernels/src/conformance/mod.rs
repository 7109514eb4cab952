//! One suite for every backend: each operation against the plain f64 formulas.
//!
//! ```
//! use quire_kernels::{conformance, reference};
//!
//! let mut report = conformance::Report::new(conformance::RowIndependence::Bitwise);
//! conformance::norm(&reference::kernels(), &mut report);
//! println!("{report}");
//! report.assert_ok();
//! ```
//!
//! Shapes are odd, empty, single and large; inputs and outputs are whole matrices and column slices; outputs and
//! everything around them hold NaN beforehand, and what lies around must still hold it afterwards; unused
//! cache slots hold NaN too, and unused entries of block tables lead nowhere. Calls run inside a step.
//!
//! A value passes within `absolute + relative · |reference|`, by dtype. Sums have terms that cancel, so for them the
//! relative part is of the sum of the terms' magnitudes. A [`Linear`](crate::Linear) that rounds its input says so
//! ([`input_precision`](crate::Linear::input_precision)) and is given the bound that follows: for 8-bit
//! integers half a step of each block, `max|x| / 254`, times the sum of the block's `|w|`.
//!
//! A kernel that the backend does not have ([`Unsupported`](crate::Error::Unsupported)) is listed in the report
//! and does not fail it.

mod attention;
mod bench;
mod elementwise;
mod fused;
mod linear;
mod logits;
mod moe;
mod queue;
mod report;
mod sampling;
mod swap;

pub use report::{OpReport, Report, RowIndependence, WorstError};

use bench::Bench;
use report::At;

use crate::{Kernels, Result};

/// Runs everything; rows must be independent bit for bit.
pub fn run(kernels: &Kernels) -> Report {
    run_with(kernels, RowIndependence::Bitwise)
}

/// Runs everything.
pub fn run_with(kernels: &Kernels, rows: RowIndependence) -> Report {
    let mut report = Report::new(rows);
    for check in [queue, swap, linear, norm, rope, activation, attention, fused, moe, sampling] {
        check(kernels, &mut report);
    }
    report
}

/// Writes, reads, row copies, order, captured steps.
pub fn queue(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "queue", queue::check);
}

/// Swapping of blocks, and its order among steps.
pub fn swap(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "swap", swap::check);
}

/// Linear layers of every weight dtype, merged ones, embedding.
pub fn linear(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "linear", linear::check);
}

/// Normalization, addition, gathering.
pub fn norm(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "norm", elementwise::check_norm);
}

/// Rotary position embedding.
pub fn rope(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "rope", elementwise::check_rope);
}

/// Gated activations.
pub fn activation(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "activation", elementwise::check_activation);
}

/// Paged attention.
pub fn attention(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "attention", attention::check);
}

/// Forms across parts: the fused ones where the backend has them, the plain compositions elsewhere.
pub fn fused(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "fused", fused::check);
}

/// Mixture of experts.
pub fn moe(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "moe", moe::check);
}

/// Sampling, penalties, log-probabilities.
pub fn sampling(kernels: &Kernels, report: &mut Report) {
    check(kernels, report, "sampling", |bench| {
        sampling::check(bench)?;
        logits::check(bench)
    });
}

/// Runs the checks of one part, each with generators seeded by its name alone.
fn check(
    kernels: &Kernels,
    report: &mut Report,
    part: &str,
    body: impl FnOnce(&mut Bench<'_>) -> Result<()>,
) {
    let seed = part.bytes().fold(0, |seed: u64, byte| seed << 8 ^ u64::from(byte));
    let outcome = Bench::new(kernels, report, seed).and_then(|mut bench| body(&mut bench));
    if let Err(error) = outcome {
        report.error(At { op: part, case: "set up" }, &error);
    }
}
