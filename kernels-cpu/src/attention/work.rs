//! How a step is cut into tasks and shared out to the threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_kernels::{AttentionArgs, DType, Result, ShapeKey, StepCtx, Tensor};

use super::cache::{BlockShape, RowCache};
use super::softmax::Softmax;
use super::tile::{MAX_ROWS, QueryTile, Task, Workspace};
use super::{MAX_HEAD_DIM, SPAN_KEYS};
use crate::Isa;
use crate::access::{Rows, RowsMut};
use crate::device::CpuDevice;
use crate::pool::Pool;

/// Multiply-adds below which the calling thread does a step alone: waking others would take longer.
const MIN_SHARED_WORK: usize = 400_000;

/// Tiles a thread below which tiles are cut into spans, so that no thread waits long for the last one.
const MIN_TILES_PER_THREAD: usize = 4;

/// Scratch a thread for the states of spans; where it does not suffice, tiles are not cut.
const STATE_BYTES_PER_THREAD: usize = 1 << 20;

/// Scratch that [`forward`] takes at most.
pub(super) fn scratch_bytes(threads: usize, max_num_seqs: usize) -> usize {
    const ALIGNMENT: usize = 4 * 256;
    let tables = max_num_seqs + 1 + MIN_TILES_PER_THREAD * threads + 1;
    threads * (4 * Workspace::len(MAX_HEAD_DIM) + STATE_BYTES_PER_THREAD) + 4 * tables + ALIGNMENT
}

/// See [`AttentionKernels::forward`](quire_kernels::AttentionKernels::forward).
pub(super) fn forward(device: &CpuDevice, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
    let step = args.step;
    let threads = device.session().pool().threads();
    let cut = Cut::new(args, threads);
    let scratch = Scratch::alloc(ctx, &cut, step.key)?;
    let mut session = device.session();
    let (pool, inputs, outputs) = session.open(
        [args.q, &args.kv.blocks, &step.query_start, &step.seq_lens, &step.block_tables],
        [args.out, &scratch.first_tiles, &scratch.first_states, &scratch.workspaces, &scratch.states],
    );
    let [queries, blocks, query_start, seq_lens, block_tables] = inputs;
    let [out, first_tiles, first_states, workspaces, states] = outputs;
    let mut work = Work {
        isa: device.isa(),
        cut,
        queries: queries.rows(),
        blocks: blocks.rows(),
        query_start: query_start.slice(),
        seq_lens: seq_lens.slice(),
        block_tables: block_tables.rows(),
        first_tiles: first_tiles.slice(),
        workspaces: workspaces.rows(),
        out: out.rows(),
    };
    work.zero_padding();
    work.count_tiles();
    work.run(pool, first_states.slice(), states.rows());
    Ok(())
}

/// Scratch of one call.
struct Scratch {
    /// `[num_rows + 1]` I32: the number of tiles before each row.
    first_tiles: Tensor,
    /// `[max tiles that are cut + 1]` I32: the number of states before each tile.
    first_states: Tensor,
    /// `[threads, Workspace::len]` F32.
    workspaces: Tensor,
    /// `[states, state_len]` F32.
    states: Tensor,
}

impl Scratch {
    /// What it takes depends on the shapes alone.
    fn alloc(ctx: &mut StepCtx, cut: &Cut, key: ShapeKey) -> Result<Self> {
        let max_tiles = (key.num_tokens.div_ceil(cut.tokens_per_tile) + key.num_rows) * cut.head_tiles();
        let num_states = if cut.may_cut(max_tiles) {
            (max_tiles * cut.max_spans).min(cut.threads * STATE_BYTES_PER_THREAD / (4 * cut.state_len()))
        } else {
            0
        };
        Ok(Self {
            first_tiles: ctx.alloc(DType::I32, &[key.num_rows + 1])?,
            first_states: ctx.alloc(DType::I32, &[MIN_TILES_PER_THREAD * cut.threads + 1])?,
            workspaces: ctx.alloc(DType::F32, &[cut.threads, Workspace::len(cut.shape.head_dim)])?,
            states: ctx.alloc(DType::F32, &[num_states, cut.state_len()])?,
        })
    }
}

/// How rows are cut into tiles.
#[derive(Clone, Copy)]
struct Cut {
    shape: BlockShape,
    /// Of the scores.
    scale: f32,
    value_scale: f32,
    soft_cap: Option<f32>,
    window: usize,
    /// Query heads that share a key and value head.
    group: usize,
    heads_per_tile: usize,
    tokens_per_tile: usize,
    /// Spans of the longest row that the block tables have room for.
    max_spans: usize,
    threads: usize,
}

impl Cut {
    fn new(args: &AttentionArgs<'_>, threads: usize) -> Self {
        let shape = BlockShape::of(&args.kv.layout);
        let num_heads = args.q.num_columns() / shape.head_dim;
        let group = num_heads / shape.num_kv_heads;
        assert_eq!(num_heads, group * shape.num_kv_heads, "query heads are shared out evenly");
        let heads_per_tile = group.min(MAX_ROWS);
        let most_tokens = args.step.key.max_query_len.max(1);
        Self {
            shape,
            scale: args.scale * args.kv.scales.k,
            value_scale: args.kv.scales.v,
            soft_cap: args.soft_cap,
            window: args.window.unwrap_or(usize::MAX).max(1),
            group,
            heads_per_tile,
            tokens_per_tile: (MAX_ROWS / heads_per_tile).min(most_tokens),
            max_spans: (args.step.block_tables.num_columns() * shape.block_size).div_ceil(SPAN_KEYS),
            threads,
        }
    }

    /// Tiles of one run of tokens.
    fn head_tiles(&self) -> usize {
        self.shape.num_kv_heads * self.group.div_ceil(self.heads_per_tile)
    }

    /// Elements of the state of one span.
    fn state_len(&self) -> usize {
        Softmax::len(self.tokens_per_tile * self.heads_per_tile, self.shape.padded_dim())
    }

    /// Whether tiles are cut into spans where there are so many of them.
    fn may_cut(&self, num_tiles: usize) -> bool {
        self.threads > 1 && self.max_spans > 1 && num_tiles < MIN_TILES_PER_THREAD * self.threads
    }
}

struct Work<'a> {
    isa: Isa,
    cut: Cut,
    queries: Rows<'a, f32>,
    blocks: Rows<'a, u8>,
    query_start: &'a [i32],
    seq_lens: &'a [i32],
    block_tables: Rows<'a, i32>,
    first_tiles: &'a mut [i32],
    workspaces: RowsMut<'a, f32>,
    out: RowsMut<'a, f32>,
}

impl Work<'_> {
    /// Zeroes the outputs of the tokens that belong to no row, or to a row of length 0.
    fn zero_padding(&mut self) {
        let mut end = 0;
        for row in 0..self.seq_lens.len() {
            let tokens = self.tokens(row);
            assert!(tokens.start == end && tokens.end >= end, "the rows' tokens follow each other");
            end = tokens.end;
            if self.seq_lens[row] == 0 {
                tokens.for_each(|token| self.out.row_mut(token).fill(0.0));
            }
        }
        (end..self.out.len()).for_each(|token| self.out.row_mut(token).fill(0.0));
    }

    fn count_tiles(&mut self) {
        let mut total = 0;
        for row in 0..self.seq_lens.len() {
            self.first_tiles[row] = total;
            if self.seq_lens[row] > 0 {
                let tiles = self.tokens(row).len().div_ceil(self.cut.tokens_per_tile) * self.cut.head_tiles();
                total += tiles as i32;
            }
        }
        self.first_tiles[self.seq_lens.len()] = total;
    }

    fn tokens(&self, row: usize) -> Range<usize> {
        let at = |i: usize| usize::try_from(self.query_start[i]).expect("a row's first token has an index");
        at(row)..at(row + 1)
    }

    fn num_tiles(&self) -> usize {
        self.first_tiles[self.seq_lens.len()] as usize
    }

    /// Multiply-adds of the step, about.
    fn amount(&self) -> usize {
        let keys = |row: usize| self.tokens(row).len() * (self.seq_lens[row] as usize).min(self.cut.window);
        let pairs: usize = (0..self.seq_lens.len()).map(keys).sum();
        pairs.saturating_mul(2 * self.queries.columns())
    }

    fn run(&self, pool: &Pool, first_states: &mut [i32], states: RowsMut<'_, f32>) {
        let num_tiles = self.num_tiles();
        if pool.threads() == 1 || self.amount() < MIN_SHARED_WORK {
            // SAFETY: nobody else is at work, and each tile is visited once.
            (0..num_tiles).for_each(|tile| unsafe { self.attend(tile, 0) });
        } else if self.cut.may_cut(num_tiles) && self.count_states(first_states, states.len()) {
            self.run_cut(pool, &first_states[..=num_tiles], &states);
        } else {
            // The last tiles of a prompt see the most; they are done first, so that the threads end together.
            share(pool, num_tiles, |thread, task| {
                // SAFETY: one job of a thread at a time, and each tile once.
                unsafe { self.attend(num_tiles - 1 - task, thread) };
            });
        }
    }

    /// Fills `first_states`; whether there is room for all states.
    fn count_states(&self, first_states: &mut [i32], room: usize) -> bool {
        let mut total = 0;
        let (last, firsts) = first_states[..=self.num_tiles()].split_last_mut().expect("one more than tiles");
        for (tile, first) in firsts.iter_mut().enumerate() {
            *first = total as i32;
            total += self.tile(tile).1.spans().len();
        }
        *last = total as i32;
        total <= room
    }

    /// Every span of every tile into its state; then the states of each tile into its outputs.
    fn run_cut(&self, pool: &Pool, first_states: &[i32], states: &RowsMut<'_, f32>) {
        let num_tiles = self.num_tiles();
        let columns = 0..self.cut.state_len();
        share(pool, first_states[num_tiles] as usize, |thread, state| {
            let tile = first_states.partition_point(|&first| first as usize <= state) - 1;
            let (row, tile_of_row) = self.tile(tile);
            let span = tile_of_row.spans().start + state - first_states[tile] as usize;
            // SAFETY: one job of a thread at a time, and each state once.
            let (memory, state) = unsafe { (self.memory(thread), states.slice_mut(state, columns.clone())) };
            let mut workspace = Workspace::over(memory, self.cut.shape.head_dim);
            self.task(row, &tile_of_row).attend_span(self.isa, span, &mut workspace, state);
        });
        // SAFETY: the threads have left the job.
        let memory = unsafe { self.memory(0) };
        let mut workspace = Workspace::over(memory, self.cut.shape.head_dim);
        for (tile, range) in first_states.windows(2).enumerate() {
            let (_, tile) = self.tile(tile);
            let states = (range[0]..range[1]).map(|state| {
                // SAFETY: the threads have left the job; each state is visited once.
                unsafe { states.slice_mut(state as usize, columns.clone()) }
            });
            // SAFETY: each tile is visited once.
            unsafe { tile.merge(self.isa, self.cut.shape.head_dim, states, &mut workspace, &self.out) };
        }
    }

    /// All of a tile.
    ///
    /// # Safety
    ///
    /// Nobody else works on the tile, nor with the memory of that thread.
    unsafe fn attend(&self, tile: usize, thread: usize) {
        let (row, tile) = self.tile(tile);
        // SAFETY: the caller's promise.
        let memory = unsafe { self.memory(thread) };
        let mut workspace = Workspace::over(memory, self.cut.shape.head_dim);
        // SAFETY: the caller's promise; the outputs of tiles are disjoint.
        unsafe { self.task(row, &tile).attend(self.isa, &mut workspace, &self.out) };
    }

    /// # Safety
    ///
    /// Nobody else uses the memory of that thread.
    #[allow(clippy::mut_from_ref)]
    unsafe fn memory(&self, thread: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.workspaces.slice_mut(thread, 0..self.workspaces.columns()) }
    }

    /// A tile and its row.
    fn tile(&self, tile: usize) -> (usize, QueryTile) {
        let row = self.first_tiles.partition_point(|&first| first as usize <= tile) - 1;
        let index = tile - self.first_tiles[row] as usize;
        let tokens = self.tokens(row);
        let (run, heads) = (index / self.cut.head_tiles(), index % self.cut.head_tiles());
        let (kv_head, part) = (heads % self.cut.shape.num_kv_heads, heads / self.cut.shape.num_kv_heads);
        let first = tokens.start + run * self.cut.tokens_per_tile;
        let seq_len = self.seq_lens[row] as usize;
        assert!(seq_len >= tokens.len(), "a row's cache holds the tokens that it computes");
        let first_head = kv_head * self.cut.group;
        let heads =
            part * self.cut.heads_per_tile..((part + 1) * self.cut.heads_per_tile).min(self.cut.group);
        let tile = QueryTile {
            tokens: first..(first + self.cut.tokens_per_tile).min(tokens.end),
            position: seq_len - (tokens.end - first),
            heads: first_head + heads.start..first_head + heads.end,
            kv_head,
            window: self.cut.window,
            value_scale: self.cut.value_scale,
        };
        (row, tile)
    }

    fn task<'t>(&'t self, row: usize, tile: &'t QueryTile) -> Task<'t> {
        let (blocks, shape) = (self.blocks, self.cut.shape);
        let cache = RowCache { blocks, shape, block_table: self.block_tables.row(row) };
        Task { tile, cache, queries: self.queries, scale: self.cut.scale, soft_cap: self.cut.soft_cap }
    }
}

/// Calls `f` with a thread and a task, for each task, in order, on all threads; a thread has one at a time.
fn share(pool: &Pool, num_tasks: usize, f: impl Fn(usize, usize) + Sync) {
    let next = AtomicUsize::new(0);
    pool.for_each(pool.threads().min(num_tasks), 1, |threads| {
        for thread in threads {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= num_tasks {
                    break;
                }
                f(thread, task);
            }
        }
    });
}
