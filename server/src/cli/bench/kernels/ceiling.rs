//! What the device can do at most: bytes of a large copy, operations of a large dense product, the same in every run.

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

    // Neither the rows nor the shapes asked for: shares of small cases would be of a small product.
    let has_own_memory = bench.kernels.device().used_bytes().is_some();
    let (size, rows) = if has_own_memory { GPU_PRODUCT } else { CPU_PRODUCT };
    let product = Product::square(size).of_dtype(bench.activation_dtype());
    let (case, timing) = match Packed::new(bench, &product, 1) {
        Ok(packed) => (packed.case(bench, rows), packed.time(bench, rows)),
        Err(error) => (product.case(rows), Err(error)),
    };
    let case = Case { op: "ceiling", case: "product".to_owned(), ..case };
    let flops_per_s = timing.as_ref().ok().map(|timing| case.flops / timing.seconds.min);
    bench.tell(&case, timing)?;
    Ok(Ceilings { bytes_per_s, flops_per_s })
}

/// Size of the matrix and rows of the product that a GPU does its most at: a millisecond or some.
const GPU_PRODUCT: (usize, usize) = (8192, 8192);

/// The same of a processor: it is at its most much earlier, and slower.
const CPU_PRODUCT: (usize, usize) = (2048, 512);

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
