//! A running engine without a model.

use std::time::Duration;

use quire_engine::{
    EngineConfig, EngineOptions, EngineParts, EosTokens, Llm, ModelFacts, Request, RequestEvent,
    RequestOutput, SamplingParams,
};
use quire_executor::DeviceCapacity;
use quire_executor::testing::{ScriptControl, ScriptedExecutor};
use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use quire_scheduler::{Fcfs, SchedulerPolicy};

pub(crate) const EOS: u32 = TinyTokenizer::EOS;
pub(crate) const VOCAB_SIZE: usize = 300;
/// The first id that the tokenizer of bytes leaves free.
pub(crate) const FIRST_LONGER: u32 = 267;

pub(crate) struct Rig {
    pub(crate) llm: Llm,
    pub(crate) control: ScriptControl,
}

/// What a [`Rig`] is made from.
pub(crate) struct RigSpec {
    pub(crate) options: EngineOptions,
    pub(crate) capacity: DeviceCapacity,
    pub(crate) eos: EosTokens,
    pub(crate) chat_template: Option<String>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) grammar_time_limit: Duration,
    pub(crate) policy: Box<dyn SchedulerPolicy>,
}

impl Default for RigSpec {
    /// 64 blocks of 4 tokens.
    fn default() -> Self {
        Self::with_pool(64, 4)
    }
}

impl RigSpec {
    pub(crate) fn with_pool(num_blocks: usize, block_size: usize) -> Self {
        let capacity = DeviceCapacity {
            vocab_size: VOCAB_SIZE,
            ..ScriptedExecutor::small_capacity(num_blocks, block_size)
        };
        Self {
            options: EngineOptions::new("scripted"),
            capacity,
            eos: EosTokens { silent: [EOS].into(), ..EosTokens::default() },
            chat_template: Some(TinyTokenizer::CHAT_TEMPLATE.to_owned()),
            tokenizer: tokenizer(),
            // Other tests may have the processor.
            grammar_time_limit: Duration::from_secs(60),
            policy: Box::new(Fcfs),
        }
    }

    pub(crate) fn plain(mut self) -> Self {
        self.options = self.options.async_scheduling(false);
        self
    }

    pub(crate) fn start(self, script: impl Fn(&[u32], usize) -> u32 + Send + 'static) -> Rig {
        let facts = ModelFacts { max_model_len: self.capacity.max_model_len };
        let executor = ScriptedExecutor::new(self.capacity, script);
        let control = executor.control();
        let parts = EngineParts {
            config: EngineConfig::resolve(self.options, facts).unwrap(),
            architecture: "Scripted".to_owned(),
            tokenizer: Some(self.tokenizer),
            chat_template: self.chat_template,
            eos: self.eos,
            default_params: SamplingParams::default(),
            grammar_time_limit: self.grammar_time_limit,
            policy: self.policy,
            processors: Default::default(),
            executor: Box::new(executor),
        };
        Rig { llm: Llm::start(parts).unwrap(), control }
    }

    /// Every request gives `tokens` and then the end token.
    pub(crate) fn start_with_tokens(self, tokens: Vec<u32>) -> Rig {
        self.start(move |prompt, position| tokens.get(position - prompt.len()).copied().unwrap_or(EOS))
    }

    /// The same, a token a byte.
    pub(crate) fn start_with_bytes(self, bytes: impl AsRef<[u8]>) -> Rig {
        self.start_with_tokens(byte_tokens(bytes))
    }
}

impl Rig {
    pub(crate) fn generate(&self, params: SamplingParams) -> RequestOutput {
        self.llm.generate(["x"], &params).unwrap().remove(0)
    }

    /// All pieces of a request's text, and its end.
    pub(crate) fn stream(&self, params: SamplingParams) -> (Vec<String>, RequestOutput) {
        drain(self.llm.stream(Request::new("x", params)).unwrap())
    }

    /// A plain request still gets its answer, and nothing was wrong with the batches so far.
    #[track_caller]
    pub(crate) fn check_alive(&self) {
        let output = self.llm.generate(["y"], &SamplingParams::greedy(1)).unwrap().remove(0);
        assert_eq!(output.outputs[0].token_ids.len(), 1);
        assert_eq!(self.control.violations(), []);
    }

    /// See [`check_idle`].
    #[track_caller]
    pub(crate) fn check_idle(&self) {
        check_idle(&self.llm);
    }
}

/// All blocks are free or cached and nothing runs. Waits for the step that is open, and for an abort on its way.
#[track_caller]
pub(crate) fn check_idle(llm: &Llm) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let stats = llm.stats();
        if (stats.num_live_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{stats:?}");
        std::thread::yield_now();
    }
}

/// Reads a stream to its end. Each token must come once and in order, with its text.
#[track_caller]
pub(crate) fn drain(mut stream: quire_engine::RequestStream) -> (Vec<String>, RequestOutput) {
    let (mut pieces, mut token_ids) = (Vec::new(), Vec::new());
    loop {
        match stream.blocking_next().expect("a stream ends with an event") {
            RequestEvent::Delta(delta) => {
                pieces.push(delta.text);
                token_ids.extend(delta.token_ids);
            }
            RequestEvent::PromptLogprobs(_) => {}
            RequestEvent::SoFar(_) => panic!("pieces were asked for"),
            RequestEvent::Finished(output) => {
                assert!(stream.blocking_next().is_none());
                assert_eq!(pieces.concat(), output.outputs[0].text);
                assert_eq!(token_ids, output.outputs[0].token_ids);
                return (pieces, *output);
            }
            RequestEvent::Failed(error) => panic!("{error}"),
        }
    }
}

pub(crate) fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// The tokenizer of bytes with a few longer tokens at the end.
pub(crate) fn tokenizer_with(longer: &[&str]) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut json = TinyTokenizer::json();
    let added = json["added_tokens"].as_array_mut().unwrap();
    assert_eq!(TinyTokenizer::tokens().len(), FIRST_LONGER as usize);
    for (token, id) in longer.iter().zip(FIRST_LONGER..) {
        added.push(serde_json::json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    std::fs::write(&path, json.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), TinyTokenizer::config_json().to_string())
        .unwrap();
    Tokenizer::open(&path).unwrap()
}

pub(crate) fn byte_tokens(bytes: impl AsRef<[u8]>) -> Vec<u32> {
    bytes.as_ref().iter().map(|&byte| TinyTokenizer::byte(byte)).collect()
}

/// A script that depends on all of the prompt and on the position, and now and then ends.
pub(crate) fn noise(prompt: &[u32], position: usize) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for value in prompt.iter().map(|&id| u64::from(id)).chain([position as u64]) {
        hash = (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    (hash % 259) as u32
}

/// What [`noise`] gives for a prompt, with the end token.
pub(crate) fn noise_output(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    while tokens.len() < max_tokens && tokens.last() != Some(&EOS) {
        tokens.push(noise(prompt, prompt.len() + tokens.len()));
    }
    tokens
}

/// Numbers that only look random (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}
