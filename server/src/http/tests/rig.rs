//! A server on a scripted engine, called without a socket.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use quire_engine::{
    AsyncLlm, EngineConfig, EngineOptions, EngineParts, EngineStats, EosTokens, ModelFacts, SamplingParams,
};
use quire_executor::testing::{ScriptControl, ScriptedExecutor};
use quire_executor::{DeviceCapacity, LogitsProcessor, LogitsProcessors, RowLogits};
use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use quire_scheduler::Fcfs;
use serde_json::Value;
use tower::ServiceExt;

use crate::http::{HttpSettings, Service, routes};

/// What the scripted model says to everything.
pub(super) const ANSWER: &str = "Hello, wörld!";

pub(super) const VOCAB_SIZE: usize = 300;

/// A logits processor that takes numbers.
struct Picky;

impl LogitsProcessor for Picky {
    fn check_args(&self, args: &Value) -> Result<(), String> {
        args.as_f64().map(drop).ok_or_else(|| "a number".to_owned())
    }

    fn process(&mut self, _rows: &mut [RowLogits<'_>]) {}
}

pub(super) struct Rig {
    pub(super) service: Arc<Service>,
    pub(super) control: ScriptControl,
    router: Router,
}

/// What a rig is made of.
pub(super) struct Parts {
    pub(super) settings: HttpSettings,
    pub(super) options: EngineOptions,
    pub(super) num_blocks: usize,
    pub(super) block_size: usize,
    /// Sequences at once; a step computes eight times as many tokens.
    pub(super) num_rows: usize,
    pub(super) max_model_len: usize,
    pub(super) chat_template: String,
    /// The token at a position, by the prompt.
    pub(super) script: Script,
}

pub(super) type Script = Box<dyn Fn(&[u32], usize) -> u32 + Send>;

/// The same answer to everything.
fn says(answer: &str) -> Script {
    let answer: Vec<u32> = answer.bytes().map(TinyTokenizer::byte).collect();
    Box::new(move |prompt, position| {
        answer.get(position - prompt.len()).copied().unwrap_or(TinyTokenizer::EOS)
    })
}

impl Default for Parts {
    /// 64 blocks of 4 tokens, a context of 200, and [`ANSWER`] to everything.
    fn default() -> Self {
        Self {
            settings: HttpSettings::new(vec!["tiny".to_owned(), "alias".to_owned()]),
            options: EngineOptions::new("tiny"),
            num_blocks: 64,
            block_size: 4,
            num_rows: 8,
            max_model_len: 200,
            chat_template: TinyTokenizer::CHAT_TEMPLATE.to_owned(),
            script: says(ANSWER),
        }
    }
}

impl Parts {
    /// Says its prompt over and over.
    pub(super) fn parrot() -> Self {
        let script = |prompt: &[u32], position: usize| prompt[position % prompt.len()];
        Self { script: Box::new(script), ..Self::default() }
    }

    pub(super) fn start(self) -> Rig {
        let small = ScriptedExecutor::small_capacity(self.num_blocks, self.block_size);
        let max_model_len = small.max_model_len.max(self.max_model_len);
        let capacity = DeviceCapacity {
            vocab_size: VOCAB_SIZE,
            max_model_len,
            max_num_seqs: self.num_rows,
            max_num_batched_tokens: 8 * self.num_rows,
            ..small
        };
        let executor = ScriptedExecutor::new(capacity, self.script);
        let control = executor.control();
        let facts = ModelFacts { max_model_len: self.max_model_len };
        let parts = EngineParts {
            config: EngineConfig::resolve(self.options, facts).expect("they fit"),
            architecture: "Scripted".to_owned(),
            tokenizer: Some(tokenizer()),
            chat_template: Some(self.chat_template),
            eos: EosTokens { silent: [TinyTokenizer::EOS].into(), ..EosTokens::default() },
            default_params: SamplingParams::default(),
            grammar_time_limit: quire_engine::GrammarCompiler::TIME_LIMIT,
            policy: Box::new(Fcfs),
            processors: LogitsProcessors::new().with("picky", || Picky),
            executor: Box::new(executor),
        };
        let engine = AsyncLlm::start(parts).expect("the parts fit together");
        let service = Arc::new(Service::new(Arc::new(engine), self.settings).expect("threads"));
        let router = routes::router(Arc::clone(&service)).expect("the settings are sound");
        Rig { service, control, router }
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Parts::default().start()
    }

    pub(super) fn with(settings: HttpSettings, options: EngineOptions) -> Self {
        Self::saying(ANSWER, settings, options)
    }

    /// Another answer to everything.
    pub(super) fn saying(answer: &str, settings: HttpSettings, options: EngineOptions) -> Self {
        Parts { settings, options, script: says(answer), ..Parts::default() }.start()
    }

    pub(super) fn router(&self) -> Router {
        self.router.clone()
    }

    /// The host is named, as every client does.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Response {
        request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("x"));
        self.router.clone().oneshot(request).await.expect("a router never fails")
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        read(self.send(request).await).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        read(self.send(post(path, body.to_string())).await).await
    }

    /// A stream's events, without the last `[DONE]`.
    pub(super) async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let response = self.send(post(path, body.to_string())).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream; charset=utf-8");
        let bytes = response.into_body().collect().await.expect("all of it").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        let mut events: Vec<_> = text
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").expect("an event"))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.into_iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }

    /// A good request is answered, and nothing is held once it is.
    pub(super) async fn check_alive(&self) {
        let (status, body) =
            self.post("/v1/completions", serde_json::json!({"prompt": "x", "temperature": 0})).await;
        assert_eq!((status, body["choices"][0]["text"].as_str()), (StatusCode::OK, Some(ANSWER)), "{body}");
        self.idle().await;
        assert_eq!(self.control.violations(), []);
    }

    /// Returns when nothing runs, waits or holds a block.
    pub(super) async fn idle(&self) {
        self.until(|stats| (stats.num_running, stats.num_waiting, stats.num_live_blocks) == (0, 0, 0)).await;
    }

    /// Returns when the engine is where `is_there` says.
    pub(super) async fn until(&self, is_there: impl Fn(&EngineStats) -> bool) {
        for _ in 0..5000 {
            if is_there(&self.service.engine.stats()) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        panic!("{:?}", self.service.engine.stats());
    }
}

pub(super) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(body.into()).expect("a request")
}

pub(super) async fn read(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("all of it").to_bytes();
    (
        status,
        serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into())),
    )
}

fn tokenizer() -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TinyTokenizer::json().to_string()).expect("a file");
    let config = TinyTokenizer::config_json().to_string();
    std::fs::write(folder.path().join("tokenizer_config.json"), config).expect("a file");
    Tokenizer::open(&path).expect("a tokenizer")
}
