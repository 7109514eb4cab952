//! What is drawn, over many draws, against exact probabilities: every filter alone and beside others, on the CPU and on the
//! reference, which must draw the same tokens.

use quire_kernels::{
    DType, IN_PROMPT, Kernels, NO_TOKEN, SamplingRows, SamplingState, StepCtx, Tensor, reference,
};
use quire_kernels_cpu::{CpuConfig, kernels};

const DRAWS: usize = 100_000;
const VOCAB: usize = 12;
/// Columns of a row of logits; those past the vocabulary are padding that holds the best logits of all.
const PADDED: usize = 16;
const NEVER: f32 = f32::NEG_INFINITY;

/// How the tokens of a row are chosen.
#[derive(Clone)]
struct Case {
    name: &'static str,
    logits: [f32; VOCAB],
    bias: Vec<(usize, f32)>,
    /// How often each token stands in the output, with [`IN_PROMPT`].
    counts: [i32; VOCAB],
    presence: f32,
    frequency: f32,
    repetition: f32,
    temperature: f32,
    min_p: f32,
    top_k: i32,
    top_p: f32,
}

const LOGITS: [f32; VOCAB] = [0.0, 2.0, -1.5, 1.0, 1.0, 0.3, -0.4, 1.7, -3.0, 0.9, -0.1, 1.3];
const COUNTS: [i32; VOCAB] = [0, 1, IN_PROMPT, 3, 0, IN_PROMPT | 2, 0, 0, 4, 1, IN_PROMPT, 0];

fn plain(name: &'static str) -> Case {
    Case {
        name,
        logits: LOGITS,
        bias: Vec::new(),
        counts: [0; VOCAB],
        presence: 0.0,
        frequency: 0.0,
        repetition: 1.0,
        temperature: 1.0,
        min_p: 0.0,
        top_k: 0,
        top_p: 1.0,
    }
}

fn cases() -> Vec<Case> {
    let penalized = |name| Case { counts: COUNTS, ..plain(name) };
    let only = |kept: &[usize]| (0..VOCAB).filter(|id| !kept.contains(id)).map(|id| (id, NEVER)).collect();
    vec![
        plain("all tokens"),
        Case { temperature: 0.5, ..plain("a low temperature") },
        Case { temperature: 1.8, ..plain("a high temperature") },
        Case { top_k: 3, ..plain("top-k") },
        Case { top_k: 6, ..plain("top-k with a tie at the threshold") },
        Case { top_p: 0.8, ..plain("top-p") },
        Case { min_p: 0.2, ..plain("min-p") },
        Case { presence: 1.5, ..penalized("a presence penalty") },
        Case { frequency: 0.6, ..penalized("a frequency penalty") },
        Case { frequency: -0.8, presence: -0.5, ..penalized("negative penalties") },
        Case { repetition: 1.7, ..penalized("a repetition penalty") },
        Case { bias: vec![(8, 4.0), (1, -2.5)], ..plain("a bias") },
        Case { bias: vec![(1, NEVER), (7, NEVER)], ..plain("forbidden tokens") },
        Case { bias: only(&[3, 4, 8]), ..plain("allowed tokens") },
        Case { temperature: 0.7, top_k: 5, ..plain("temperature and top-k") },
        Case { top_k: 7, top_p: 0.75, ..plain("top-k and top-p") },
        Case { min_p: 0.15, top_p: 0.9, ..plain("min-p and top-p") },
        Case { min_p: 0.1, top_k: 4, temperature: 1.4, ..plain("min-p, top-k and temperature") },
        Case {
            bias: vec![(8, 3.0), (0, NEVER)],
            presence: 0.4,
            frequency: 0.3,
            repetition: 1.3,
            temperature: 0.8,
            min_p: 0.05,
            top_k: 8,
            top_p: 0.95,
            ..penalized("everything at once")
        },
        Case { logits: [0.5; VOCAB], ..plain("nothing but ties") },
        Case { logits: [0.5; VOCAB], top_p: 0.5, ..plain("half of the ties") },
        Case { logits: [0.5; VOCAB], top_k: 4, ..plain("ties that top-k cannot tell apart") },
        Case { top_k: 1, ..plain("one token left by top-k") },
        Case { top_p: 1e-4, ..plain("one token left by top-p") },
        Case { min_p: 1.0, ..plain("one token left by min-p") },
        Case { bias: only(&[8]), ..plain("one token left by the bias") },
        Case { logits: [0.5; VOCAB], temperature: 0.0, ..plain("greedy among ties") },
        Case { repetition: 1.7, presence: 1.9, temperature: 0.0, ..penalized("greedy with penalties") },
    ]
}

impl Case {
    /// The probability of each token, by the definition.
    fn probabilities(&self) -> Vec<f64> {
        let mut logits = self.edited();
        let best = max(&logits);
        if self.temperature == 0.0 {
            let first = logits.iter().position(|l| *l == best);
            return (0..VOCAB).map(|id| f64::from(u8::from(Some(id) == first))).collect();
        }
        logits.iter_mut().for_each(|l| *l /= f64::from(self.temperature));
        keep(&mut logits, |l, all, _| l >= max(all) + f64::from(self.min_p).ln());
        if self.top_k > 0 {
            keep(&mut logits, |l, all, _| l >= sorted(all)[self.top_k as usize - 1]);
        }
        let p = softmax(&logits);
        keep(&mut logits, |l, all, id| {
            let before = (0..VOCAB).filter(|&o| all[o] > l || (all[o] == l && o < id));
            before.map(|o| p[o]).sum::<f64>() < f64::from(self.top_p) - 1e-9
        });
        softmax(&logits)
    }

    /// The logits with bias and penalties.
    fn edited(&self) -> Vec<f64> {
        let mut logits: Vec<f64> = self.logits.iter().map(|l| f64::from(*l)).collect();
        self.bias.iter().for_each(|&(id, bias)| logits[id] += f64::from(bias));
        for (logit, count) in logits.iter_mut().zip(self.counts) {
            let (in_output, repetition) = (count & (IN_PROMPT - 1), f64::from(self.repetition));
            if count != 0 {
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            }
            if in_output > 0 {
                *logit -= f64::from(self.frequency) * f64::from(in_output) + f64::from(self.presence);
            }
        }
        logits
    }
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|l| (l - max(logits)).exp()).collect();
    weights.iter().map(|w| w / weights.iter().sum::<f64>()).collect()
}

fn keep(logits: &mut [f64], keeps: impl Fn(f64, &[f64], usize) -> bool) {
    let all = logits.to_vec();
    (0..VOCAB).filter(|&id| !keeps(all[id], &all, id)).for_each(|id| logits[id] = f64::NEG_INFINITY);
}

/// A backend and the cases in its row places.
struct Rig {
    kernels: Kernels,
    ctx: StepCtx,
    state: SamplingState,
    cases: Vec<Case>,
}

impl Rig {
    fn new(kernels: Kernels, cases: Vec<Case>) -> Self {
        let mut ctx = kernels.step_ctx(0).unwrap();
        let state = SamplingState::new(kernels.device().as_ref(), cases.len(), VOCAB).unwrap();
        let mut write = |column: &Tensor, of: fn(&Case) -> f32| {
            ctx.write(column, &cases.iter().map(of).collect::<Vec<_>>()).unwrap();
        };
        write(&state.temperature, |case| case.temperature);
        write(&state.top_p, |case| case.top_p);
        write(&state.min_p, |case| case.min_p);
        write(&state.presence_penalty, |case| case.presence);
        write(&state.frequency_penalty, |case| case.frequency);
        write(&state.repetition_penalty, |case| case.repetition);
        ctx.write(&state.top_k, &cases.iter().map(|case| case.top_k).collect::<Vec<_>>()).unwrap();
        let keys: Vec<u32> = (0..cases.len() as u32).flat_map(|slot| [77 + slot, 5, slot % 3]).collect();
        ctx.write(&state.keys, &keys).unwrap();
        ctx.write(&state.counts, &cases.iter().flat_map(|case| case.counts).collect::<Vec<_>>()).unwrap();
        Self { kernels, ctx, state, cases }
    }

    /// A token for each (case, position), all in one batch.
    fn draw(&mut self, rows: &[(usize, usize)]) -> Vec<i32> {
        let n = rows.len();
        let i32s = |values: Vec<i32>| self.kernels.upload(DType::I32, &[values.len()], &values).unwrap();
        let slots = i32s(rows.iter().map(|row| row.0 as i32).collect());
        let positions = i32s(rows.iter().map(|row| row.1 as i32).collect());
        let out = i32s(vec![NO_TOKEN; n]);
        let padded = |&(case, _): &(usize, usize)| {
            let logits = self.cases[case].logits;
            logits.into_iter().chain([100.0; PADDED - VOCAB]).collect::<Vec<f32>>()
        };
        let logits: Vec<f32> = rows.iter().flat_map(padded).collect();
        let logits = self.kernels.upload(DType::F32, &[n, PADDED], &logits).unwrap().columns(0, VOCAB);
        let biases = rows.iter().enumerate().flat_map(|(row, &(case, _))| {
            self.cases[case].bias.iter().map(move |&(id, bias)| ([row as i32, id as i32], bias))
        });
        let (edits, values): (Vec<[i32; 2]>, Vec<f32>) = biases.unzip();
        let edits = self.kernels.upload(DType::I32, &[edits.len(), 2], edits.as_flattened()).unwrap();
        let values = self.kernels.upload(DType::F32, &[values.len()], &values).unwrap();
        let rows = SamplingRows { logits: &logits, slots: &slots, positions: &positions };
        let (sampling, state) = (self.kernels.sampling(), &self.state);
        let ctx = &mut self.ctx;
        ctx.step(|ctx| {
            sampling.add_bias(ctx, &logits, &edits, &values)?;
            sampling.penalize(ctx, state, &rows)?;
            sampling.sample(ctx, state, &rows, &out)
        })
        .unwrap();
        ctx.read(&out).unwrap().wait_as().unwrap()
    }

    /// All draws of one case.
    fn draws(&mut self, case: usize) -> Vec<i32> {
        let rows: Vec<_> = (0..DRAWS).map(|position| (case, position)).collect();
        rows.chunks(DRAWS / 10).flat_map(|rows| self.draw(rows)).collect()
    }
}

fn cpu() -> Kernels {
    kernels(CpuConfig { threads: Some(2), isa: None }).unwrap()
}

/// Pearson's statistic, and what it passes by chance once in ten thousand times (Wilson and Hilferty, 1931). Seeds are
/// fixed: a backend passes always or never.
fn chi_square(tokens: &[i32], probabilities: &[f64]) -> (f64, f64) {
    let mut counts = [0.0; VOCAB];
    for &token in tokens {
        let possible = usize::try_from(token).is_ok_and(|token| probabilities.get(token) > Some(&0.0));
        assert!(possible, "{token} was drawn of {probabilities:?}");
        counts[token as usize] += 1.0;
    }
    let possible = || counts.iter().zip(probabilities).filter(|(_, p)| **p > 0.0);
    let statistic = possible().map(|(n, p)| (n - p * DRAWS as f64).powi(2) / (p * DRAWS as f64)).sum();
    let freedom = (possible().count() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom.max(1.0));
    (statistic, freedom * (1.0 - spread + 3.72 * spread.sqrt()).powi(3))
}

#[test]
fn what_is_drawn_has_the_exact_probabilities_on_the_cpu_and_on_the_reference() {
    let mut cpu = Rig::new(cpu(), cases());
    let mut plain = Rig::new(reference::kernels(), cases());
    for (i, case) in cases().iter().enumerate() {
        let tokens = cpu.draws(i);
        let (statistic, bound) = chi_square(&tokens, &case.probabilities());
        assert!(statistic <= bound, "{}: {statistic} over {bound}", case.name);
        assert_eq!(plain.draws(i), tokens, "{}", case.name);
    }
}

/// The test tells a wrong distribution from a right one.
#[test]
fn a_distribution_that_is_one_in_a_hundred_off_is_found() {
    let all = plain("all tokens");
    let mut cpu = Rig::new(cpu(), vec![all.clone()]);
    let tokens = cpu.draws(0);
    let mut wrong = all.probabilities();
    let moved = 0.01;
    wrong[1] -= moved;
    wrong[0] += moved;
    let (statistic, bound) = chi_square(&tokens, &wrong);
    assert!(statistic > bound, "{statistic} within {bound}");
}

/// BR-33: no fast path that a whole batch takes changes a row.
#[test]
fn br_33_a_row_draws_the_same_alone_and_among_all_others() {
    for kernels in [cpu(), reference::kernels()] {
        let mut rig = Rig::new(kernels, cases());
        let num_cases = rig.cases.len();
        for round in 0..40 {
            // Another mixture each time: of all cases, of a few, of one and its opposite.
            let rows: Vec<_> = (0..1 + (7 * round) % 61)
                .map(|i| ((i * i + 5 * round + i * (round % 4)) % num_cases, 9000 * round + i))
                .collect();
            let together = rig.draw(&rows);
            for (row, token) in rows.iter().zip(together) {
                let alone = rig.draw(&[*row]);
                assert_eq!(alone, [token], "{} at {}", rig.cases[row.0].name, row.1);
            }
        }
    }
}
