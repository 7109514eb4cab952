//! Attention against the formula in f64, and the independence of a query from everything around it.

use std::ops::Range;

use quire_kernels::{
    AttentionArgs, AttentionKernels, AttentionPlan, DType, KvGroupSpec, KvKind, KvLayer, KvScales, ShapeKey,
    StepCtx, StepView, Tensor,
};

use super::CpuAttention;
use crate::Isa;
use crate::device::CpuDevice;
use crate::testing::{Memory, assert_close, bits, noise};

/// A model's attention, and whose keys and values it caches.
#[derive(Clone, Copy)]
struct Model {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    block_size: usize,
    dtype: DType,
    window: Option<usize>,
    soft_cap: Option<f32>,
}

const SMALL: Model = Model {
    num_heads: 9,
    num_kv_heads: 3,
    head_dim: 64,
    block_size: 16,
    dtype: DType::F32,
    window: None,
    soft_cap: None,
};

/// A row of a step: the sequence, and the positions that it computes.
#[derive(Clone)]
struct Row {
    seed: u32,
    positions: Range<usize>,
}

fn row(seed: u32, positions: Range<usize>) -> Row {
    Row { seed, positions }
}

/// A device with one layer's cache, in which every sequence has its blocks.
struct Rig {
    model: Model,
    device: CpuDevice,
    attention: CpuAttention,
    ctx: StepCtx,
    kv: KvLayer,
    max_blocks: usize,
}

impl Rig {
    /// Room for sequences of `max_len` tokens with seeds up to 7.
    fn new(model: Model, isa: Isa, threads: usize, max_len: usize) -> Self {
        let device = CpuDevice::new(threads, isa).unwrap();
        let attention = CpuAttention::new(device.clone());
        let kind = model.window.map_or(KvKind::Full, KvKind::Window);
        let Model { num_kv_heads, head_dim, dtype, .. } = model;
        let spec = KvGroupSpec { layers: vec![0], kind, num_kv_heads, head_dim, dtype };
        let layout = attention.kv_layout(&spec, model.block_size).unwrap();
        let max_blocks = max_len.div_ceil(model.block_size);
        let ctx = StepCtx::new(&device, super::work::scratch_bytes(threads, 16)).unwrap();
        // What was never written is NaN, in every dtype: nothing may read it.
        let blocks = device.upload(DType::U8, &[8 * max_blocks, layout.block_bytes], &{
            vec![0xffu8; 8 * max_blocks * layout.block_bytes]
        });
        Self {
            model,
            device,
            attention,
            ctx,
            kv: KvLayer { blocks, layout, scales: KvScales::ONE },
            max_blocks,
        }
    }

    /// Blocks of a sequence: scattered, shared with none.
    fn block(&self, seed: u32, index: usize) -> i32 {
        ((index * 8 + seed as usize * 3) % (8 * self.max_blocks)) as i32
    }

    fn element(&self, what: u32, seed: u32, position: usize, heads: usize) -> Vec<f32> {
        noise(heads * self.model.head_dim, 1000 * what + 100_000 * seed + position as u32)
    }

    /// Rows that a step computes, in order: query, key or value of each.
    fn tokens(&self, what: u32, rows: &[Row], heads: usize) -> Tensor {
        let tokens = rows.iter().flat_map(|row| row.positions.clone().map(|p| (row.seed, p)));
        let values: Vec<f32> = tokens.flat_map(|(seed, p)| self.element(what, seed, p, heads)).collect();
        let columns = heads * self.model.head_dim;
        self.device.upload(DType::F32, &[values.len() / columns, columns], &values)
    }

    /// Writes keys and values of the rows' positions.
    fn write(&mut self, rows: &[Row]) {
        let (k, v) =
            (self.tokens(1, rows, self.model.num_kv_heads), self.tokens(2, rows, self.model.num_kv_heads));
        let slot = |row: &Row, p: usize| {
            let block = self.block(row.seed, p / self.model.block_size);
            block * self.model.block_size as i32 + (p % self.model.block_size) as i32
        };
        let slots: Vec<i32> =
            rows.iter().flat_map(|row| row.positions.clone().map(|p| slot(row, p))).collect();
        let slots = self.device.upload(DType::I32, &[slots.len()], &slots);
        self.attention.write_kv(&mut self.ctx, &k, &v, &self.kv, &slots).unwrap();
    }

    fn step(&self, rows: &[Row]) -> StepView {
        let mut query_start = vec![0];
        rows.iter()
            .for_each(|row| query_start.push(query_start.last().unwrap() + row.positions.len() as i32));
        let seq_lens: Vec<i32> = rows.iter().map(|row| row.positions.end as i32).collect();
        let tables: Vec<i32> = rows
            .iter()
            .flat_map(|row| {
                let used = row.positions.end.div_ceil(self.model.block_size);
                (0..self.max_blocks).map(move |i| if i < used { self.block(row.seed, i) } else { -1 })
            })
            .collect();
        let num_tokens = *query_start.last().unwrap() as usize;
        let i32s = |dims: &[usize], values: &[i32]| self.device.upload(DType::I32, dims, values);
        let none = i32s(&[num_tokens], &vec![0; num_tokens]);
        StepView {
            key: ShapeKey {
                num_tokens,
                num_rows: rows.len(),
                max_query_len: rows.iter().map(|row| row.positions.len()).max().unwrap_or(0),
                num_logits: 0,
            },
            token_ids: none.clone(),
            positions: none.clone(),
            slot_mapping: none.clone(),
            query_start: i32s(&[query_start.len()], &query_start),
            seq_lens: i32s(&[rows.len()], &seq_lens),
            block_tables: i32s(&[rows.len(), self.max_blocks], &tables),
            logits_idx: none,
        }
    }

    /// Outputs of a step over what is cached.
    fn forward(&mut self, rows: &[Row]) -> Vec<f32> {
        let q = self.tokens(0, rows, self.model.num_heads);
        let out = self.device.upload(DType::F32, q.dims(), &vec![f32::NAN; q.num_elements()]);
        let step = self.step(rows);
        let args = AttentionArgs {
            q: &q,
            kv: &self.kv,
            step: &step,
            plan: &AttentionPlan::default(),
            scale: 1.0 / (self.model.head_dim as f32).sqrt(),
            window: self.model.window,
            soft_cap: self.model.soft_cap,
            out: &out,
        };
        self.attention.forward(&mut self.ctx, &args).unwrap();
        self.device.download(&out)
    }

    /// The formula, for one query head.
    fn oracle(&self, seed: u32, position: usize, head: usize) -> Vec<f64> {
        let Model { num_heads, num_kv_heads, head_dim, window, soft_cap, .. } = self.model;
        let capped = |score: f64| soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh());
        let of = |x: Vec<f32>, head: usize| -> Vec<f64> {
            x[head * head_dim..][..head_dim].iter().map(|&x| f64::from(x)).collect()
        };
        let kv_head = head / (num_heads / num_kv_heads);
        let q = of(self.element(0, seed, position, num_heads), head);
        let first = (position + 1).saturating_sub(window.unwrap_or(usize::MAX));
        let cached = |what: u32, p: usize| of(self.element(what, seed, p, num_kv_heads), kv_head);
        let score =
            |k: Vec<f64>| k.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() / (head_dim as f64).sqrt();
        let weights: Vec<f64> = (first..=position).map(|p| capped(score(cached(1, p))).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; head_dim];
        for (p, weight) in (first..=position).zip(&weights) {
            out.iter_mut().zip(cached(2, p)).for_each(|(out, v)| *out += weight / total * v);
        }
        out
    }

    /// Checks outputs of some heads of the first and the last token of each row.
    fn check(&mut self, rows: &[Row], tolerance: f64) {
        rows.iter().for_each(|r| self.write(&[row(r.seed, 0..r.positions.end)]));
        let out = self.forward(rows);
        let columns = self.model.num_heads * self.model.head_dim;
        let mut start = 0;
        for Row { seed, positions } in rows {
            for position in [positions.start, positions.end - 1] {
                for head in [0, self.model.num_heads - 1] {
                    let want = self.oracle(*seed, position, head);
                    let first = (start + position - positions.start) * columns + head * self.model.head_dim;
                    assert_close(&out[first..first + want.len()], |i| want[i], tolerance);
                }
            }
            start += positions.len();
        }
    }
}

#[test]
fn mixed_rows_are_close_to_the_formula() {
    for isa in Isa::available() {
        for (num_heads, num_kv_heads, head_dim) in
            [(9, 3, 64), (4, 4, 80), (14, 2, 64), (8, 1, 96), (2, 1, 128), (3, 1, 33), (2, 2, 256), (1, 1, 1)]
        {
            let model = Model { num_heads, num_kv_heads, head_dim, ..SMALL };
            let mut rig = Rig::new(model, isa, 2, 320);
            rig.check(
                &[row(1, 0..1), row(2, 40..41), row(3, 0..70), row(4, 130..150), row(5, 299..300)],
                2e-6,
            );
        }
    }
}

#[test]
fn every_dtype_and_block_size_is_read_as_it_was_written() {
    let exact = [(DType::F32, 2e-6), (DType::F16, 1e-3), (DType::BF16, 6e-3)];
    let coarse = [(DType::F8E4M3, 6e-2), (DType::F8E5M2, 1.2e-1)];
    for isa in Isa::available() {
        for (dtype, tolerance) in exact.into_iter().chain(coarse) {
            for block_size in [1, 5, 8, 16, 32, 48] {
                let model = Model { dtype, block_size, head_dim: 40, ..SMALL };
                Rig::new(model, isa, 1, 150).check(&[row(1, 60..100), row(2, 77..78)], tolerance);
            }
        }
    }
}

#[test]
fn a_window_hides_what_is_before_it() {
    for window in [1, 2, 16, 31, 32, 33, 64, 65, 300] {
        let model = Model { window: Some(window), ..SMALL };
        let rows = [row(1, 0..100), row(2, 31..32), row(3, 32..33), row(4, 99..100), row(5, 280..300)];
        Rig::new(model, Isa::best(), 2, 320).check(&rows, 2e-6);
    }
}

#[test]
fn scores_bend_under_a_soft_cap_on_every_isa() {
    for isa in Isa::available() {
        for (soft_cap, window) in [(0.3, None), (2.0, Some(40)), (50.0, None)] {
            let model = Model { soft_cap: Some(soft_cap), window, ..SMALL };
            let rows = [row(1, 0..100), row(2, 31..32), row(3, 280..300)];
            Rig::new(model, isa, 2, 320).check(&rows, 4e-6);
        }
    }
}

/// Runs of at most `size` positions that together are `0..300`.
fn chunks(size: usize) -> Vec<Range<usize>> {
    (0..300).step_by(size).map(|p| p..(p + size).min(300)).collect()
}

/// All of a sequence's outputs, its positions computed in `chunks`, the other rows of each step `beside` it.
fn outputs(rig: &mut Rig, chunks: &[Range<usize>], beside: &[Row]) -> Vec<u32> {
    let columns = rig.model.num_heads * rig.model.head_dim;
    let mut all = Vec::new();
    for chunk in chunks {
        let mut rows = vec![row(1, chunk.clone())];
        rows.extend_from_slice(beside);
        rig.write(&rows);
        let out = rig.forward(&rows);
        all.extend_from_slice(&bits(&out[..chunk.len() * columns]));
    }
    all
}

#[test]
fn a_query_does_not_depend_on_chunks_rows_threads_or_instructions() {
    let chunkings = [chunks(300), chunks(1), chunks(7), vec![0..255, 255..257, 257..290, 290..300]];
    for (dtype, window) in [(DType::F32, None), (DType::F16, None), (DType::F32, Some(100))] {
        for block_size in [16, 8] {
            let model =
                Model { num_heads: 3, num_kv_heads: 1, head_dim: 16, dtype, window, block_size, ..SMALL };
            let want = outputs(&mut Rig::new(model, Isa::best(), 1, 320), &chunkings[0], &[]);
            for (i, chunks) in chunkings.iter().enumerate() {
                for beside in [vec![], vec![row(2, 0..40), row(3, 0..1), row(4, 0..3)]] {
                    for isa in Isa::available() {
                        let mut rig = Rig::new(model, isa, 1 + i, 320);
                        assert!(outputs(&mut rig, chunks, &beside) == want, "{dtype} {isa} chunking {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_long_row_alone_is_cut_among_threads_to_the_same_bits() {
    let model = Model { head_dim: 128, ..SMALL };
    let run = |threads| {
        let mut rig = Rig::new(model, Isa::best(), threads, 3000);
        rig.write(&[row(1, 0..3000)]);
        bits(&rig.forward(&[row(1, 2999..3000)]))
    };
    let want = run(1);
    assert!((2..6).all(|threads| run(threads) == want));
}

#[test]
fn padding_gives_zeros_and_writes_nothing() {
    let mut rig = Rig::new(SMALL, Isa::best(), 2, 64);
    rig.write(&[row(1, 0..20)]);
    let before = rig.device.download::<u8>(&rig.kv.blocks);
    let columns = SMALL.num_kv_heads * SMALL.head_dim;
    let kv = rig.device.upload(DType::F32, &[2, columns], &vec![1.0f32; 2 * columns]);
    let slots = rig.device.upload(DType::I32, &[2], &[-1, -1]);
    rig.attention.write_kv(&mut rig.ctx, &kv, &kv, &rig.kv, &slots).unwrap();
    assert!(rig.device.download::<u8>(&rig.kv.blocks) == before);

    let out = rig.forward(&[row(1, 19..20), row(2, 0..0)]);
    assert!(out.iter().all(|x| x.is_finite()));
    let mut step = rig.step(&[row(1, 19..20), row(2, 4..6)]);
    step.seq_lens = rig.device.upload(DType::I32, &[2], &[20, 0]);
    let q = rig.tokens(0, &[row(1, 17..20)], SMALL.num_heads);
    let padded = rig.device.upload(DType::F32, q.dims(), &vec![f32::NAN; q.num_elements()]);
    let (kv, plan) = (&rig.kv, &AttentionPlan::default());
    let (window, soft_cap) = (None, None);
    let args = AttentionArgs { q: &q, kv, step: &step, plan, scale: 1.0, window, soft_cap, out: &padded };
    rig.attention.forward(&mut rig.ctx, &args).unwrap();
    let padded: Vec<f32> = rig.device.download(&padded);
    let columns = SMALL.num_heads * SMALL.head_dim;
    assert!(padded[..columns].iter().all(|x| x.is_finite() && *x != 0.0));
    assert!(padded[columns..].iter().all(|&x| x == 0.0));
}

#[test]
fn an_empty_step_is_nothing_to_do() {
    let mut rig = Rig::new(SMALL, Isa::best(), 2, 64);
    rig.write(&[]);
    assert!(rig.forward(&[]).is_empty());
}

#[test]
fn what_has_no_kernel_is_refused() {
    let attention = CpuAttention::new(CpuDevice::new(1, Isa::Scalar).unwrap());
    let spec =
        |kind, head_dim, dtype| KvGroupSpec { layers: vec![0], kind, num_kv_heads: 1, head_dim, dtype };
    let refused = [
        spec(KvKind::State { num_bytes: 4 }, 64, DType::F32),
        spec(KvKind::Full, 0, DType::F32),
        spec(KvKind::Full, 513, DType::F32),
        spec(KvKind::Full, 64, DType::I8),
    ];
    assert!(refused.iter().all(|spec| attention.kv_layout(spec, 16).is_err()));
    assert!(attention.kv_layout(&spec(KvKind::Full, 64, DType::F32), 0).is_err());
}
