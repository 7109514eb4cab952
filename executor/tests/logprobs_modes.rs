//! What log-probabilities are of, and the order in which logits become a token.

mod common;

use common::{Answer, Dice, Job, SCALE, Schedule, VOCAB_SIZE, backends, request, run, start};
use quire_executor::{LogprobsMode, MemoryRequest, ProcessorCall, RowSampling, TokenLogprobs};
use quire_kernels::Kernels;

const END: u32 = 2;
const FACTOR: f64 = 0.9;

/// Everything at once, each of it so strong that its place in the order shows.
fn sampling() -> RowSampling {
    RowSampling {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.02,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        repetition_penalty: 1.6,
        seed: 11,
        min_tokens: 3,
        end_token_ids: vec![END],
        logit_bias: vec![(7, 3.5), (9, -2.0), (END, 4.0), (11, f32::NEG_INFINITY)],
        processors: vec![ProcessorCall { processor: SCALE, args: FACTOR.into() }],
        logprobs: Some(VOCAB_SIZE as u32),
        ..RowSampling::default()
    }
}

fn job(sampling: RowSampling) -> Job {
    Job { prompt: Dice(5).prompt(12), sampling, num_new: 6 }
}

fn answer(kernels: Kernels, mode: LogprobsMode, job: &Job) -> Answer {
    let memory = MemoryRequest { max_logprobs: VOCAB_SIZE as u32, logprobs_mode: mode, ..request(16, 20) };
    run(&mut start(kernels, &memory), std::slice::from_ref(job), &Schedule::plain()).remove(0)
}

/// The values of all tokens, by id.
fn by_id(entry: &TokenLogprobs) -> Vec<f64> {
    let mut values = vec![f64::NAN; VOCAB_SIZE];
    entry.top.iter().for_each(|&(id, value)| values[id as usize] = value.into());
    assert!(values.iter().all(|value| !value.is_nan()), "every token is told");
    values
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    logits.iter().map(|l| l - max - total.ln()).collect()
}

/// What is done to logits, one after the other.
const ORDER: [&str; 8] =
    ["processors", "bias", "min_tokens", "penalties", "temperature", "min_p", "top_k", "top_p"];

/// The logits of a row after the stages of `order`.
fn processed(raw: &[f64], prompt: &[u32], output: &[u32], order: &[&str]) -> Vec<f64> {
    let sampling = sampling();
    let mut logits = raw.to_vec();
    for stage in order {
        match *stage {
            "processors" => logits.iter_mut().for_each(|logit| *logit *= FACTOR),
            "bias" => sampling.logit_bias.iter().for_each(|&(id, b)| logits[id as usize] += f64::from(b)),
            "min_tokens" if output.len() < 3 => logits[END as usize] = f64::NEG_INFINITY,
            "min_tokens" => {}
            "penalties" => penalize(&mut logits, prompt, output),
            "temperature" => logits.iter_mut().for_each(|l| *l /= f64::from(sampling.temperature)),
            "min_p" => {
                let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                keep(&mut logits, |l, _| l >= max + f64::from(sampling.min_p).ln());
            }
            "top_k" => {
                let threshold = sorted(&logits)[sampling.top_k as usize - 1];
                keep(&mut logits, |l, _| l >= threshold);
            }
            "top_p" => {
                let probabilities: Vec<f64> = log_softmax(&logits).iter().map(|l| l.exp()).collect();
                // The mass of the better ones does not reach the goal yet.
                keep(&mut logits, |l, all| {
                    let better: f64 =
                        all.iter().zip(&probabilities).filter(|(o, _)| **o > l).map(|(_, p)| p).sum();
                    better < f64::from(sampling.top_p)
                });
            }
            stage => panic!("{stage}"),
        }
    }
    logits
}

fn penalize(logits: &mut [f64], prompt: &[u32], output: &[u32]) {
    let sampling = sampling();
    for (id, logit) in logits.iter_mut().enumerate() {
        let count = output.iter().filter(|&&token| token as usize == id).count() as f64;
        if count > 0.0 || prompt.contains(&(id as u32)) {
            let repetition = f64::from(sampling.repetition_penalty);
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        }
        if count > 0.0 {
            *logit -= f64::from(sampling.frequency_penalty) * count + f64::from(sampling.presence_penalty);
        }
    }
}

fn keep(logits: &mut [f64], keeps: impl Fn(f64, &[f64]) -> bool) {
    let before = logits.to_vec();
    logits.iter_mut().filter(|l| !keeps(**l, &before)).for_each(|l| *l = f64::NEG_INFINITY);
}

fn sorted(logits: &[f64]) -> Vec<f64> {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64]) {
    for (id, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(a == e || (a - e).abs() < 1e-4 * (1.0 + e.abs()), "token {id}: {a} instead of {e}");
    }
}

/// For each token: the raw logits, and what the stages make of them.
fn stages(answer: &Answer, job: &Job, order: &[&str]) -> Vec<(Vec<f64>, Vec<f64>)> {
    let steps = answer.logprobs.iter().enumerate();
    let of = |(i, entry): (usize, &TokenLogprobs)| {
        let raw = by_id(entry);
        let done = processed(&raw, &job.prompt, &answer.token_ids[..i], order);
        (raw, done)
    };
    steps.map(of).collect()
}

#[test]
fn logits_become_a_token_by_processors_bias_min_tokens_penalties_temperature_min_p_top_k_top_p() {
    for (_, kernels) in backends() {
        let job = job(sampling());
        let raw = answer(kernels(), LogprobsMode::RawLogits, &job);
        let told = answer(kernels(), LogprobsMode::ProcessedLogits, &job);
        assert_eq!(told.token_ids, raw.token_ids, "what is told changes no token");
        for ((_, expected), entry) in stages(&raw, &job, &ORDER).iter().zip(&told.logprobs) {
            assert_close(&by_id(entry), expected);
        }
        // The stages of one kind may change places, and what is forbidden stays so; all others would show.
        for (i, pair) in ORDER.windows(2).enumerate().filter(|(_, pair)| !pair.contains(&"min_tokens")) {
            let mut other = ORDER;
            other.swap(i, i + 1);
            let differs = stages(&raw, &job, &other) != stages(&raw, &job, &ORDER);
            let commutes = matches!(pair, ["min_p", "top_k"]);
            assert!(differs || commutes, "{pair:?}");
        }
    }
}

#[test]
fn each_mode_tells_what_its_name_says() {
    let ways = [sampling(), RowSampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..sampling() }];
    for sampling in ways {
        let is_greedy = sampling.temperature == 0.0;
        let job = job(sampling);
        let of = |mode| answer(common::backends()[0].1(), mode, &job);
        let raw = of(LogprobsMode::RawLogits);
        // A greedy row has neither temperature nor filters.
        let stages = stages(&raw, &job, if is_greedy { &ORDER[..4] } else { &ORDER });
        for mode in LogprobsMode::ALL {
            let told = of(mode);
            assert_eq!(told.token_ids, raw.token_ids);
            for (((raw, done), entry), &token) in stages.iter().zip(&told.logprobs).zip(&told.token_ids) {
                let of = if mode.name().starts_with("raw") { raw } else { done };
                let expected = if mode.is_normalized() { log_softmax(of) } else { of.clone() };
                let values = by_id(entry);
                assert_close(&values, &expected);
                assert_eq!((entry.token_id, f64::from(entry.logprob)), (token, values[token as usize]));
                let rank = values.iter().filter(|value| **value >= values[token as usize]).count();
                assert_eq!(entry.rank as usize, rank, "{mode:?}");
                let order: Vec<f64> = entry.top.iter().map(|&(_, value)| value.into()).collect();
                assert_eq!(order, sorted(&values), "the highest first");
            }
        }
    }
}

/// A token that is not among the best ones is told all the same.
#[test]
fn the_sampled_token_is_always_told() {
    let sampling = RowSampling { temperature: 2.0, seed: 3, logprobs: Some(1), ..RowSampling::default() };
    let job = Job { prompt: Dice(6).prompt(9), sampling, num_new: 40 };
    let told = answer(common::backends()[0].1(), LogprobsMode::RawLogprobs, &job);
    let outside = told.logprobs.iter().filter(|entry| entry.top[0].0 != entry.token_id);
    let mut num_outside = 0;
    for entry in outside {
        num_outside += 1;
        assert!(entry.rank > 1 && entry.logprob <= entry.top[0].1, "{entry:?}");
    }
    assert!(num_outside > 10, "{num_outside} of 40");
}

/// A prompt's tokens are drawn from nothing.
#[test]
fn a_prompt_is_told_by_raw_logits_in_every_mode() {
    let mut job = job(sampling());
    job.sampling.prompt_logprobs = Some(VOCAB_SIZE as u32);
    let of = |mode| answer(common::backends()[0].1(), mode, &job).prompt_logprobs;
    let logits = of(LogprobsMode::RawLogits);
    assert_eq!(logits.len(), job.prompt.len() - 1);
    assert_eq!(of(LogprobsMode::ProcessedLogits), logits);
    for mode in [LogprobsMode::RawLogprobs, LogprobsMode::ProcessedLogprobs] {
        for (entry, logits) in of(mode).iter().zip(&logits) {
            assert_close(&by_id(entry), &log_softmax(&by_id(logits)));
            assert_eq!((entry.token_id, entry.rank), (logits.token_id, logits.rank));
        }
    }
}
