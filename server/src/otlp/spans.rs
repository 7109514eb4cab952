//! The spans of a request, made at its end.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span as SdkSpan};
use quire_engine::RequestOutput;

/// What is known of a request before it is queued.
#[derive(Clone, Copy)]
pub(super) struct Stages {
    pub(super) arrived: SystemTime,
    /// Checked, and its prompt made of tokens.
    pub(super) prepared: SystemTime,
}

impl Stages {
    /// `llm_request`, and in it `prepare`, `queue`, `prefill` (to the first token) and `decode`: a stage that there was none
    /// of has no span.
    pub(super) fn record(&self, tracer: &SdkTracer, output: &RequestOutput) {
        let after = |ms: f64| self.arrived + Duration::from_secs_f64(ms.max(0.0) / 1e3);
        let metrics = &output.metrics;
        let (begun, ended) =
            (after(metrics.queue_ms).max(self.prepared), after(metrics.e2e_ms).max(self.prepared));
        let first = metrics.ttft_ms.map(after);
        let context = Context::new().with_span(self.root(tracer, attributes(output)));
        let stages = [
            ("prepare", self.arrived, Some(self.prepared)),
            ("queue", self.prepared, Some(begun.min(ended))),
            ("prefill", begun, first.or(Some(ended).filter(|end| *end > begun))),
            ("decode", first.unwrap_or(ended), first.and(Some(ended))),
        ];
        for (name, start, end) in
            stages.into_iter().filter_map(|(name, start, end)| Some((name, start, end?)))
        {
            let span = tracer.span_builder(name).with_start_time(start);
            span.start_with_context(tracer, &context).end_with_timestamp(end.max(start));
        }
        context.span().end_with_timestamp(ended);
    }

    /// A request that ended with an error, now.
    pub(super) fn record_failure(&self, tracer: &SdkTracer, message: &str) {
        let mut span = self.root(tracer, Vec::new());
        span.set_status(Status::error(message.to_owned()));
        span.end();
    }

    fn root(&self, tracer: &SdkTracer, attributes: Vec<KeyValue>) -> SdkSpan {
        let span =
            tracer.span_builder("llm_request").with_kind(SpanKind::Server).with_start_time(self.arrived);
        span.with_attributes(attributes).start_with_context(tracer, &Context::new())
    }
}

/// Under the names that vLLM has for them.
fn attributes(output: &RequestOutput) -> Vec<KeyValue> {
    let num_tokens: usize = output.outputs.iter().map(|one| one.token_ids.len()).sum();
    let count = |num: usize| i64::try_from(num).unwrap_or(i64::MAX);
    let metrics = &output.metrics;
    let mut attributes = vec![
        KeyValue::new("gen_ai.request.id", output.request_id.to_string()),
        KeyValue::new("gen_ai.request.n", count(output.outputs.len())),
        KeyValue::new("gen_ai.usage.prompt_tokens", count(output.prompt_token_ids.len())),
        KeyValue::new("gen_ai.usage.completion_tokens", count(num_tokens)),
        KeyValue::new("gen_ai.latency.time_in_queue", metrics.queue_ms / 1e3),
        KeyValue::new("gen_ai.latency.e2e", metrics.e2e_ms / 1e3),
    ];
    attributes
        .extend(metrics.ttft_ms.map(|ms| KeyValue::new("gen_ai.latency.time_to_first_token", ms / 1e3)));
    let reason = output.outputs.first().map(|one| one.finish_reason.name());
    attributes.extend(reason.map(|reason| KeyValue::new("gen_ai.response.finish_reason", reason)));
    attributes
}
