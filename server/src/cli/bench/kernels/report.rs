//! A line a case. The fields are an interface: programs read them.

use std::io;

use quire_kernels::Error as KernelError;
use serde::Serialize;

use super::KernelBench;
use super::timer::Timing;
use crate::cli::bench::spread::Spread;
use crate::cli::output::write_line;
use crate::error::Result;

/// What was timed, and what it has to do at least.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Case {
    pub(super) op: &'static str,
    pub(super) case: String,
    /// What weights, keys or logits are stored in.
    pub(super) dtype: String,
    /// Tokens, or sequences that decode or are sampled.
    pub(super) rows: usize,
    /// Tokens in the cache of each sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<String>,
    /// Bytes that must come from memory or go to it.
    pub(super) bytes: usize,
    /// Multiplications and additions.
    pub(super) flops: f64,
}

#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    device: &'a str,
    shapes: &'a str,
    activation_dtype: &'static str,
    #[serde(flatten)]
    case: &'a Case,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Timed(Rates),
    Skipped { skipped: String },
}

#[derive(Serialize)]
struct Rates {
    us: Spread,
    gb_per_s: f64,
    tflops: f64,
    /// Of the copy's bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_copy: Option<f64>,
    /// Of the product's operations a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_product: Option<f64>,
    calls_per_round: usize,
    rounds: usize,
    captured: bool,
}

impl KernelBench<'_> {
    /// Prints what came of a case. One that the device cannot do, or has no memory for, is skipped.
    pub(super) fn tell(&self, case: &Case, timing: Result<Timing, KernelError>) -> Result<()> {
        let outcome = match timing {
            Ok(timing) => Outcome::Timed(self.rates(case, &timing)),
            Err(
                error @ (KernelError::Unsupported { .. }
                | KernelError::OutOfMemory { .. }
                | KernelError::Weight { .. }),
            ) => Outcome::Skipped { skipped: error.to_string() },
            Err(error) => return Err(error.into()),
        };
        let info = self.kernels.device().info();
        let line = Line {
            bench: "kernels",
            device: &info.name,
            shapes: &self.shapes.name,
            activation_dtype: info.activation_dtype.name(),
            case,
            outcome,
        };
        write_line(&mut io::stdout().lock(), &line)
    }

    /// Times a case and prints what came of it; one whose tensors take more memory than a case may is left out, before
    /// any of them is made.
    pub(super) fn measure(
        &self,
        case: &Case,
        num_bytes: usize,
        time: impl FnOnce() -> Result<Timing, KernelError>,
    ) -> Result<()> {
        if num_bytes > self.memory_bytes() { self.skip(case, num_bytes) } else { self.tell(case, time()) }
    }

    /// Says that a case was left out.
    pub(super) fn skip(&self, case: &Case, wanted_bytes: usize) -> Result<()> {
        let free_bytes = self.memory_bytes();
        let device = self.kernels.device().info().name.clone();
        self.tell(case, Err(KernelError::OutOfMemory { device, wanted_bytes, free_bytes }))
    }

    fn rates(&self, case: &Case, timing: &Timing) -> Rates {
        let Spread { median, min, max } = timing.seconds;
        let us = Spread { median: 1e6 * median, min: 1e6 * min, max: 1e6 * max };
        let (bytes_per_s, flops_per_s) = (case.bytes as f64 / median, case.flops / median);
        let ceilings = &self.ceilings;
        Rates {
            us,
            gb_per_s: bytes_per_s / 1e9,
            tflops: flops_per_s / 1e12,
            share_of_copy: ceilings.bytes_per_s.map(|ceiling| bytes_per_s / ceiling),
            share_of_product: ceilings.flops_per_s.map(|ceiling| flops_per_s / ceiling),
            calls_per_round: timing.num_calls,
            rounds: timing.num_rounds,
            captured: timing.is_captured,
        }
    }
}
