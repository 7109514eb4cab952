//! An engine whose requests are traced.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use opentelemetry_sdk::trace::SdkTracer;
use quire_engine::{
    EngineClient, EngineConfig, EngineStats, EventSink, ModelInfo, PreparedRequest, Prompt, Request,
    RequestEvent, RequestExplanation, RequestId, RequestRoom, RequestStream, Result,
};
use quire_executor::MemoryReport;
use quire_scheduler::record::FlightRecorder;

use super::spans::Stages;

/// Passes everything on, and makes spans of requests that end.
pub(super) struct TracedClient {
    engine: Arc<dyn EngineClient>,
    tracer: Arc<SdkTracer>,
}

impl TracedClient {
    pub(super) fn new(engine: Arc<dyn EngineClient>, tracer: SdkTracer) -> Self {
        Self { engine, tracer: Arc::new(tracer) }
    }
}

#[async_trait]
impl EngineClient for TracedClient {
    async fn submit(&self, request: Request) -> Result<RequestStream> {
        self.prepare(request).await?.start()
    }

    async fn prepare(&self, request: Request) -> Result<PreparedRequest> {
        let (arrived, tracer) = (SystemTime::now(), Arc::clone(&self.tracer));
        let prepared = self.engine.prepare(request).await?;
        let stages = Stages { arrived, prepared: SystemTime::now() };
        Ok(prepared.with_sink(move |sink| Box::new(TracedSink { sink, stages, tracer })))
    }

    async fn check(&self, request: Request) -> Result<Request> {
        self.engine.check(request).await
    }

    async fn tokenize(&self, prompt: Prompt) -> Result<Vec<u32>> {
        self.engine.tokenize(prompt).await
    }

    async fn detokenize(&self, token_ids: Vec<u32>) -> Result<String> {
        self.engine.detokenize(token_ids).await
    }

    async fn text_before(&self, token_ids: Vec<u32>) -> Result<String> {
        self.engine.text_before(token_ids).await
    }

    async fn token_strs(&self, token_ids: Vec<u32>) -> Result<Vec<String>> {
        self.engine.token_strs(token_ids).await
    }

    async fn token_bytes(&self, token_ids: Vec<u32>) -> Result<Vec<Vec<u8>>> {
        self.engine.token_bytes(token_ids).await
    }

    fn model(&self) -> &ModelInfo {
        self.engine.model()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    fn config(&self) -> Option<&EngineConfig> {
        self.engine.config()
    }

    fn memory(&self) -> Option<&MemoryReport> {
        self.engine.memory()
    }

    async fn explain_all(&self) -> Result<Vec<RequestExplanation>> {
        self.engine.explain_all().await
    }

    fn reset_prefix_cache(&self) -> Result<()> {
        self.engine.reset_prefix_cache()
    }

    fn log_schedule_of(&self, id: Option<&RequestId>) -> Result<()> {
        self.engine.log_schedule_of(id)
    }

    fn flight_recorder(&self) -> Option<FlightRecorder> {
        self.engine.flight_recorder()
    }

    fn room_for(&self, request: &Request) -> Option<RequestRoom> {
        self.engine.room_for(request)
    }

    fn health(&self) -> Result<()> {
        self.engine.health()
    }
}

/// Makes the spans of a request when it ends.
struct TracedSink {
    sink: Box<dyn EventSink>,
    stages: Stages,
    tracer: Arc<SdkTracer>,
}

impl EventSink for TracedSink {
    fn send_at(&mut self, event: RequestEvent, moment: Instant) {
        match &event {
            RequestEvent::Finished(output) => self.stages.record(&self.tracer, output),
            RequestEvent::Failed(error) => self.stages.record_failure(&self.tracer, &error.to_string()),
            RequestEvent::PromptLogprobs(_) | RequestEvent::Delta(_) | RequestEvent::SoFar(_) => {}
        }
        self.sink.send_at(event, moment);
    }

    fn wants_deltas(&self) -> bool {
        self.sink.wants_deltas()
    }
}
