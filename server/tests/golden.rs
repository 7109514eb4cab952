//! Reference outputs: token ids, logits and greedy continuations of real models, in float32 and quantized.
//!
//! The models are named by `QUIRE_TEST_SMOLLM2`, `QUIRE_TEST_QWEN_CODER` (GGUF files) and
//! `QUIRE_TEST_SMOLLM2_FOLDER` (a Hugging Face folder of the first one's weights in float32); a test without its
//! model says that it is skipped. `cargo xtask golden` runs them all; with `--against llama.cpp` that program's distance
//! to float32 is printed beside ours.

#[path = "golden/cuda.rs"]
mod cuda;
#[path = "golden/forward.rs"]
mod forward;
#[path = "common/gpu.rs"]
mod gpu;
#[path = "golden/peer.rs"]
mod peer;
#[path = "golden/reference.rs"]
mod reference;

use std::path::Path;

use quire_engine::{DTypeChoice, EngineBuilder, EngineOptions, MaxModelLen, SamplingParams};
use quire_kernels::{DType, Kernels};
use quire_models::{EncodeOptions, ModelRegistry, SpecialTokens, Tokenizer, WeightDType};
use quire_scheduler::PolicyRegistry;

use crate::forward::Forward;
use crate::peer::Peer;
use crate::reference::{Golden, GoldenPrompt, TokenizerCases, model};

/// Two logits of the reference nearer to each other than this may change places.
const GAP: f64 = 1e-3;

#[test]
fn smollm2_in_float32_equals_the_reference() {
    let Some(path) = model("QUIRE_TEST_SMOLLM2") else { return };
    float32_equals_the_reference(&path, "smollm2-135m");
}

#[test]
fn smollm2_from_a_hugging_face_folder_equals_the_reference() {
    let Some(path) = model("QUIRE_TEST_SMOLLM2_FOLDER") else { return };
    float32_equals_the_reference(&path, "smollm2-135m");
    tokenizer_equals_the_reference(&path, "smollm2-tokenizer");
}

#[test]
fn qwen_coder_in_float32_equals_the_reference() {
    let Some(path) = model("QUIRE_TEST_QWEN_CODER") else { return };
    float32_equals_the_reference(&path, "qwen2.5-coder-0.5b");
}

#[test]
fn smollm2_tokenizer_equals_the_reference() {
    let Some(path) = model("QUIRE_TEST_SMOLLM2") else { return };
    tokenizer_equals_the_reference(&path, "smollm2-tokenizer");
}

#[test]
fn qwen_coder_tokenizer_equals_the_reference() {
    let Some(path) = model("QUIRE_TEST_QWEN_CODER") else { return };
    tokenizer_equals_the_reference(&path, "qwen2.5-tokenizer");
}

#[test]
fn smollm2_quantized_stays_close_to_float32() {
    let Some(path) = model("QUIRE_TEST_SMOLLM2") else { return };
    quantized_stays_close(&path, "smollm2-135m");
}

#[test]
fn qwen_coder_quantized_stays_close_to_float32() {
    let Some(path) = model("QUIRE_TEST_QWEN_CODER") else { return };
    quantized_stays_close(&path, "qwen2.5-coder-0.5b");
}

#[test]
fn smollm2_decodes_the_reference_through_the_engine() {
    let Some(path) = model("QUIRE_TEST_SMOLLM2") else { return };
    engine_decodes_the_reference(&path, "smollm2-135m");
}

#[test]
fn qwen_coder_decodes_the_reference_through_the_engine() {
    let Some(path) = model("QUIRE_TEST_QWEN_CODER") else { return };
    engine_decodes_the_reference(&path, "qwen2.5-coder-0.5b");
}

/// All prompts at once, token by token through scheduler, paged cache and sampler.
fn engine_decodes_the_reference(path: &Path, golden: &str) {
    let golden: Golden = reference::read(golden);
    let options = EngineOptions::new(path)
        .dtype(DTypeChoice::DType(DType::F32))
        .kv_cache_dtype(DTypeChoice::DType(DType::F32))
        .max_model_len(MaxModelLen::Tokens(1024))
        .max_num_seqs(16);
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    let llm = EngineBuilder::new(options, cpu(), &models, &policies).llm().expect("the model loads");
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(64) };
    let texts = golden.prompts.iter().map(|prompt| prompt.text.as_str());
    let outputs = llm.generate(texts, &params).expect("the prompts run");
    for (output, prompt) in outputs.iter().zip(&golden.prompts) {
        check_decoded(&output.outputs[0].token_ids, prompt);
    }
}

/// Equal up to the first place where the reference's own best two change places with ease.
fn check_decoded(token_ids: &[u32], prompt: &GoldenPrompt) {
    assert_eq!(token_ids.len(), prompt.greedy_ids.len(), "tokens of {}", prompt.name);
    let parts = token_ids.iter().zip(&prompt.greedy_ids).position(|(given, expected)| given != expected);
    if let Some(place) = parts {
        let gap = prompt.greedy_gap_top1_top2[place];
        assert!(gap < GAP, "{}: token {place} is {}, with a gap of {gap}", prompt.name, token_ids[place]);
    }
}

fn float32_equals_the_reference(path: &Path, golden: &str) {
    let golden: Golden = reference::read(golden);
    let tokenizer = Tokenizer::open(path).expect("the tokenizer opens");
    let mut forward = Forward::load(cpu(), path, Some(WeightDType::Float32), DType::F32, max_len(&golden));
    for prompt in &golden.prompts {
        let ids =
            tokenizer.encode(&prompt.text, encode_options(SpecialTokens::Recognized)).expect("text is text");
        assert_eq!(ids, prompt.token_ids, "token ids of {}", prompt.name);
        check_prompt(&forward.logits(&prompt.token_ids), prompt);
        check_greedy(&mut forward, prompt);
    }
}

/// Logits after the prompt, and the log-probability of the prompt itself.
fn check_prompt(logits: &[Vec<f32>], prompt: &GoldenPrompt) {
    let last = logits.last().expect("a prompt has a token");
    let worst =
        prompt.last_logits_top20.iter().map(|&(id, logit)| (f64::from(last[id as usize]) - logit).abs());
    let worst = worst.fold(0.0, f64::max);
    assert!(worst < 1e-3, "{}: a logit differs by {worst}", prompt.name);
    let sum: f64 =
        prompt.token_ids[1..].iter().zip(logits).map(|(&id, row)| log_softmax(row)[id as usize]).sum();
    let expected = prompt.prompt_logprob_sum;
    let allowed = 1e-3 * expected.abs() + 1e-9;
    assert!(
        (sum - expected).abs() <= allowed,
        "{}: prompt log-probability {sum}, not {expected}",
        prompt.name
    );
    eprintln!("{:10} largest logit difference {worst:.1e}, prompt log-probability {sum:.4}", prompt.name);
}

/// The best token at every place, teacher-forced: one pass over prompt and continuation says what decoding would
/// have chosen at each step, since a row's logits do not depend on how the text was cut.
fn check_greedy(forward: &mut Forward, prompt: &GoldenPrompt) {
    let logits = forward.logits(&whole(prompt));
    let start = prompt.token_ids.len() - 1;
    for (i, (&expected, &gap)) in prompt.greedy_ids.iter().zip(&prompt.greedy_gap_top1_top2).enumerate() {
        let best = argmax(&logits[start + i]);
        assert!(
            best == expected || gap < GAP,
            "{}: token {i} is {best}, not {expected} (gap {gap})",
            prompt.name
        );
    }
}

fn tokenizer_equals_the_reference(path: &Path, golden: &str) {
    let golden: TokenizerCases = reference::read(golden);
    let tokenizer = Tokenizer::open(path).expect("the tokenizer opens");
    for case in &golden.cases {
        let ids =
            tokenizer.encode(&case.text, encode_options(SpecialTokens::Recognized)).expect("text is text");
        assert_eq!(ids, case.ids, "{}", case.name);
        let decoded = tokenizer.decode(&case.ids);
        assert_eq!(&decoded, case.decoded.as_ref().unwrap_or(&case.text), "{} back", case.name);
        let as_text =
            tokenizer.encode(&case.text, encode_options(SpecialTokens::AsText)).expect("text is text");
        assert_eq!(
            &as_text,
            case.ids_specials_as_text.as_ref().unwrap_or(&case.ids),
            "{} as text",
            case.name
        );
    }
    eprintln!("{} tokenizer cases equal", golden.cases.len());
}

/// Prompts and reference continuations, in the form that the engine loads the file in where nothing is asked for,
/// against float32; a peer's beside it, where there is one.
fn quantized_stays_close(path: &Path, golden: &str) {
    let golden: Golden = reference::read(golden);
    let texts: Vec<Vec<u32>> = golden.prompts.iter().map(whole).collect();
    let mut exact = Forward::load(cpu(), path, Some(WeightDType::Float32), DType::F32, max_len(&golden));
    let exact: Vec<_> = texts.iter().map(|ids| exact.logits(ids)).collect();
    let mut quantized = Forward::load(cpu(), path, None, DType::F16, max_len(&golden));
    let closeness = Closeness::of(&exact, texts.iter().map(|ids| quantized.logits(ids)));
    eprintln!("quantized: {closeness}");
    if let Some(peer) = Peer::start(path, max_len(&golden)) {
        eprintln!("llama.cpp: {}", Closeness::of(&exact, peer.logits(&texts, exact[0][0].len())));
    }
    assert!(closeness.divergence <= 0.02, "{closeness}");
    assert!(closeness.agreement() >= 0.95, "{closeness}");
}

/// Mean Kullback-Leibler divergence from float32, and how often the best token is the same.
struct Closeness {
    /// Nats.
    divergence: f64,
    num_equal: usize,
    num_places: usize,
}

impl Closeness {
    fn of(exact: &[Vec<Vec<f32>>], given: impl Iterator<Item = Vec<Vec<f32>>>) -> Self {
        let (mut divergence, mut num_equal, mut num_places) = (0.0, 0, 0);
        for (exact, given) in exact.iter().zip(given) {
            assert_eq!(exact.len(), given.len(), "logits after each token");
            for (p, q) in exact.iter().zip(&given) {
                divergence += kl_divergence(p, q);
                num_equal += usize::from(argmax(p) == argmax(q));
                num_places += 1;
            }
        }
        Self { divergence: divergence / num_places as f64, num_equal, num_places }
    }

    fn agreement(&self) -> f64 {
        self.num_equal as f64 / self.num_places as f64
    }
}

impl std::fmt::Display for Closeness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { divergence, num_places, .. } = self;
        let agreement = 100.0 * self.agreement();
        write!(f, "mean KL {divergence:.5} nats, agreement {agreement:.2} % of {num_places} places")
    }
}

fn cpu() -> Kernels {
    quire_kernels_cpu::kernels(quire_kernels_cpu::CpuConfig::default()).expect("a CPU is there")
}

fn encode_options(special_tokens: SpecialTokens) -> EncodeOptions {
    EncodeOptions { special_tokens, ..EncodeOptions::default() }
}

fn whole(prompt: &GoldenPrompt) -> Vec<u32> {
    prompt.token_ids.iter().chain(&prompt.greedy_ids).copied().collect()
}

fn max_len(golden: &Golden) -> usize {
    golden
        .prompts
        .iter()
        .map(|prompt| prompt.token_ids.len() + prompt.greedy_ids.len())
        .max()
        .expect("prompts")
}

fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b]));
    best.expect("a vocabulary has a token") as u32
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    row.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p, q) = (log_softmax(p), log_softmax(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}
