//! One row of logits over the vocabularies of SmolLM2 and Qwen2.5, on one core.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quire_kernels::{
    DType, Kernels, LogprobsOut, Result, SamplingRows, SamplingState, StepCtx, Tensor, TokenValues,
};
use quire_kernels_cpu::{CpuConfig, kernels};

/// Parameters of the row.
#[derive(Clone, Copy)]
struct Parameters {
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
}

const PLAIN: Parameters = Parameters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };

const CASES: [(&str, Parameters); 6] = [
    ("greedy", Parameters { temperature: 0.0, ..PLAIN }),
    ("temperature", PLAIN),
    ("top_p", Parameters { top_p: 0.9, ..PLAIN }),
    ("top_k", Parameters { top_k: 50, ..PLAIN }),
    ("top_k_top_p", Parameters { top_k: 50, top_p: 0.9, ..PLAIN }),
    ("min_p", Parameters { min_p: 0.05, ..PLAIN }),
];

struct Bench {
    kernels: Kernels,
    ctx: StepCtx,
    logits: Tensor,
    zeros: Tensor,
    out: Tensor,
}

impl Bench {
    fn new(vocab_size: usize) -> Result<Self> {
        let kernels = kernels(CpuConfig { threads: Some(1), ..CpuConfig::default() })?;
        let ctx = kernels.step_ctx(0)?;
        let i32s = |value: i32| kernels.upload(DType::I32, &[1], &[value]);
        let (zeros, out) = (i32s(0)?, i32s(0)?);
        let logits = kernels.upload(DType::F32, &[1, vocab_size], &logits(vocab_size))?;
        Ok(Self { kernels, ctx, logits, zeros, out })
    }

    fn state(&mut self, p: Parameters) -> Result<SamplingState> {
        let state = SamplingState::new(self.kernels.device().as_ref(), 1, self.logits.num_columns())?;
        for (column, value) in
            [(&state.temperature, p.temperature), (&state.top_p, p.top_p), (&state.min_p, p.min_p)]
        {
            self.ctx.write(column, &[value])?;
        }
        self.ctx.write(&state.top_k, &[p.top_k])?;
        Ok(state)
    }

    fn sample(&mut self, state: &SamplingState) -> Result<()> {
        let rows = SamplingRows { logits: &self.logits, slots: &self.zeros, positions: &self.zeros };
        self.kernels.sampling().sample(&mut self.ctx, state, &rows, &self.out)
    }
}

/// Logits as a model's are: a few high ones, a thick middle.
fn logits(vocab_size: usize) -> Vec<f32> {
    let uniform = |i: usize| {
        let hash = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        (hash as f32 + 0.5) / (1u64 << 24) as f32
    };
    (0..vocab_size).map(|i| -2.0 * uniform(i).ln() + 3.0 * (uniform(i + vocab_size) - 0.5)).collect()
}

fn sampling(c: &mut Criterion) {
    for vocab_size in [49_152, 151_936] {
        let mut bench = Bench::new(vocab_size).expect("a row");
        let mut group = c.benchmark_group("sample");
        for (name, parameters) in CASES {
            let state = bench.state(parameters).expect("a state");
            group.bench_function(BenchmarkId::new(name, vocab_size), |b| {
                b.iter(|| bench.sample(&state).expect("a token"));
            });
        }
        group.finish();
        logprobs(c, bench);
    }
}

fn logprobs(c: &mut Criterion, mut bench: Bench) {
    let vocab_size = bench.logits.num_columns();
    for num_top in [0, 20] {
        let tensor = |dtype| bench.kernels.upload(dtype, &[1, 1 + num_top], &vec![0u32; 1 + num_top]);
        let (token_ids, logprobs) = (tensor(DType::I32).expect("ids"), tensor(DType::F32).expect("values"));
        let values = TokenValues::Logprobs;
        let out = LogprobsOut { values, token_ids: &token_ids, logprobs: &logprobs, ranks: &bench.out };
        c.bench_function(&format!("logprobs/{num_top}/{vocab_size}"), |b| {
            b.iter(|| {
                let sampling = bench.kernels.sampling();
                sampling
                    .logprobs(&mut bench.ctx, &bench.logits, &bench.zeros, &out)
                    .expect("log-probabilities");
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = sampling
}
criterion_main!(benches);
