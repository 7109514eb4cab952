//! What the device can do at most: bytes of a large copy, operations of a large dense product.

use quire_kernels::{DType, Result as KernelResult, StepCtx, Tensor};

use super::linear::{Packed, Product};
use super::random;
use super::report::Case;
use super::timer::{Timing, Work};
use super::{KernelBench, ROTATED_BYTES};
use crate::error::Result;

/// Rates of the best round, that others are a share of; `None` before they are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ceilings {
    pub(super) bytes_per_s: Option<f64>,
    pub(super) flops_per_s: Option<f64>,
}

pub(super) fn measure(bench: &KernelBench<'_>) -> Result<Ceilings> {
    let case = Case {
        op: "ceiling",
        case: "copy".to_owned(),
        dtype: DType::U8.to_string(),
        rows: 2 * NUM_PIECES,
        bytes: 2 * ROTATED_BYTES,
        ..Case::default()
    };
    let copy = time_copy(bench);
    let bytes_per_s = copy.as_ref().ok().map(|timing| case.bytes as f64 / timing.seconds.min);
    bench.tell(&case, copy)?;

    let rows = bench.args.rows.iter().copied().max().unwrap_or(1);
    let product = Product::gate_up(&bench.shapes).of_dtype(bench.activation_dtype());
    let (case, timing) = match Packed::new(bench, &product, 1) {
        Ok(packed) => (packed.case(bench, rows), packed.time(bench, rows)),
        Err(error) => (product.case(rows), Err(error)),
    };
    let case = Case { op: "ceiling", case: "product".to_owned(), ..case };
    let flops_per_s = timing.as_ref().ok().map(|timing| case.flops / timing.seconds.min);
    bench.tell(&case, timing)?;
    Ok(Ceilings { bytes_per_s, flops_per_s })
}

/// Rows that a copy copies.
const NUM_PIECES: usize = 4;

/// Copies one half of a tensor to the other.
struct Copy {
    tensor: Tensor,
    pairs: Vec<(u32, u32)>,
}

impl Work for Copy {
    fn call(&self, ctx: &mut StepCtx, _: usize) -> KernelResult<()> {
        ctx.queue().copy_rows(&self.tensor, &self.pairs)
    }

    /// The pairs come from the host.
    fn is_capturable(&self) -> bool {
        false
    }
}

fn time_copy(bench: &KernelBench<'_>) -> KernelResult<Timing> {
    let dims = [2 * NUM_PIECES, ROTATED_BYTES / NUM_PIECES];
    let tensor = random::outputs(&bench.kernels, 1, DType::U8, &dims)?.remove(0);
    let pairs = (0..NUM_PIECES as u32).map(|piece| (piece, piece + NUM_PIECES as u32)).collect();
    bench.timer.time(&mut bench.kernels.step_ctx(0)?, &Copy { tensor, pairs })
}
