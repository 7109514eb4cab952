//! What the KV cache saves: the second turn of a conversation, and the two ways to give way.
//!
//! `cargo bench -p quire-llm --bench cache -- --model FILE --threads 2` prints a line of JSON a measurement. Times are medians
//! of five runs.

use std::path::PathBuf;

use clap::Parser;
use quire::{BackendOptions, EngineOptions, Prompt, Request, RequestOutput, SamplingParams};
use quire_engine::{EngineBuilder, Llm, Source};
use quire_models::ModelRegistry;
use quire_scheduler::{
    PolicyRegistry, PreemptionMode, Rank, SchedulerPolicy, SequenceView, StepBuilder, standard_plan,
};

const NUM_RUNS: usize = 5;
const BLOCK_SIZE: usize = 16;
const ANSWER_TOKENS: u64 = 64;
const QUESTION_TOKENS: usize = 32;

#[derive(Parser)]
struct Args {
    /// A GGUF file or a folder
    #[arg(long)]
    model: PathBuf,
    #[arg(long)]
    threads: Option<usize>,
    /// Tokens of the prompts
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024")]
    tokens: Vec<usize>,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args = Args::parse();
    for &num_tokens in &args.tokens {
        println!("{}", second_turn(&args, num_tokens)?);
    }
    for &num_tokens in &args.tokens {
        println!("{}", giving_way(&args, num_tokens)?);
    }
    Ok(())
}

/// Time to the first token of a second turn, with and without a prefix cache.
fn second_turn(args: &Args, num_tokens: usize) -> Result<serde_json::Value> {
    let mut ttft_ms = Vec::new();
    let mut num_cached_tokens = 0;
    for prefix_caching in ["true", "false"] {
        let llm = load(args, &[("enable_prefix_caching", prefix_caching)], None)?;
        run(&llm, vec![request(made_up(900, num_tokens), 4)])?;
        let turn = |k| {
            let prompt = made_up(k, num_tokens);
            let first = run(&llm, vec![request(prompt.clone(), ANSWER_TOKENS)])?.remove(0);
            let question = made_up(k + 500, QUESTION_TOKENS);
            let conversation = [prompt, first.outputs[0].token_ids.clone(), question].concat();
            Ok(run(&llm, vec![request(conversation, 1)])?.remove(0))
        };
        let turns = (0..NUM_RUNS).map(turn).collect::<Result<Vec<_>>>()?;
        ttft_ms.push(median(turns.iter().map(|output| output.metrics.ttft_ms.unwrap_or(f64::NAN))));
        if prefix_caching == "true" {
            num_cached_tokens = turns[0].num_cached_tokens;
            // The last token of the answer was never an input.
            let num_computed = num_tokens + ANSWER_TOKENS as usize - 1;
            assert_eq!(num_cached_tokens as usize, num_computed / BLOCK_SIZE * BLOCK_SIZE);
        }
    }
    let num_prompt_tokens = num_tokens + ANSWER_TOKENS as usize + QUESTION_TOKENS;
    Ok(serde_json::json!({
        "bench": "second turn", "prompt tokens": num_prompt_tokens, "cached tokens": num_cached_tokens,
        "ttft cached [ms]": ttft_ms[0], "ttft computed [ms]": ttft_ms[1],
    }))
}

/// What it costs a sequence of so many tokens to give way once.
fn giving_way(args: &Args, num_tokens: usize) -> Result<serde_json::Value> {
    let time = |way| -> Result<(f64, u64)> {
        // Without a prefix cache, which would find what is to be computed again.
        let llm = load(args, &[("enable_prefix_caching", "false"), ("swap_space", "0.5")], Some(way))?;
        let mut times = Vec::new();
        for k in 0..NUM_RUNS {
            let requests = vec![request(made_up(700 + k, 1), 40), request(made_up(k, num_tokens), 12)];
            times.push(run(&llm, requests)?[1].metrics.e2e_ms);
        }
        Ok((median(times.into_iter()), llm.stats().num_swaps))
    };
    let (stays, _) = time(Way::Stays)?;
    let (swap, _) = time(Way::Forced(PreemptionMode::Swap))?;
    let (recompute, _) = time(Way::Forced(PreemptionMode::Recompute))?;
    let (auto, num_swaps) = time(Way::Cheaper)?;
    Ok(serde_json::json!({
        "bench": "giving way", "tokens": num_tokens, "swap [ms]": swap - stays, "recompute [ms]": recompute - stays,
        "auto [ms]": auto - stays, "auto swaps, of 5": num_swaps,
    }))
}

/// How the younger of two sequences gives way, once.
#[derive(Clone, Copy)]
enum Way {
    Stays,
    Forced(PreemptionMode),
    Cheaper,
}

impl SchedulerPolicy for Way {
    fn name(&self) -> &str {
        "give-way"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let is_due = |seq: &SequenceView<'_>| seq.num_preemptions() == 0 && seq.num_output_tokens() >= 4;
        let due: Vec<_> = step.running().iter().filter(is_due).map(|seq| seq.id()).collect();
        for seq in due {
            // The oldest stays.
            let _ = match self {
                Self::Stays => Ok(PreemptionMode::Recompute),
                Self::Forced(mode) => step.preempt(seq, *mode).map(|()| *mode),
                Self::Cheaper => step.give_way(seq),
            };
        }
        standard_plan(self, step);
    }
}

fn load(args: &Args, settings: &[(&str, &str)], way: Option<Way>) -> Result<Llm> {
    let mut options = EngineOptions::new(&args.model).block_size(BLOCK_SIZE);
    for (name, value) in [("max_num_seqs", "8"), ("max_model_len", "2048")].iter().chain(settings) {
        options.set(name, value, Source::Flag)?;
    }
    let mut policies = PolicyRegistry::default();
    if let Some(way) = way {
        policies.register("give-way", move || way);
        options = options.scheduling_policy("give-way".to_owned());
    }
    let mut backend = BackendOptions::default();
    backend.num_threads = args.threads;
    let kernels = quire::cpu_kernels(&backend)?;
    Ok(EngineBuilder::new(options, kernels, &ModelRegistry::default(), &policies).llm()?)
}

fn run(llm: &Llm, requests: Vec<Request>) -> Result<Vec<RequestOutput>> {
    Ok(llm.generate_each(requests).into_iter().collect::<std::result::Result<_, _>>()?)
}

fn request(token_ids: Vec<u32>, output_tokens: u64) -> Request {
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(output_tokens) };
    Request::new(Prompt::TokenIds(token_ids), params)
}

fn made_up(k: usize, num_tokens: usize) -> Vec<u32> {
    (0..num_tokens).map(|j| ((k * 7919 + j * 104_729) % 40_000) as u32).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2] * 100.0).round() / 100.0
}
