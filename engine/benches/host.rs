//! What the host does for each token of 256 sequences: scheduling, detokenizing, looking for stop strings, keeping the books.
//!
//! The executor is a scripted one, so that nothing computes. "tokens" makes no text: the difference to "text" is what
//! text and four stop strings cost; "streamed" sends every piece to a reader as well.

#![allow(missing_docs)] // of what `criterion_group` makes

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_engine::{
    EngineConfig, EngineOptions, EngineParts, Llm, ModelFacts, Request, RequestEvent, SamplingParams,
};
use quire_executor::DeviceCapacity;
use quire_executor::testing::ScriptedExecutor;
use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;

const NUM_SEQS: usize = 256;
const NUM_TOKENS: u64 = 64;

fn tokenizer() -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TinyTokenizer::json().to_string()).expect("a file");
    Tokenizer::open(&path).expect("a tokenizer")
}

fn engine() -> Llm {
    let capacity = DeviceCapacity {
        vocab_size: TinyTokenizer::tokens().len(),
        max_num_seqs: NUM_SEQS,
        max_num_batched_tokens: 8192,
        ..ScriptedExecutor::small_capacity(NUM_SEQS * 8, 16)
    };
    let facts = ModelFacts { max_model_len: capacity.max_model_len };
    let options = EngineOptions::new("scripted").max_num_seqs(NUM_SEQS);
    let config = EngineConfig::resolve(options, facts).expect("good options");
    // Letters, so that every token is a piece of text.
    let script = |prompt: &[u32], position: usize| {
        TinyTokenizer::byte(b'a' + ((prompt[0] as usize + position) % 26) as u8)
    };
    let executor = ScriptedExecutor::new(capacity, script);
    let parts = EngineParts { tokenizer: Some(tokenizer()), ..EngineParts::new(config, Box::new(executor)) };
    Llm::start(parts).expect("an engine")
}

fn requests(params: &SamplingParams) -> Vec<Request> {
    (0..NUM_SEQS).map(|seq| Request::new(vec![3 + seq as u32 % 200; 8], params.clone())).collect()
}

fn streamed(llm: &Llm, params: &SamplingParams) -> usize {
    let streams: Vec<_> =
        requests(params).into_iter().map(|request| llm.stream(request).expect("there is room")).collect();
    let mut num_chars = 0;
    for mut stream in streams {
        while let Some(event) = stream.blocking_next() {
            if let RequestEvent::Delta(delta) = event {
                num_chars += delta.text.len();
            }
        }
    }
    num_chars
}

fn host(criterion: &mut Criterion) {
    let llm = engine();
    let tokens = SamplingParams { detokenize: false, ignore_eos: true, ..SamplingParams::greedy(NUM_TOKENS) };
    let stop = ["\n\nUser:", "zyx", "abcd\n", "</s>"].map(str::to_owned).to_vec();
    let text = SamplingParams { detokenize: true, stop, ..tokens.clone() };
    let mut group = criterion.benchmark_group("256 sequences, per token of one");
    group.sample_size(10).throughput(Throughput::Elements(NUM_SEQS as u64 * NUM_TOKENS));
    group.bench_function("tokens", |bencher| bencher.iter(|| llm.generate_each(requests(&tokens))));
    group.bench_function("text", |bencher| bencher.iter(|| llm.generate_each(requests(&text))));
    group.bench_function("streamed", |bencher| bencher.iter(|| streamed(&llm, &text)));
    group.finish();
}

criterion_group!(benches, host);
criterion_main!(benches);
