//! A server on a scripted engine, called without a socket.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use quire_engine::{
    AsyncLlm, EngineConfig, EngineOptions, EngineParts, EosTokens, ModelFacts, SamplingParams,
};
use quire_executor::DeviceCapacity;
use quire_executor::testing::{ScriptControl, ScriptedExecutor};
use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use quire_scheduler::Fcfs;
use serde_json::Value;
use tower::ServiceExt;

use crate::http::{HttpSettings, Service, routes};

/// What the scripted model says to everything.
pub(super) const ANSWER: &str = "Hello, wörld!";

pub(super) const VOCAB_SIZE: usize = 300;

pub(super) struct Rig {
    pub(super) service: Arc<Service>,
    pub(super) control: ScriptControl,
    router: Router,
}

impl Rig {
    /// 64 blocks of 4 tokens, a context of 200.
    pub(super) fn new() -> Self {
        Self::with(HttpSettings::new(vec!["tiny".to_owned(), "alias".to_owned()]), EngineOptions::new("tiny"))
    }

    pub(super) fn with(settings: HttpSettings, options: EngineOptions) -> Self {
        Self::saying(ANSWER, settings, options)
    }

    /// Another answer to everything.
    pub(super) fn saying(answer: &str, settings: HttpSettings, options: EngineOptions) -> Self {
        let capacity = DeviceCapacity { vocab_size: VOCAB_SIZE, ..ScriptedExecutor::small_capacity(64, 4) };
        let answer: Vec<u32> = answer.bytes().map(TinyTokenizer::byte).collect();
        let executor = ScriptedExecutor::new(capacity, move |prompt, position| {
            answer.get(position - prompt.len()).copied().unwrap_or(TinyTokenizer::EOS)
        });
        let control = executor.control();
        let parts = EngineParts {
            config: EngineConfig::resolve(options, ModelFacts { max_model_len: 200 }).expect("they fit"),
            architecture: "Scripted".to_owned(),
            tokenizer: Some(tokenizer()),
            chat_template: Some(TinyTokenizer::CHAT_TEMPLATE.to_owned()),
            eos: EosTokens { silent: [TinyTokenizer::EOS].into(), ..EosTokens::default() },
            default_params: SamplingParams::default(),
            grammar_time_limit: quire_engine::GrammarCompiler::TIME_LIMIT,
            policy: Box::new(Fcfs),
            executor: Box::new(executor),
        };
        let engine = AsyncLlm::start(parts).expect("the parts fit together");
        let service = Arc::new(Service::new(Arc::new(engine), settings));
        let router = routes::router(Arc::clone(&service)).expect("the settings are sound");
        Self { service, control, router }
    }

    pub(super) fn router(&self) -> Router {
        self.router.clone()
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Response {
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
        for _ in 0..5000 {
            let stats = self.service.engine.stats();
            if (stats.num_running, stats.num_waiting, stats.num_live_blocks) == (0, 0, 0) {
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
