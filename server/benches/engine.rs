//! Whole runs of the engine: prefill, decode at several batch sizes, time to first token, peak memory.
//!
//! `cargo bench -p quire-llm --bench engine -- --model FILE --threads 2 --batch 1,8,16` prints one line of JSON on
//! standard output; `cargo xtask bench` runs it in turn with a peer. Each run is taken once to warm up and then
//! once to be measured: the repetitions are the caller's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use quire::{BackendOptions, EngineOptions, Prompt, Request, RequestOutput, SamplingParams};
use quire_engine::{EngineBuilder, Llm, Source};
use quire_models::ModelRegistry;
use quire_scheduler::PolicyRegistry;

const PREFILL_TOKENS: usize = 512;
const DECODE_TOKENS: u64 = 128;
const BATCH_PROMPT_TOKENS: usize = 128;
const BATCH_DECODE_TOKENS: u64 = 64;

#[derive(Parser)]
struct Args {
    /// A GGUF file or a folder
    #[arg(long)]
    model: PathBuf,
    /// `auto`, `float32`, `bfloat16`, ...
    #[arg(long, default_value = "auto")]
    dtype: String,
    #[arg(long)]
    threads: Option<usize>,
    /// Sequences at once
    #[arg(long, value_delimiter = ',', default_value = "1,8,16")]
    batch: Vec<usize>,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let started = Instant::now();
    let llm = load(&args)?;
    let mut results = BTreeMap::from([("load [s]".to_owned(), started.elapsed().as_secs_f64())]);

    let prefill = measure(&llm, &[(PREFILL_TOKENS, 1)], 1)?;
    let ttft = ttft_ms(&prefill[0]);
    results.insert(format!("prefill {PREFILL_TOKENS} [tok/s]"), PREFILL_TOKENS as f64 / ttft * 1e3);
    results.insert(format!("ttft {PREFILL_TOKENS} [ms]"), ttft);

    for &batch in &args.batch {
        let (prompt, output) = match batch {
            1 => (1, DECODE_TOKENS),
            _ => (BATCH_PROMPT_TOKENS, BATCH_DECODE_TOKENS),
        };
        let rate = decode_rate(&measure(&llm, &vec![(prompt, output); batch], 100 * batch)?);
        results.insert(format!("decode x{batch} [tok/s]"), rate);
    }
    results.insert("peak memory, whole run [MiB]".to_owned(), peak_memory_mib());
    println!("{}", serde_json::to_string(&results)?);
    Ok(())
}

fn load(args: &Args) -> Result<Llm, Box<dyn std::error::Error>> {
    let mut options = EngineOptions::new(&args.model);
    for (name, value) in [("dtype", args.dtype.as_str()), ("max_num_seqs", "32"), ("max_model_len", "2048")] {
        options.set(name, value, Source::Flag)?;
    }
    let mut backend = BackendOptions::default();
    backend.num_threads = args.threads;
    let kernels = quire::cpu_kernels(&backend)?;
    Ok(EngineBuilder::new(options, kernels, &ModelRegistry::default(), &PolicyRegistry::default()).llm()?)
}

/// Runs prompts of `(prompt, output)` tokens at once, twice: cold, with prompts of their own, to warm up, and then
/// to be measured. Batches share their prompts with the warm-up, so that the prefix cache takes their prefill away
/// and what is left to measure is decoding; a single long prompt does not, since its prefill is the measurement.
fn measure(
    llm: &Llm,
    shapes: &[(usize, u64)],
    first: usize,
) -> Result<Vec<RequestOutput>, quire::engine::Error> {
    let shares_prompts = shapes.len() > 1;
    let mut outputs = Vec::new();
    for round in 0..2 {
        let first = if shares_prompts { first } else { first + 1000 * round };
        let requests =
            shapes.iter().enumerate().map(|(i, &(prompt, output))| request(first + i, prompt, output));
        outputs = llm.generate_each(requests.collect()).into_iter().collect::<Result<_, _>>()?;
    }
    Ok(outputs)
}

/// A prompt of made-up tokens, and so many tokens after it whatever they are.
fn request(k: usize, prompt_tokens: usize, output_tokens: u64) -> Request {
    let token_ids: Vec<u32> =
        (0..prompt_tokens).map(|j| ((k * 7919 + j * 104_729) % 40_000) as u32).collect();
    Request::new(
        Prompt::TokenIds(token_ids),
        SamplingParams { ignore_eos: true, ..SamplingParams::greedy(output_tokens) },
    )
}

fn ttft_ms(output: &RequestOutput) -> f64 {
    output.metrics.ttft_ms.expect("a token was generated")
}

/// Tokens a second of all sequences together, from the last first token to the end.
fn decode_rate(outputs: &[RequestOutput]) -> f64 {
    let tokens: usize = outputs.iter().map(|output| output.outputs[0].token_ids.len() - 1).sum();
    let start = outputs.iter().map(ttft_ms).fold(0.0, f64::max);
    let end = outputs.iter().map(|output| output.metrics.e2e_ms).fold(0.0, f64::max);
    tokens as f64 / (end - start) * 1e3
}

/// The most memory this process has had, from the kernel's count; NaN where there is none.
fn peak_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}
