//! Sampling through the part, against sorting the whole row.

use quire_kernels::random::{DrawKey, gumbel};
use quire_kernels::{DType, SamplingKernels, SamplingRows, SamplingState, StepCtx, Tensor};

use super::CpuSampling;
use crate::Isa;
use crate::device::CpuDevice;
use crate::testing::{Memory, noise};

/// Parameters of a row.
#[derive(Clone, Copy)]
struct Row {
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    seed: u64,
}

const PLAIN: Row = Row { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 42 };

struct Rig {
    device: CpuDevice,
    sampling: CpuSampling,
    ctx: StepCtx,
}

impl Rig {
    fn new(isa: Isa, threads: usize) -> Self {
        let device = CpuDevice::new(threads, isa).unwrap();
        let ctx = StepCtx::new(&device, 0).unwrap();
        Self { sampling: CpuSampling::new(device.clone()), device, ctx }
    }

    fn f32s(&self, values: impl IntoIterator<Item = f32>) -> Tensor {
        let values: Vec<f32> = values.into_iter().collect();
        self.device.upload(DType::F32, &[values.len()], &values)
    }

    fn i32s(&self, values: impl IntoIterator<Item = i32>) -> Tensor {
        let values: Vec<i32> = values.into_iter().collect();
        self.device.upload(DType::I32, &[values.len()], &values)
    }

    fn state(&self, rows: &[Row], vocab_size: usize) -> SamplingState {
        let keys: Vec<u32> = rows.iter().flat_map(|r| [r.seed as u32, (r.seed >> 32) as u32, 3]).collect();
        SamplingState {
            temperature: self.f32s(rows.iter().map(|r| r.temperature)),
            top_k: self.i32s(rows.iter().map(|r| r.top_k)),
            top_p: self.f32s(rows.iter().map(|r| r.top_p)),
            min_p: self.f32s(rows.iter().map(|r| r.min_p)),
            keys: self.device.upload(DType::U32, &[rows.len(), 3], &keys),
            ..SamplingState::new(&self.device, rows.len(), vocab_size).unwrap()
        }
    }

    /// Samples rows at position 5.
    fn sample(&mut self, rows: &[Row], logits: &[Vec<f32>]) -> Vec<i32> {
        let vocab_size = logits[0].len();
        let state = self.state(rows, vocab_size);
        let values = logits.concat();
        let logits = self.device.upload(DType::F32, &[logits.len(), vocab_size], &values);
        let slots = self.i32s(0..rows.len() as i32);
        let positions = self.i32s(rows.iter().map(|_| 5));
        let out = self.i32s(rows.iter().map(|_| -9));
        let rows = SamplingRows { logits: &logits, slots: &slots, positions: &positions };
        self.sampling.sample(&mut self.ctx, &state, &rows, &out).unwrap();
        self.device.download(&out)
    }
}

/// The tokens that stay, by sorting, in f64.
fn kept(row: &Row, logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let max = f64::from(logits[order[0]]);
    let exponent = |token: usize| (f64::from(logits[token]) - max) / f64::from(row.temperature);
    order.retain(|&token| row.min_p == 0.0 || exponent(token) >= f64::from(row.min_p).ln());
    if row.top_k > 0 && (row.top_k as usize) < order.len() {
        let threshold = logits[order[row.top_k as usize - 1]];
        order.retain(|&token| logits[token] >= threshold);
    }
    let mass: f64 = order.iter().map(|&token| exponent(token).exp()).sum();
    let mut so_far = 0.0;
    let last = order.iter().position(|&token| {
        so_far += exponent(token).exp();
        so_far >= f64::from(row.top_p) * mass
    });
    order.truncate(last.map_or(order.len(), |last| last + 1));
    order
}

fn expected(row: &Row, logits: &[f32]) -> usize {
    let kept = kept(row, logits);
    if row.temperature == 0.0 {
        return kept[0];
    }
    let (key, max) = (DrawKey { seed: row.seed, sequence: 3, position: 5 }, logits[kept[0]]);
    let score = |token: usize| (logits[token] - max) / row.temperature + gumbel(key, token as u32);
    kept.into_iter().min_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b))).unwrap()
}

fn logits(len: usize, spread: f32, seed: u32) -> Vec<f32> {
    // The cube has a thin tail, as a model's logits have.
    noise(len, seed).iter().map(|x| spread * x * x * x).collect()
}

#[test]
fn rows_of_all_kinds_get_the_token_that_sorting_gives() {
    let mut rows = vec![PLAIN, Row { temperature: 0.0, ..PLAIN }];
    for temperature in [0.5, 1.0, 2.5] {
        for (top_k, top_p, min_p) in
            [(1, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.05), (50, 0.95, 0.02), (3000, 0.3, 0.0)]
        {
            rows.push(Row { temperature, top_k, top_p, min_p, seed: 7 });
        }
    }
    for (len, spread) in [(1, 1.0), (33, 5.0), (4096, 15.0), (5001, 0.5)] {
        for round in 0..5 {
            let rows: Vec<Row> = rows.iter().map(|row| Row { seed: row.seed + round, ..*row }).collect();
            let all: Vec<Vec<f32>> = (0..rows.len()).map(|i| logits(len, spread, i as u32)).collect();
            let want: Vec<i32> = rows.iter().zip(&all).map(|(row, l)| expected(row, l) as i32).collect();
            for isa in Isa::available() {
                assert_eq!(Rig::new(isa, 2).sample(&rows, &all), want, "{isa}, {len} tokens");
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others_nor_on_the_threads() {
    let rows = [
        Row { temperature: 0.0, ..PLAIN },
        PLAIN,
        Row { top_p: 0.9, seed: 1, ..PLAIN },
        Row { top_k: 1, ..PLAIN },
        Row { min_p: 0.1, ..PLAIN },
    ];
    let all: Vec<Vec<f32>> = (0..rows.len()).map(|i| logits(40_000, 12.0, 50 + i as u32)).collect();
    let together = Rig::new(Isa::best(), 2).sample(&rows, &all);
    for threads in [1, 2, 7] {
        let mut rig = Rig::new(Isa::best(), threads);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(rig.sample(&[*row], &all[i..=i]), together[i..=i]);
        }
    }
}

/// BR-32: a tiny temperature is as good as none.
#[test]
fn tiny_temperatures_and_masses_give_the_best_token() {
    let mut scaled = logits(3000, 200.0, 60);
    scaled[1234] = 201.0;
    for temperature in [0.0, f32::MIN_POSITIVE, 1e-40, 1e-7, 1e-4, 0.009] {
        for top_p in [1.0, 1e-4] {
            for min_p in [0.0, 1.0] {
                let row = Row { temperature, top_p, min_p, ..PLAIN };
                assert_eq!(Rig::new(Isa::best(), 1).sample(&[row], &[scaled.clone()]), [1234]);
            }
        }
    }
}

#[test]
fn a_row_that_a_model_did_not_compute_has_no_token() {
    let row = vec![f32::NEG_INFINITY; 300];
    for parameters in [PLAIN, Row { temperature: 0.0, ..PLAIN }, Row { top_k: 5, top_p: 0.5, ..PLAIN }] {
        assert_eq!(Rig::new(Isa::best(), 2).sample(&[parameters], std::slice::from_ref(&row)), [-1]);
        let mut one = row.clone();
        one[211] = -3.0;
        assert_eq!(Rig::new(Isa::best(), 2).sample(&[parameters], &[one.clone()]), [211]);
        for wrong in [f32::NAN, f32::INFINITY] {
            one[212] = wrong;
            assert_eq!(Rig::new(Isa::best(), 2).sample(&[parameters], &[one.clone()]), [-1], "{wrong}");
        }
    }
}

#[test]
fn draws_follow_the_probabilities() {
    let p = [0.5f32, 0.3, 0.15, 0.05];
    let mut rig = Rig::new(Isa::best(), 2);
    let rows: Vec<Row> = (0..20_000).map(|seed| Row { seed, ..PLAIN }).collect();
    let tokens = rig.sample(&rows, &vec![p.map(f32::ln).to_vec(); rows.len()]);
    for (token, p) in p.iter().enumerate() {
        let share = tokens.iter().filter(|&&t| t == token as i32).count() as f32 / rows.len() as f32;
        assert!((share - p).abs() < 0.015, "token {token}: {share} for {p}");
    }
}

#[test]
fn padding_is_left_alone() {
    let mut rig = Rig::new(Isa::best(), 2);
    let state = rig.state(&[PLAIN], 4);
    let logits = rig.device.upload(DType::F32, &[2, 4], &[0.0f32, 1.0, 2.0, 3.0, f32::NAN, 0.0, 0.0, 0.0]);
    let (slots, positions) = (rig.i32s([0, -1]), rig.i32s([0, 0]));
    let rows = SamplingRows { logits: &logits, slots: &slots, positions: &positions };
    let out = rig.i32s([9, 9]);
    rig.sampling.penalize(&mut rig.ctx, &state, &rows).unwrap();
    rig.sampling.sample(&mut rig.ctx, &state, &rows, &out).unwrap();
    assert_eq!(rig.device.download::<i32>(&out)[1], 0);

    let tokens = rig.i32s([2, 3]);
    rig.sampling.count(&mut rig.ctx, &state, &slots, &tokens).unwrap();
    rig.sampling.count(&mut rig.ctx, &state, &slots, &tokens).unwrap();
    assert_eq!(rig.device.download::<i32>(&state.counts), [0, 0, 2, 0]);

    let edits = rig.device.upload(DType::I32, &[3, 2], &[0, 1, -1, -1, 0, 1]);
    let values = rig.f32s([0.5, 9.0, 0.25]);
    rig.sampling.add_bias(&mut rig.ctx, &logits, &edits, &values).unwrap();
    assert_eq!(rig.device.download::<f32>(&logits)[..4], [0.0, 1.75, 2.0, 3.0]);

    let (dst, src) = (rig.i32s([5, 6, 7]), rig.i32s([1, 2]));
    let (src_idx, dst_idx) = (rig.i32s([1, -1, 0]), rig.i32s([0, 1, -1]));
    rig.sampling.scatter(&mut rig.ctx, &src, &src_idx, &dst, &dst_idx).unwrap();
    assert_eq!(rig.device.download::<i32>(&dst), [2, 6, 7]);
}

#[test]
fn no_rows_are_nothing_to_do() {
    let mut rig = Rig::new(Isa::best(), 2);
    let state = rig.state(&[PLAIN], 4);
    let logits = rig.device.upload::<f32>(DType::F32, &[0, 4], &[]);
    let none = rig.i32s([]);
    let rows = SamplingRows { logits: &logits, slots: &none, positions: &none };
    rig.sampling.penalize(&mut rig.ctx, &state, &rows).unwrap();
    rig.sampling.sample(&mut rig.ctx, &state, &rows, &none).unwrap();
}
