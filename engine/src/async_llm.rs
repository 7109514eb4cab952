//! The engine for asynchronous programs.

use std::sync::Arc;

use async_trait::async_trait;
use quire_executor::MemoryReport;
use quire_kvcache::PinId;
use quire_scheduler::Explanation;
use quire_scheduler::record::FlightRecorder;
use tokio::sync::oneshot;

use crate::client::{EngineClient, ModelInfo};
use crate::engine::{Engine, EngineParts};
use crate::frontend::guarded;
use crate::template_places::TemplatePlace;
use crate::{
    EngineConfig, EngineStats, Error, Llm, PreparedRequest, Prompt, Request, RequestExplanation, RequestId,
    RequestRoom, RequestStream, Result,
};

/// From here on a prompt is long: its tokenization takes longer than the steps of many a model.
const LONG_PROMPT_BYTES: usize = 16 << 10;

/// An engine in this process, for asynchronous callers. Cheap to clone; the last one dropped ends the engine.
#[derive(Clone, Debug)]
pub struct AsyncLlm {
    engine: Arc<Engine>,
}

impl AsyncLlm {
    /// Starts an engine from its parts.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the parts do not fit together.
    pub fn start(parts: EngineParts) -> Result<Self> {
        Ok(Self { engine: Arc::new(Engine::start(parts)?) })
    }

    /// The same engine, for callers that wait.
    pub fn to_llm(&self) -> Llm {
        Llm::of(Arc::clone(&self.engine))
    }

    /// Why the requests of that name do not run, or what they are doing; empty where there is none (any more). Clients
    /// may have called several by one name.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    pub async fn explain(&self, id: &RequestId) -> Result<Vec<Explanation>> {
        let answer = self.engine.inbox.explain(id.clone())?;
        answer.await.map_err(|_| self.engine.inbox.stopped())
    }

    /// As [`Llm::pin_prefix`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn pin_prefix(&self, prompt: impl Into<Prompt>) -> Result<PinId> {
        let (llm, prompt) = (self.to_llm(), prompt.into());
        self.off_thread(move |_| llm.pin_prefix(prompt)).await
    }

    /// As [`Llm::unpin_prefix`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn unpin_prefix(&self, pin: PinId) -> Result<bool> {
        self.off_thread(move |engine| engine.inbox.unpin(pin)).await
    }

    pub(crate) fn of(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Runs what is done with a prompt of so many bytes: a long one must not keep short ones, or tokens on their way, waiting.
    async fn prompt_off_thread<T: Send + 'static>(
        &self,
        num_bytes: usize,
        run: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if num_bytes < LONG_PROMPT_BYTES {
            return self.off_thread(run).await;
        }
        let (engine, (answer, answered)) = (Arc::clone(&self.engine), oneshot::channel());
        self.engine.background.run(move || {
            // Whoever asked may be gone by now.
            if !answer.is_closed() {
                let _ = answer.send(guarded("preparing a long prompt", || run(&engine)));
            }
        });
        answered.await.unwrap_or_else(|_| Err(Error::stopped("the threads for long prompts have ended")))
    }

    /// Runs what takes a while (templates, tokenizers) where it holds up nobody.
    async fn off_thread<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let engine = Arc::clone(&self.engine);
        let ran = tokio::task::spawn_blocking(move || run(&engine)).await;
        ran.unwrap_or_else(|error| Err(Error::stopped(format!("the task was ended: {error}"))))
    }
}

#[async_trait]
impl EngineClient for AsyncLlm {
    async fn submit(&self, request: Request) -> Result<RequestStream> {
        let place = self.engine.template_places.of_prompt(&request.prompt).await?;
        let num_bytes = request.num_bytes();
        self.prompt_off_thread(num_bytes, move |engine| with(place, || engine.submit(request))).await
    }

    async fn prepare(&self, request: Request) -> Result<PreparedRequest> {
        let place = self.engine.template_places.of_prompt(&request.prompt).await?;
        let num_bytes = request.num_bytes();
        self.prompt_off_thread(num_bytes, move |engine| with(place, || engine.prepare(request))).await
    }

    async fn check(&self, request: Request) -> Result<Request> {
        let place = self.engine.template_places.of_prompt(&request.prompt).await?;
        let num_bytes = request.num_bytes();
        self.prompt_off_thread(num_bytes, move |engine| with(place, || engine.frontend.check(request))).await
    }

    async fn tokenize(&self, prompt: Prompt) -> Result<Vec<u32>> {
        let place = self.engine.template_places.of_prompt(&prompt).await?;
        let num_bytes = prompt.num_bytes();
        self.prompt_off_thread(num_bytes, move |engine| {
            with(place, || engine.frontend.tokenize(prompt, engine.frontend.text_limit()))
        })
        .await
    }

    async fn detokenize(&self, token_ids: Vec<u32>) -> Result<String> {
        self.off_thread(move |engine| engine.frontend.detokenize(&token_ids)).await
    }

    async fn text_before(&self, token_ids: Vec<u32>) -> Result<String> {
        self.off_thread(move |engine| engine.frontend.text_before(&token_ids)).await
    }

    async fn token_strs(&self, token_ids: Vec<u32>) -> Result<Vec<String>> {
        self.off_thread(move |engine| engine.frontend.token_strs(&token_ids)).await
    }

    async fn token_bytes(&self, token_ids: Vec<u32>) -> Result<Vec<Vec<u8>>> {
        self.off_thread(move |engine| engine.frontend.token_bytes(&token_ids)).await
    }

    fn model(&self) -> &ModelInfo {
        &self.engine.model
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    fn config(&self) -> Option<&EngineConfig> {
        Some(&self.engine.config)
    }

    fn memory(&self) -> Option<&MemoryReport> {
        self.engine.memory.as_ref()
    }

    async fn explain_all(&self) -> Result<Vec<RequestExplanation>> {
        self.off_thread(|engine| engine.inbox.explain_all()).await
    }

    fn reset_prefix_cache(&self) -> Result<()> {
        self.engine.inbox.reset_prefix_cache()
    }

    fn log_schedule_of(&self, id: Option<&RequestId>) -> Result<()> {
        self.engine.inbox.log_only(id.cloned())
    }

    fn flight_recorder(&self) -> Option<FlightRecorder> {
        Some(self.engine.recorder.clone())
    }

    fn room_for(&self, request: &Request) -> Option<RequestRoom> {
        Some(self.engine.inbox.room(request.num_seqs()))
    }

    fn health(&self) -> Result<()> {
        self.engine.inbox.status().check()
    }
}

/// Runs what a place was taken for, and gives the place up: also where nobody waits for the outcome any more.
fn with<T>(place: Option<TemplatePlace>, run: impl FnOnce() -> T) -> T {
    let outcome = run();
    drop(place);
    outcome
}
