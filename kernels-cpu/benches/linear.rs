//! Linear layers of the shapes of SmolLM2-135M: `[1536, 576]`, in turn over 64 MB of weights, as in a model.
//!
//! `decode/q4_1` is one row of activations: bound by how fast weights come in. Before it runs, its rate is printed
//! beside the one at which plain loads read memory. `prefill/q4_1` is 128 rows: bound by arithmetic; its elements
//! are multiply-adds.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use quire_kernels::{Activation, DType, HostWeight, Kernels, Linear, Result, StepCtx, Tensor, quant};
use quire_kernels_cpu::{CpuConfig, kernels};

const ROWS: usize = 1536;
const WEIGHT_BYTES: usize = 64 << 20;
const DTYPES: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

/// Layers of one dtype, and an input for them.
struct Bench {
    layers: Vec<Box<dyn Linear>>,
    ctx: StepCtx,
    x: Activation,
    out: Tensor,
    next: usize,
}

impl Bench {
    fn new(kernels: &Kernels, dtype: DType, num_tokens: usize) -> Result<Self> {
        // Rows of whole superblocks for those dtypes that have them.
        let columns = if dtype.block_len() == 256 { 512 } else { 576 };
        let data = quant::encode(dtype, &waves(ROWS * columns));
        let weight =
            HostWeight { name: "w", dtype, rows: ROWS, columns, data: &data, scales: None, bias: None };
        let pack = |_| kernels.linear().pack(&[weight]);
        let layers = (0..WEIGHT_BYTES.div_ceil(data.len())).map(pack).collect::<Result<Vec<_>>>()?;
        let mut ctx = kernels.step_ctx(kernels.linear().activation_bytes(num_tokens, columns))?;
        let x = kernels.upload(DType::F32, &[num_tokens, columns], &waves(num_tokens * columns))?;
        let x = kernels.linear().activation(&mut ctx, &x)?;
        let out = kernels.upload(DType::F32, &[num_tokens, ROWS], &vec![0f32; num_tokens * ROWS])?;
        Ok(Self { layers, ctx, x, out, next: 0 })
    }

    /// One product; returns the layer's bytes.
    fn run(&mut self) -> usize {
        let layer = &self.layers[self.next];
        self.next = (self.next + 1) % self.layers.len();
        layer.forward(&mut self.ctx, &self.x, &self.out).expect("the device works");
        layer.num_bytes()
    }

    /// Bytes a nanosecond in the best of some passes over all layers.
    fn bytes_per_ns(&mut self) -> f64 {
        best_of(10, || (0..self.layers.len()).map(|_| self.run()).sum())
    }
}

fn waves(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// The best rate of some passes, each of which says how many bytes it was.
fn best_of(passes: usize, mut pass: impl FnMut() -> usize) -> f64 {
    let rate = |_| {
        let start = Instant::now();
        pass() as f64 / start.elapsed().as_nanos() as f64
    };
    (0..passes).map(rate).fold(0.0, f64::max)
}

/// Bytes a nanosecond that plain loads read, on as many threads as the backend has.
fn read_bytes_per_ns() -> f64 {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let words = vec![1u64; WEIGHT_BYTES / 8];
    let sum = |words: &[u64]| words.iter().fold(0u64, |sum, &word| sum.wrapping_add(word));
    best_of(10, || {
        thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(threads)) {
                scope.spawn(move || black_box(sum(black_box(part))));
            }
        });
        WEIGHT_BYTES
    })
}

fn decode(criterion: &mut Criterion) {
    let kernels = kernels(CpuConfig::default()).expect("the backend opens");
    let ceiling = read_bytes_per_ns();
    let mut group = criterion.benchmark_group("decode");
    for dtype in DTYPES {
        let mut bench = Bench::new(&kernels, dtype, 1).expect("the layers fit");
        let rate = bench.bytes_per_ns();
        println!("decode/{dtype}: {rate:.1} of {ceiling:.1} GB/s, {:.0} %", 100.0 * rate / ceiling);
        group.throughput(Throughput::Bytes(bench.layers[0].num_bytes() as u64));
        group.bench_function(BenchmarkId::from_parameter(dtype), |b| b.iter(|| bench.run()));
    }
}

fn prefill(criterion: &mut Criterion) {
    let kernels = kernels(CpuConfig::default()).expect("the backend opens");
    let mut group = criterion.benchmark_group("prefill");
    for dtype in DTYPES {
        let mut bench = Bench::new(&kernels, dtype, 128).expect("the layers fit");
        let products = 128 * ROWS * bench.layers[0].in_features();
        group.throughput(Throughput::Elements(products as u64));
        group.bench_function(BenchmarkId::from_parameter(dtype), |b| b.iter(|| bench.run()));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = decode, prefill
}
criterion_main!(benches);
