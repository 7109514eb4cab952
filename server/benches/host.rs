//! What the engine does on the host for a token of a sequence, with 256 at once and a device that answers at once: planning,
//! the batch, what is kept of parameters and log-probabilities, end tokens, events. Text is benched elsewhere.
//! `cargo bench -p quire-llm --bench host`.

use std::collections::VecDeque;

use quire_engine::{
    BeamSearchParams, EngineConfig, EngineOptions, EngineParts, Llm, ModelFacts, SamplingParams,
};
use quire_executor::{
    DeviceCapacity, Executor, ExecutorError, RowId, RowOutput, StepBatch, StepOutput, Ticket, TokenLogprobs,
    TokenMasks,
};

const NUM_SEQS: usize = 256;
const NUM_TOKENS: u64 = 64;
const NUM_RUNS: usize = 20;
const VOCAB_SIZE: usize = 1000;

/// Answers every step with token 7.
struct Instant {
    capacity: DeviceCapacity,
    num_top: Vec<Option<u32>>,
    open: VecDeque<StepOutput>,
}

impl Instant {
    fn new() -> Self {
        let capacity = DeviceCapacity {
            num_blocks: 8192,
            block_size: 16,
            block_bytes: 0,
            max_num_seqs: NUM_SEQS,
            max_num_batched_tokens: 8192,
            max_model_len: 512,
            vocab_size: VOCAB_SIZE,
            num_swap_blocks: 0,
            swap_bytes_per_s: 0,
            max_in_flight: 2,
        };
        Self { capacity, num_top: vec![None; NUM_SEQS], open: VecDeque::new() }
    }

    fn logprobs(&self, row: RowId) -> Option<TokenLogprobs> {
        let num_top = self.num_top[row.0 as usize]?;
        let top = (0..num_top).map(|i| (7 + i, -1.0 - i as f32)).collect();
        Some(TokenLogprobs { token_id: 7, logprob: -1.0, rank: 1, top })
    }
}

impl Executor for Instant {
    fn capacity(&self) -> &DeviceCapacity {
        &self.capacity
    }

    fn submit(&mut self, batch: StepBatch) -> Result<Ticket, ExecutorError> {
        batch.added.iter().for_each(|added| self.num_top[added.row.0 as usize] = added.sampling.logprobs);
        let row = |row: &quire_executor::PlannedRow| RowOutput {
            row: row.row,
            epoch: row.epoch,
            token_ids: if row.sample { vec![7] } else { vec![] },
            logprobs: self.logprobs(row.row).filter(|_| row.sample).into_iter().collect(),
            ..RowOutput::default()
        };
        let rows = batch.rows.iter().map(row).collect();
        self.open.push_back(StepOutput { step: batch.step, rows, ..StepOutput::default() });
        Ok(Ticket { step: batch.step })
    }

    fn provide_masks(&mut self, _: &Ticket, _: TokenMasks) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let given = ticket.step;
        self.open.pop_front().ok_or(ExecutorError::OutOfOrder { given, expected: None })
    }

    fn reset(&mut self) -> Result<(), ExecutorError> {
        self.open.clear();
        Ok(())
    }
}

fn llm() -> Llm {
    let options = EngineOptions::new("instant").max_num_seqs(NUM_SEQS).max_num_batched_tokens(8192);
    let config = EngineConfig::resolve(options, ModelFacts { max_model_len: 512 }).expect("a configuration");
    Llm::start(EngineParts::new(config, Box::new(Instant::new()))).expect("an engine")
}

fn prompts() -> impl Iterator<Item = Vec<u32>> {
    (0..NUM_SEQS as u32).map(|i| vec![8 + i; 4])
}

/// The best of a few runs, in microseconds a token of a sequence.
fn best_us(mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let started = std::time::Instant::now();
        run();
        started.elapsed().as_secs_f64() * 1e6 / (NUM_SEQS as f64 * NUM_TOKENS as f64)
    };
    (0..NUM_RUNS).map(time).fold(f64::INFINITY, f64::min)
}

fn main() {
    let greedy = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(NUM_TOKENS) };
    let everything = SamplingParams {
        temperature: 0.8,
        top_p: 0.9,
        top_k: 50,
        min_p: 0.01,
        presence_penalty: 0.5,
        frequency_penalty: 0.5,
        repetition_penalty: 1.1,
        logit_bias: (0..20).map(|id| (id, 1.0)).collect(),
        stop_token_ids: (900..920).collect(),
        min_tokens: NUM_TOKENS / 2,
        seed: Some(5),
        ..greedy.clone()
    };
    let logprobs = SamplingParams { logprobs: Some(5), ..everything.clone() };
    let llm = llm();
    for (name, params) in
        [("greedy", greedy), ("every parameter", everything), ("and 5 log-probabilities", logprobs)]
    {
        let us = best_us(|| drop(llm.generate(prompts(), &params).expect("outputs")));
        println!("{name}: {us:.3} us a token of a sequence");
    }
    // As many sequences: 64 searches of 4 beams.
    let search = || llm.beam_search(prompts().take(NUM_SEQS / 4), &BeamSearchParams::new(4, NUM_TOKENS));
    let us = best_us(|| drop(search().expect("outputs")));
    println!("4 beams: {us:.3} us a token of a beam");
}
