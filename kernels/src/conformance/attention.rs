//! Paged attention: the same sequences, computed in different batches and chunks over shuffled blocks.

use super::bench::{Bench, Matrix, Placement, epsilon, round_to, widen};
use super::report::At;
use crate::{
    AttentionArgs, DType, Error, KvGroupSpec, KvKind, KvLayer, KvLayout, KvScales, Limits, Result, ShapeKey,
    StepBuffers, StepRows, StepView, Tensor,
    math::{self, Scores},
    write_head,
};

const KV_DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];
const HEAD_DIMS: [usize; 5] = [64, 80, 96, 128, 256];
const BLOCK_SIZES: [usize; 3] = [8, 16, 32];
const HEADS: [(usize, usize); 6] = [(1, 1), (3, 1), (4, 2), (8, 2), (3, 3), (14, 2)];
const WINDOWS: [Option<usize>; 7] = [None, Some(1), None, Some(5), None, Some(32), Some(1000)];

/// An entry of a block table that no kernel may follow.
const NOWHERE: i32 = i32::MAX;

#[derive(Clone, Copy, Debug)]
struct Shape {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    block_size: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    dtype: DType,
    scales: KvScales,
}

/// Queries, keys and values of all tokens of one sequence.
struct Sequence {
    len: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// How sequences are cut into steps: for each step `(sequence, number of tokens)`, in the order of the rows.
struct Schedule {
    name: &'static str,
    steps: Vec<Vec<(usize, usize)>>,
    num_padded_rows: usize,
    /// Moves all blocks elsewhere after the first step.
    moves_blocks: bool,
}

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    let mut i = 0;
    for head_dim in HEAD_DIMS {
        for dtype in KV_DTYPES {
            let (num_heads, num_kv_heads) = HEADS[i % HEADS.len()];
            let (block_size, window) = (BLOCK_SIZES[i % BLOCK_SIZES.len()], WINDOWS[i % WINDOWS.len()]);
            let (soft_cap, scales) = (None, KvScales::ONE);
            let shape =
                Shape { num_heads, num_kv_heads, head_dim, block_size, window, soft_cap, dtype, scales };
            if bench.report.wants(i) {
                check_shape(bench, shape)?;
            }
            i += 1;
        }
    }
    check_scales(bench)?;
    check_soft_caps(bench)
}

/// Scales of 8-bit caches. Without them the values would be cut off at the largest number of the dtype, or be lost.
fn check_scales(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.kernels.attention().supports_kv_scales() {
        return Ok(());
    }
    let scales = [(0.013, 2e-4), (3.7, 0.25), (1.0, 1e-3), (5e-4, 1.0)];
    for (i, (k, v)) in scales.into_iter().enumerate() {
        let (num_heads, num_kv_heads) = HEADS[i + 1];
        let shape = Shape {
            num_heads,
            num_kv_heads,
            head_dim: [64, 128][i / 2],
            block_size: 16,
            window: WINDOWS[i],
            soft_cap: None,
            dtype: KV_DTYPES[3 + i % 2],
            scales: KvScales { k, v },
        };
        if bench.report.wants(i) {
            check_shape(bench, shape)?;
        }
    }
    Ok(())
}

/// Caps that bend most scores, and one that bends hardly any.
fn check_soft_caps(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.kernels.attention().supports_soft_cap() {
        let what = "scores with a soft cap".to_owned();
        let backend = bench.kernels.device().info().backend.clone();
        let error = Error::Unsupported { backend, part: "attention", what };
        bench.report.error(At { op: "attention.soft_cap", case: "all" }, &error);
        return Ok(());
    }
    for (i, cap) in [0.5, 1.5, 50.0].into_iter().enumerate() {
        let (num_heads, num_kv_heads) = HEADS[i + 1];
        let (window, dtype) = (WINDOWS[2 * i + 1], KV_DTYPES[i]);
        let (soft_cap, scales, head_dim, block_size) = (Some(cap), KvScales::ONE, 64, 16);
        let shape = Shape { num_heads, num_kv_heads, head_dim, block_size, window, soft_cap, dtype, scales };
        if bench.report.wants(i) {
            check_shape(bench, shape)?;
        }
    }
    Ok(())
}

fn check_shape(bench: &mut Bench<'_>, shape: Shape) -> Result<()> {
    let spec = KvGroupSpec {
        layers: vec![0],
        kind: shape.window.map_or(KvKind::Full, KvKind::Window),
        num_kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        dtype: shape.dtype,
    };
    let layout = match bench.kernels.attention().kv_layout(&spec, shape.block_size) {
        Ok(layout) => layout,
        Err(error) => {
            bench.report.error(At { op: "attention", case: "layout" }, &error);
            return Ok(());
        }
    };
    let lens = [70, 1, shape.block_size, shape.block_size + 1, 2];
    let sequences: Vec<Sequence> = lens.iter().map(|&len| Sequence::random(bench, shape, len)).collect();
    let expected: Vec<Vec<f64>> = sequences.iter().map(|s| s.expected(shape)).collect();
    let mut first: Option<Vec<Vec<f32>>> = None;
    for schedule in schedules(&lens) {
        let case = format!("{} of {shape:?}", schedule.name);
        let at = At { op: "attention", case: &case };
        let actual = Play::new(bench, shape, &layout, &sequences)?.run(bench, at, &schedule)?;
        for (s, actual) in actual.iter().enumerate() {
            let largest = sequences[s].v.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            let bound = (4.0 * epsilon(bench.activation())).max(1e-5) * (1.0 + f64::from(largest));
            bench.report.compare(at, actual, &expected[s], |_| bound);
            if let Some(first) = &first {
                bench.report.same_row(At { op: "attention.same_row", case: &case }, actual, &first[s]);
            }
        }
        first.get_or_insert(actual);
    }
    Ok(())
}

fn schedules(lens: &[usize]) -> Vec<Schedule> {
    let all = || lens.iter().copied().enumerate();
    let steps = |chunk: &dyn Fn(usize) -> usize| {
        let mut left = lens.to_vec();
        let mut steps = Vec::new();
        while left.iter().any(|&n| n > 0) {
            let mut step = Vec::new();
            for (s, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
                let num_tokens = chunk(steps.len() + s).min(*left);
                *left -= num_tokens;
                step.push((s, num_tokens));
            }
            steps.push(step);
        }
        steps
    };
    let schedule =
        |name, steps, num_padded_rows| Schedule { name, steps, num_padded_rows, moves_blocks: false };
    vec![
        schedule("each alone", all().map(|row| vec![row]).collect(), 0),
        schedule("one batch", vec![all().rev().collect()], 1),
        Schedule { moves_blocks: true, ..schedule("mixed chunks", steps(&|i| [7, 1, 16, 33][i % 4]), 2) },
        schedule("token by token", steps(&|_| 1), 3),
    ]
}

impl Sequence {
    fn random(bench: &mut Bench<'_>, shape: Shape, len: usize) -> Self {
        let (q, kv) = (shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim);
        Self { len, q: bench.normals(len * q), k: bench.normals(len * kv), v: bench.normals(len * kv) }
    }

    /// The outputs of all tokens.
    fn expected(&self, shape: Shape) -> Vec<f64> {
        let Shape { num_heads, num_kv_heads, head_dim, .. } = shape;
        let cached = |elements: &[f32], scale: f32| {
            let divided: Vec<f32> = elements.iter().map(|element| element / scale).collect();
            let mut cached = widen(&round_to(shape.dtype, &divided));
            cached.iter_mut().for_each(|element| *element *= f64::from(scale));
            cached
        };
        let (keys, values) = (cached(&self.k, shape.scales.k), cached(&self.v, shape.scales.v));
        let q = widen(&self.q);
        let scores = Scores::new(scale(head_dim), shape.soft_cap);
        let mut out = Vec::with_capacity(q.len());
        for (i, query) in q.chunks(head_dim).enumerate() {
            let (position, head) = (i / num_heads, i % num_heads);
            let kv_head = head / (num_heads / num_kv_heads);
            let of_head = |cached: &[f64]| -> Vec<f64> {
                let start = |p: usize| (p * num_kv_heads + kv_head) * head_dim;
                math::visible(position, shape.window)
                    .flat_map(|p| &cached[start(p)..][..head_dim])
                    .copied()
                    .collect()
            };
            out.extend(math::attend(query, &of_head(&keys), &of_head(&values), scores));
        }
        out
    }
}

fn scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// One run of a schedule over a cache of its own.
struct Play<'s> {
    shape: Shape,
    sequences: &'s [Sequence],
    kv: KvLayer,
    buffers: StepBuffers,
    tables: Vec<Vec<usize>>,
    num_computed: Vec<usize>,
}

impl<'s> Play<'s> {
    fn new(
        bench: &mut Bench<'_>,
        shape: Shape,
        layout: &KvLayout,
        sequences: &'s [Sequence],
    ) -> Result<Self> {
        let total: usize = sequences.iter().map(|s| s.len).sum();
        let max_model_len = sequences.iter().map(|s| s.len).max().unwrap_or(1);
        let limits = Limits {
            max_num_batched_tokens: total + 8,
            max_num_seqs: sequences.len() + 8,
            max_model_len: max_model_len + shape.block_size,
            block_size: shape.block_size,
        };
        let num_blocks = 2 * (total / shape.block_size + sequences.len() + 1);
        let dims = [num_blocks, layout.block_bytes];
        // All bits set are a NaN in every KV dtype.
        let blocks = bench.tensor(DType::U8, &dims, &vec![0xff; num_blocks * layout.block_bytes])?;
        let kv = KvLayer { blocks, layout: layout.clone(), scales: shape.scales };
        let buffers = StepBuffers::new(bench.kernels.device().as_ref(), &limits)?;
        let mut free = bench.rng.permutation(num_blocks);
        let tables =
            sequences.iter().map(|s| free.split_off(free.len() - s.len.div_ceil(shape.block_size))).collect();
        Ok(Self { shape, sequences, kv, buffers, tables, num_computed: vec![0; sequences.len()] })
    }

    /// The outputs of every sequence.
    fn run(mut self, bench: &mut Bench<'_>, at: At<'_>, schedule: &Schedule) -> Result<Vec<Vec<f32>>> {
        let mut outputs = vec![Vec::new(); self.sequences.len()];
        for (i, step) in schedule.steps.iter().enumerate() {
            if i == 1 && schedule.moves_blocks {
                self.move_blocks(bench)?;
            }
            let out = self.step(bench, at, step, schedule.num_padded_rows)?;
            let columns = self.shape.num_heads * self.shape.head_dim;
            let mut rest = out.as_slice();
            for &(s, num_tokens) in step {
                let (row, tail) = rest.split_at(num_tokens * columns);
                outputs[s].extend_from_slice(row);
                self.num_computed[s] += num_tokens;
                rest = tail;
            }
            let padding = vec![0.0; rest.len()];
            bench.report.equal(At { op: "attention.padding", ..at }, rest, &padding);
        }
        Ok(outputs)
    }

    /// One call over all rows of a step.
    fn step(
        &self,
        bench: &mut Bench<'_>,
        at: At<'_>,
        rows: &[(usize, usize)],
        num_padded_rows: usize,
    ) -> Result<Vec<f32>> {
        let (meta, view) = self.write_metadata(bench, rows, num_padded_rows)?;
        let num_tokens = meta.num_tokens();
        let columns = |heads: usize| heads * self.shape.head_dim;
        let (q_columns, kv_columns) = (columns(self.shape.num_heads), columns(self.shape.num_kv_heads));
        let placement = Placement::BOTH[num_tokens % 2];
        let q = self.gather(bench, rows, q_columns, num_tokens, |s| &s.q, placement)?;
        let k = self.gather(bench, rows, kv_columns, num_tokens, |s| &s.k, placement)?;
        let v = self.gather(bench, rows, kv_columns, num_tokens, |s| &s.v, placement)?;
        let out = bench.poisoned([num_tokens, q_columns], Placement::Whole)?;
        let attention = bench.kernels.attention();
        let (kv, shape) = (&self.kv, self.shape);
        bench.ctx.scope(|ctx| {
            let plan = attention.plan(ctx, view.key, &meta, &kv.layout)?;
            ctx.step(|ctx| {
                attention.write_kv(ctx, &k.view, &v.view, kv, &view.slot_mapping)?;
                let args = AttentionArgs {
                    q: &q.view,
                    kv,
                    step: &view,
                    plan: &plan,
                    scale: scale(shape.head_dim),
                    window: shape.window,
                    soft_cap: shape.soft_cap,
                    out: &out.view,
                };
                attention.forward(ctx, &args)
            })
        })?;
        bench.read(at, &out)
    }

    /// The step's tokens of each row; ones for the padded rows.
    fn gather(
        &self,
        bench: &mut Bench<'_>,
        rows: &[(usize, usize)],
        columns: usize,
        num_tokens: usize,
        of: impl Fn(&Sequence) -> &[f32],
        placement: Placement,
    ) -> Result<Matrix> {
        let mut values = Vec::with_capacity(num_tokens * columns);
        for &(s, n) in rows {
            let start = self.num_computed[s];
            values.extend_from_slice(&of(&self.sequences[s])[start * columns..(start + n) * columns]);
        }
        values.resize(num_tokens * columns, 1.0);
        bench.matrix([num_tokens, columns], placement, &values)
    }

    fn write_metadata(
        &self,
        bench: &mut Bench<'_>,
        rows: &[(usize, usize)],
        num_padded_rows: usize,
    ) -> Result<(StepRows, StepView)> {
        let block_size = self.shape.block_size;
        let width = self.buffers.block_tables.num_columns();
        let mut meta = StepRows { query_start: vec![0], seq_lens: Vec::new() };
        let (mut slots, mut positions, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        for &(s, n) in rows {
            let start = self.num_computed[s];
            let table = &self.tables[s];
            positions.extend((start..start + n).map(|p| p as i32));
            slots.extend(
                (start..start + n).map(|p| (table[p / block_size] * block_size + p % block_size) as i32),
            );
            // Blocks of later steps are not in the table yet.
            let in_use = table[..(start + n).div_ceil(block_size)].iter().map(|&b| b as i32);
            tables.extend(in_use.chain(std::iter::repeat(NOWHERE)).take(width));
            meta.query_start.push(slots.len() as i32);
            meta.seq_lens.push((start + n) as i32);
        }
        for _ in 0..num_padded_rows {
            slots.push(-1);
            positions.push(0);
            tables.extend(std::iter::repeat_n(NOWHERE, width));
            meta.query_start.push(slots.len() as i32);
            meta.seq_lens.push(0);
        }
        let key = ShapeKey {
            num_tokens: meta.num_tokens(),
            num_rows: meta.num_rows(),
            max_query_len: meta.max_query_len(),
            num_logits: 0,
        };
        let buffers = &self.buffers;
        write_head(&mut bench.ctx, &buffers.slot_mapping, &slots)?;
        write_head(&mut bench.ctx, &buffers.positions, &positions)?;
        write_head(&mut bench.ctx, &buffers.query_start, &meta.query_start)?;
        write_head(&mut bench.ctx, &buffers.seq_lens, &meta.seq_lens)?;
        let view = buffers.view(key);
        bench.ctx.write(&view.block_tables, &tables)?;
        Ok((meta, view))
    }

    /// Copies every block to a free one, as a copy-on-write or a swap does, and poisons the old ones.
    fn move_blocks(&mut self, bench: &mut Bench<'_>) -> Result<()> {
        let num_blocks = self.kv.blocks.num_rows();
        let used: Vec<usize> = self.tables.concat();
        let mut free = (0..num_blocks).filter(|block| !used.contains(block));
        let mut pairs = Vec::new();
        for block in self.tables.iter_mut().flatten() {
            let to = free.next().expect("the pool is twice what the sequences need");
            pairs.push((*block as u32, to as u32));
            *block = to;
        }
        bench.ctx.queue().copy_rows(&self.kv.blocks, &pairs)?;
        for (from, _) in pairs {
            let block: Tensor = self.kv.blocks.rows(from as usize, from as usize + 1);
            bench.ctx.write(&block, &vec![0xffu8; block.num_elements()])?;
        }
        Ok(())
    }
}
