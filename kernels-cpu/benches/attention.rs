//! Attention of one layer of SmolLM2-135M: 9 query heads, 3 key and value heads of 64 elements, blocks of 16.
//!
//! `decode/f32/512` is one query over 512 cached tokens, `prefill/f32/512` are 512 queries over themselves.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use quire_kernels::{
    AttentionArgs, DType, Kernels, KvGroupSpec, KvKind, KvLayer, KvScales, Limits, Result, ShapeKey,
    StepBuffers, StepCtx, StepRows, Tensor, write_head,
};
use quire_kernels_cpu::{CpuConfig, kernels};

const NUM_HEADS: usize = 9;
const NUM_KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const BLOCK_SIZE: usize = 16;

/// One row, all of whose tokens are cached.
struct Bench {
    kernels: Kernels,
    ctx: StepCtx,
    kv: KvLayer,
    buffers: StepBuffers,
    len: usize,
}

impl Bench {
    fn new(dtype: DType, len: usize) -> Result<Self> {
        let kernels = kernels(CpuConfig::default())?;
        let limits = Limits {
            max_num_batched_tokens: len,
            max_num_seqs: 1,
            max_model_len: len,
            block_size: BLOCK_SIZE,
        };
        let mut ctx = kernels.step_ctx(kernels.scratch_bytes(&limits))?;
        let spec = KvGroupSpec {
            layers: vec![0],
            kind: KvKind::Full,
            num_kv_heads: NUM_KV_HEADS,
            head_dim: HEAD_DIM,
            dtype,
        };
        let layout = kernels.attention().kv_layout(&spec, BLOCK_SIZE)?;
        let num_blocks = limits.max_blocks_per_row();
        let num_bytes = num_blocks * layout.block_bytes;
        let blocks = kernels.upload(DType::U8, &[num_blocks, layout.block_bytes], &vec![0u8; num_bytes])?;
        let buffers = StepBuffers::new(kernels.device().as_ref(), &limits)?;
        let kv = KvLayer { blocks, layout, scales: KvScales::ONE };
        write_head(&mut ctx, &buffers.slot_mapping, &(0..len as i32).collect::<Vec<_>>())?;
        write_head(&mut ctx, &buffers.seq_lens, &[len as i32])?;
        ctx.write(&buffers.block_tables, &(0..num_blocks as i32).collect::<Vec<_>>())?;
        let (k, v) = (matrix(&kernels, len, NUM_KV_HEADS)?, matrix(&kernels, len, NUM_KV_HEADS)?);
        kernels.attention().write_kv(&mut ctx, &k, &v, &kv, &buffers.slot_mapping)?;
        Ok(Self { kernels, ctx, kv, buffers, len })
    }

    /// The last `num_queries` tokens attend.
    fn forward(&mut self, num_queries: usize) -> Result<impl FnMut() -> Result<()>> {
        write_head(&mut self.ctx, &self.buffers.query_start, &[0, num_queries as i32])?;
        let key =
            ShapeKey { num_tokens: num_queries, num_rows: 1, max_query_len: num_queries, num_logits: 0 };
        let rows = StepRows { query_start: vec![0, num_queries as i32], seq_lens: vec![self.len as i32] };
        let plan = self.kernels.attention().plan(&mut self.ctx, key, &rows, &self.kv.layout)?;
        let (q, out) =
            (matrix(&self.kernels, num_queries, NUM_HEADS)?, matrix(&self.kernels, num_queries, NUM_HEADS)?);
        let (step, scale) = (self.buffers.view(key), 1.0 / (HEAD_DIM as f32).sqrt());
        Ok(move || {
            let (q, kv, step, plan, out) = (&q, &self.kv, &step, &plan, &out);
            self.kernels.attention().forward(
                &mut self.ctx,
                &AttentionArgs { q, kv, step, plan, scale, window: None, soft_cap: None, out },
            )
        })
    }
}

fn matrix(kernels: &Kernels, rows: usize, heads: usize) -> Result<Tensor> {
    let columns = heads * HEAD_DIM;
    let values: Vec<f32> = (0..rows * columns).map(|i| (i as f32 * 0.7).sin()).collect();
    kernels.upload(DType::F32, &[rows, columns], &values)
}

fn attention(c: &mut Criterion) {
    for (name, whole) in [("decode", false), ("prefill", true)] {
        let mut group = c.benchmark_group(name);
        for dtype in [DType::F32, DType::F16] {
            for len in if whole { &[512][..] } else { &[128, 512, 4096] } {
                let mut bench = Bench::new(dtype, *len).expect("a layer");
                let mut forward = bench.forward(if whole { *len } else { 1 }).expect("a step");
                group.throughput(Throughput::Elements(if whole { *len as u64 } else { 1 }));
                group.bench_function(BenchmarkId::new(dtype.name(), len), |b| {
                    b.iter(|| forward().expect("a step runs"));
                });
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = attention
}
criterion_main!(benches);
