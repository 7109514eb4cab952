//! Measuring the algorithms that cuBLASLt offers.
//!
//! A product is recorded several times in one graph, each time with other weights, so that no cache holds them, as in a
//! model's step; the time is the median of some launches of the graph. What the first answer takes is measured again
//! beside the best, turn by turn, before a better one is believed.

use std::sync::Arc;
use std::time::Duration;

use quire_kernels::{
    DType, Device as _, Error as KernelError, Graph, Result as KernelResult, StepCtx, Tensor,
};

use crate::cublaslt::{Algorithm, CublasLt, Matrices, Shape, WORKSPACE_BYTES};
use crate::device::CudaDevice;
use crate::launch::stream;
use crate::memory::address;
use crate::{CudaConfig, Error, KernelTuning, ProductShape, TuneOptions, TunedProduct};

/// What weights are gone through in turn, at least: more than the caches of any device.
const ROTATED_BYTES: usize = 512 << 20;

/// Calls in a graph.
const NUM_CALLS: std::ops::RangeInclusive<usize> = 4..=64;

/// What a launch of a graph aims at.
const GRAPH_TIME: f64 = 2e-3;

/// A better algorithm takes at most this share of the time of the first answer.
const BETTER: f64 = 0.98;

/// Measures every product.
pub(crate) fn tune(
    config: CudaConfig,
    products: &[ProductShape],
    options: TuneOptions,
    tell: &mut dyn FnMut(&ProductShape, Option<&TunedProduct>),
) -> Result<KernelTuning, Error> {
    let device = CudaDevice::open(config)?;
    device.set_current()?;
    let library = CublasLt::open()?;
    let mut tuning = library.describe(&device);
    let mut bench = Bench::new(&device, library, products, options)?;
    for product in products {
        let tuned = bench.tune(product)?;
        tell(product, tuned.as_ref());
        tuning.products.extend(tuned);
    }
    Ok(tuning)
}

impl CublasLt {
    /// What a file for this library on this device says of both.
    pub(crate) fn describe(&self, device: &CudaDevice) -> KernelTuning {
        let name = device.context().properties().name.clone();
        KernelTuning::new(name, device.compute_capability(), device.num_sms(), self.version())
    }
}

impl From<ProductShape> for Shape {
    fn from(product: ProductShape) -> Self {
        let ProductShape { rows, columns, num_tokens, dtype, out_dtype, has_bias } = product;
        Self { rows, columns, num_tokens, dtype, out_dtype, has_bias }
    }
}

struct Bench {
    library: CublasLt,
    options: TuneOptions,
    ctx: StepCtx,
    weights: Tensor,
    x: Tensor,
    out: Tensor,
    bias: Tensor,
    workspace: Tensor,
}

impl Bench {
    fn new(
        device: &Arc<CudaDevice>,
        library: CublasLt,
        products: &[ProductShape],
        options: TuneOptions,
    ) -> KernelResult<Self> {
        let most = |bytes: fn(&ProductShape) -> usize| products.iter().map(bytes).max().unwrap_or(0);
        let memory = |num_bytes: usize| {
            let num_bytes = num_bytes.next_multiple_of(PATTERN_BYTES);
            Ok(Tensor::new(device.allocate(num_bytes)?, 0, DType::U8, &[num_bytes]))
        };
        let mut bench = Self {
            weights: memory(most(weight_bytes).max(ROTATED_BYTES))?,
            x: memory(most(|p| 2 * p.num_tokens * p.columns))?,
            out: memory(most(|p| 4 * p.num_tokens * p.rows))?,
            bias: memory(most(|p| 4 * p.rows))?,
            workspace: memory(WORKSPACE_BYTES)?,
            ctx: StepCtx::new(device.as_ref(), 0)?,
            library,
            options,
        };
        let pattern = pattern(device.activation_dtype());
        for tensor in [bench.weights.clone(), bench.x.clone(), bench.bias.clone()] {
            for start in (0..tensor.num_elements()).step_by(PATTERN_BYTES) {
                bench.ctx.write(&tensor.rows(start, start + PATTERN_BYTES), &pattern)?;
            }
        }
        bench.ctx.synchronize()?;
        Ok(bench)
    }

    /// Something faster than the first answer, if there is.
    fn tune(&mut self, product: &ProductShape) -> KernelResult<Option<TunedProduct>> {
        let shape = Shape::from(*product);
        let candidates = self.library.candidates(shape, self.options.max_candidates.max(1));
        let Some(first) = candidates.first().copied() else { return Ok(None) };
        let mut best: Option<(Duration, Algorithm)> = None;
        for algorithm in candidates {
            // One that the library refuses after all is none.
            let Some(graph) = self.record(shape, &algorithm)? else { continue };
            let time = self.time(&graph)?;
            best = Some((time, algorithm)).into_iter().chain(best).min_by_key(|(time, _)| *time);
        }
        let Some((_, best)) = best.filter(|(_, best)| *best != first) else { return Ok(None) };
        let Some([before, after]) = self.compare(shape, [first, best])? else { return Ok(None) };
        if after.as_secs_f64() > before.as_secs_f64() * BETTER {
            return Ok(None);
        }
        let microseconds = |time: Duration| (time.as_secs_f64() * 1e9).round() / 1e3;
        Ok(Some(TunedProduct {
            product: *product,
            algo: best.algo.0,
            algorithm: self.library.name(&best).to_string(),
            first_answer: self.library.name(&first).to_string(),
            before_us: microseconds(before),
            after_us: microseconds(after),
        }))
    }

    /// The times of two algorithms, measured turn by turn.
    fn compare(&mut self, shape: Shape, pair: [Algorithm; 2]) -> KernelResult<Option<[Duration; 2]>> {
        let [Some(first), Some(second)] = [self.record(shape, &pair[0])?, self.record(shape, &pair[1])?]
        else {
            return Ok(None);
        };
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            times[0].push(self.time(&first)?);
            times[1].push(self.time(&second)?);
        }
        Ok(Some(times.map(median)))
    }

    /// A graph of calls; `None` where the library refuses.
    fn record(&mut self, shape: Shape, algorithm: &Algorithm) -> KernelResult<Option<Recorded>> {
        let num_calls = num_calls(&shape);
        let (mut refused, mut offset) = (None, 0);
        let [x, out, bias, workspace] = [&self.x, &self.out, &self.bias, &self.workspace].map(address);
        let (weights, size) = (&self.weights, (2 * shape.rows * shape.columns).next_multiple_of(256));
        let library = &self.library;
        let graph = self.ctx.capture(|ctx| {
            for _ in 0..num_calls {
                offset = if offset + size > weights.num_elements() { 0 } else { offset };
                let matrices = Matrices {
                    weight: (address(weights) + offset as u64, shape.columns),
                    x: (x, shape.columns),
                    out: (out, shape.rows),
                    bias,
                };
                offset += size;
                let stream = stream(ctx)?;
                // SAFETY: the memory was made for the largest product; the workspace for any algorithm.
                let status = unsafe { library.multiply(stream, shape, matrices, algorithm, workspace) };
                refused = refused.or(status.err());
            }
            Ok(())
        });
        match (refused, graph) {
            (Some(_), _) => Ok(None),
            (None, graph) => Ok(graph?.map(|graph| Recorded { graph, num_calls })),
        }
    }

    /// The median of a call.
    fn time(&mut self, recorded: &Recorded) -> KernelResult<Duration> {
        self.ctx.launch(recorded.graph.as_ref())?;
        let mut times = Vec::new();
        for _ in 0..self.options.num_rounds.max(1) {
            let start = self.ctx.queue().mark()?;
            self.ctx.launch(recorded.graph.as_ref())?;
            let end = self.ctx.queue().mark()?;
            self.ctx.synchronize()?;
            let time = start.zip(end).and_then(|(start, end)| end.since(start.as_ref()));
            times.push(time.ok_or_else(no_clock)? / recorded.num_calls as u32);
        }
        Ok(median(times))
    }
}

/// Calls of one algorithm.
struct Recorded {
    graph: Box<dyn Graph>,
    num_calls: usize,
}

fn no_clock() -> KernelError {
    KernelError::DeviceLost { device: "cuda".to_owned(), reason: "no time between two marks".to_owned() }
}

fn weight_bytes(product: &ProductShape) -> usize {
    2 * product.rows * product.columns
}

/// As many as take some time, by what the fastest device needs for one.
fn num_calls(shape: &Shape) -> usize {
    let elements = shape.rows as f64 * shape.columns as f64;
    let (bytes, flops) = (2.0 * elements, 2.0 * elements * shape.num_tokens as f64);
    let least = (bytes / 4e12).max(flops / 7e14);
    ((GRAPH_TIME / least) as usize).clamp(*NUM_CALLS.start(), *NUM_CALLS.end())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Bytes that memory is filled with, over and over.
const PATTERN_BYTES: usize = 1 << 20;

/// Values like those of a model: what a device's clock does depends on them.
fn pattern(dtype: DType) -> Vec<u8> {
    let uniform = |i: usize, draw| {
        let word = quire_kernels::random::philox4x32([i as u32, draw, 0, 0], [7, 0])[0];
        (f64::from(word) + 0.5) / 4_294_967_296.0
    };
    let normal = |i| (-2.0 * uniform(i, 0).ln()).sqrt() * (std::f64::consts::TAU * uniform(i, 1)).cos();
    let values: Vec<f32> = (0..PATTERN_BYTES / 2).map(|i| 0.05 * normal(i) as f32).collect();
    quire_kernels::quant::encode(dtype, &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_filled_with_small_values() {
        let bytes = pattern(DType::BF16);
        assert_eq!(bytes.len(), PATTERN_BYTES);
        let values = quire_kernels::quant::decode(DType::BF16, &bytes);
        let rms = (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt();
        assert!((0.045..0.055).contains(&rms), "{rms}");
    }

    #[test]
    fn small_products_are_called_more_often() {
        let shape = |num_tokens| Shape {
            rows: 4608,
            columns: 3584,
            num_tokens,
            dtype: DType::BF16,
            out_dtype: DType::BF16,
            has_bias: false,
        };
        assert_eq!((num_calls(&shape(64)), num_calls(&shape(1 << 20))), (64, 4));
        assert!((4..64).contains(&num_calls(&shape(2048))));
    }
}
