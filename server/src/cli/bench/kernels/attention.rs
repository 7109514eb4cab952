//! Attention: sequences that decode, prompts, and pieces of prompts.

use quire_kernels::{
    AttentionArgs, AttentionKernels, AttentionPlan, DType, KvGroupSpec, KvKind, KvLayer, KvScales, Limits,
    Result as KernelResult, ShapeKey, StepBuffers, StepCtx, StepRows, StepView, Tensor, write_head,
};

use super::report::Case;
use super::timer::{Timing, Work};
use super::{KernelBench, num_rotated, random};
use crate::error::Result;

/// The most sequences that decode at once.
const MAX_DECODING: usize = 512;

/// Tokens of a short prompt, of which several make a step.
pub(super) const PROMPT: usize = 512;

/// Tokens of a piece of a long prompt.
const CHUNK: usize = 2048;

/// Tokens whose keys and values are written at once.
const WRITE: usize = 4096;

pub(super) fn run(bench: &KernelBench<'_>) -> Result<()> {
    for &context in &bench.args.contexts {
        for &rows in bench.args.rows.iter().filter(|&&rows| rows <= MAX_DECODING) {
            check(bench, "decode", rows, 1, context)?;
        }
        check(bench, "prefill", 1, context.min(CHUNK), context)?;
    }
    check(bench, "prefill", 8, PROMPT, PROMPT)
}

/// So many sequences compute their last `query_len` of `context` tokens.
fn check(
    bench: &KernelBench<'_>,
    kind: &str,
    num_seqs: usize,
    query_len: usize,
    context: usize,
) -> Result<()> {
    let shapes = &bench.shapes;
    let num_tokens = num_seqs * query_len;
    // A query sees what stands before it, and itself.
    let scores = num_seqs as f64 * query_len as f64 * (context as f64 - (query_len as f64 - 1.0) / 2.0);
    let cached = num_seqs * context * 2 * shapes.kv_size() * bench.kv_dtype().block_bytes();
    let io = 2 * num_tokens * shapes.q_size() * bench.activation_dtype().block_bytes();
    let case = Case {
        op: "attention",
        case: format!("{kind} {num_seqs}x{query_len}"),
        dtype: bench.kv_dtype().to_string(),
        rows: num_seqs,
        context: Some(context),
        bytes: cached + io,
        flops: 4.0 * shapes.q_size() as f64 * scores,
        ..Case::default()
    };
    bench.measure(&case, cached + 2 * io, || {
        time(bench, &vec![(query_len, context); num_seqs], num_rotated(cached))
    })
}

fn time(bench: &KernelBench<'_>, seqs: &[(usize, usize)], num_layers: usize) -> KernelResult<Timing> {
    let (kernels, shapes) = (&bench.kernels, &bench.shapes);
    let num_tokens: usize = seqs.iter().map(|seq| seq.0).sum();
    let mut ctx = bench.ctx(num_tokens, seqs.len(), 0)?;
    let cache = Cache::new(bench, &mut ctx, seqs, num_layers)?;
    let (dtype, dims) = (bench.activation_dtype(), [num_tokens, shapes.q_size()]);
    let q = random::tensor(kernels, dtype, &dims, 1.0)?;
    let out = random::outputs(kernels, 1, dtype, &dims)?.remove(0);
    let attention = kernels.attention();
    let plan = attention.plan(&mut ctx, cache.view.key, &cache.rows, &cache.layers[0].layout)?;
    let scale = (shapes.head_dim as f32).sqrt().recip();
    bench.timer.time(&mut ctx, &Forward { attention, cache, q, plan, scale, out })
}

struct Forward<'a> {
    attention: &'a dyn AttentionKernels,
    cache: Cache,
    q: Tensor,
    plan: AttentionPlan,
    scale: f32,
    out: Tensor,
}

impl Work for Forward<'_> {
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> KernelResult<()> {
        let args = AttentionArgs {
            q: &self.q,
            kv: &self.cache.layers[turn % self.cache.layers.len()],
            step: &self.cache.view,
            plan: &self.plan,
            scale: self.scale,
            window: None,
            soft_cap: None,
            out: &self.out,
        };
        self.attention.forward(ctx, &args)
    }
}

/// The caches of layers that share block tables, full of random keys and values, and a step over them.
pub(super) struct Cache {
    pub(super) layers: Vec<KvLayer>,
    pub(super) rows: StepRows,
    pub(super) view: StepView,
}

impl Cache {
    /// For sequences that compute the last `.0` of their `.1` tokens.
    pub(super) fn new(
        bench: &KernelBench<'_>,
        ctx: &mut StepCtx,
        seqs: &[(usize, usize)],
        num_layers: usize,
    ) -> KernelResult<Self> {
        let (kernels, shapes, block_size) = (&bench.kernels, &bench.shapes, bench.args.block_size);
        let spec = KvGroupSpec {
            layers: (0..num_layers).collect(),
            kind: KvKind::Full,
            num_kv_heads: shapes.num_kv_heads,
            head_dim: shapes.head_dim,
            dtype: bench.kv_dtype(),
        };
        let layout = kernels.attention().kv_layout(&spec, block_size)?;
        let steps = Steps::new(seqs, block_size);
        let dims = [steps.num_blocks, layout.block_bytes];
        let blocks = random::outputs(kernels, num_layers, DType::U8, &dims)?;
        let layers: Vec<_> = blocks
            .into_iter()
            .map(|blocks| KvLayer { blocks, layout: layout.clone(), scales: KvScales::ONE })
            .collect();
        for layer in &layers {
            fill(bench, ctx, layer, steps.num_blocks * block_size)?;
        }
        let (rows, view) = steps.send(bench, ctx)?;
        Ok(Self { layers, rows, view })
    }
}

/// Writes random keys and values to every slot.
fn fill(bench: &KernelBench<'_>, ctx: &mut StepCtx, layer: &KvLayer, num_slots: usize) -> KernelResult<()> {
    let (kernels, dtype) = (&bench.kernels, bench.activation_dtype());
    let dims = [WRITE.min(num_slots), bench.shapes.kv_size()];
    let (k, v) = (random::tensor(kernels, dtype, &dims, 1.0)?, random::tensor(kernels, dtype, &dims, 1.0)?);
    let slots = random::outputs(kernels, 1, DType::I32, &[dims[0]])?.remove(0);
    for start in (0..num_slots).step_by(dims[0]) {
        let values: Vec<i32> = (start..num_slots.min(start + dims[0])).map(|slot| slot as i32).collect();
        let n = values.len();
        write_head(ctx, &slots, &values)?;
        kernels.attention().write_kv(ctx, &k.rows(0, n), &v.rows(0, n), layer, &slots.rows(0, n))?;
    }
    Ok(())
}

/// The metadata of a step on the host, over blocks in random order.
struct Steps {
    rows: StepRows,
    num_blocks: usize,
    max_len: usize,
    tables: Vec<Vec<i32>>,
    positions: Vec<i32>,
    slots: Vec<i32>,
}

impl Steps {
    fn new(seqs: &[(usize, usize)], block_size: usize) -> Self {
        let num_blocks = seqs.iter().map(|seq| seq.1.div_ceil(block_size)).sum();
        let mut free = random::permutation(num_blocks).into_iter().map(|block| block as i32);
        let mut steps = Self {
            rows: StepRows { query_start: vec![0], seq_lens: Vec::new() },
            num_blocks,
            max_len: seqs.iter().map(|seq| seq.1).max().unwrap_or(0),
            tables: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
        };
        for &(query_len, len) in seqs {
            let table: Vec<i32> = free.by_ref().take(len.div_ceil(block_size)).collect();
            for position in len - query_len..len {
                steps.positions.push(position as i32);
                steps
                    .slots
                    .push(table[position / block_size] * block_size as i32 + (position % block_size) as i32);
            }
            steps.tables.push(table);
            steps.rows.query_start.push(steps.positions.len() as i32);
            steps.rows.seq_lens.push(len as i32);
        }
        steps
    }

    fn send(self, bench: &KernelBench<'_>, ctx: &mut StepCtx) -> KernelResult<(StepRows, StepView)> {
        let limits = Limits {
            max_num_batched_tokens: self.positions.len(),
            max_num_seqs: self.tables.len(),
            max_model_len: self.max_len,
            block_size: bench.args.block_size,
        };
        let buffers = StepBuffers::new(bench.kernels.device().as_ref(), &limits)?;
        write_head(ctx, &buffers.positions, &self.positions)?;
        write_head(ctx, &buffers.slot_mapping, &self.slots)?;
        write_head(ctx, &buffers.query_start, &self.rows.query_start)?;
        write_head(ctx, &buffers.seq_lens, &self.rows.seq_lens)?;
        let width = limits.max_blocks_per_row();
        let padded = |table: &Vec<i32>| -> Vec<i32> {
            table.iter().copied().chain(std::iter::repeat(0)).take(width).collect()
        };
        let tables: Vec<i32> = self.tables.iter().flat_map(padded).collect();
        ctx.write(&buffers.block_tables, &tables)?;
        let view = buffers.view(ShapeKey {
            num_tokens: self.positions.len(),
            num_rows: self.tables.len(),
            max_query_len: self.rows.max_query_len(),
            num_logits: 0,
        });
        Ok((self.rows, view))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_a_slot_of_its_own_in_a_block_of_its_sequence() {
        let steps = Steps::new(&[(1, 5), (3, 8), (2, 2)], 4);
        assert_eq!((steps.num_blocks, steps.max_len), (5, 8));
        assert_eq!(steps.rows.query_start, [0, 1, 4, 6]);
        assert_eq!(steps.positions, [4, 5, 6, 7, 0, 1]);
        let mut blocks: Vec<i32> = steps.tables.concat();
        blocks.sort_unstable();
        assert_eq!(blocks, [0, 1, 2, 3, 4]);
        assert_eq!(steps.slots[0], 4 * steps.tables[0][1]);
        assert_eq!(steps.slots[5], 4 * steps.tables[2][0] + 1);
    }
}
