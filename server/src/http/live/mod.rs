//! The live page: one file without outside parts, and the numbers that it shows.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{Html, Response};
use futures_util::stream;
use serde_json::{Value, json};

use super::debug::explanation;
use super::service::{Service, unix_time_ms};

/// How often the page is told.
const PERIOD: Duration = Duration::from_secs(1);

/// Requests that are listed, the oldest first.
const MAX_REQUESTS: usize = 200;

/// `GET /`. It holds no numbers: those are behind the API key, which it asks for.
pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("page.html"))
}

/// `GET /live/events`: a look at the engine each second, until the reader leaves or the server ends.
pub(crate) async fn events(State(service): State<Arc<Service>>) -> Response {
    let ticks = tokio::time::interval(PERIOD);
    let looks = stream::unfold((service, ticks), async |(service, mut ticks)| {
        ticks.tick().await;
        if service.lifecycle.is_draining() {
            return None;
        }
        let event = format!("data: {}\n\n", look(&service).await);
        Some((Ok::<_, Infallible>(Bytes::from(event)), (service, ticks)))
    });
    let mut response = Response::new(Body::from_stream(looks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// What the engine is doing now.
async fn look(service: &Service) -> Value {
    // An engine that hangs does not answer: the numbers of its last step are shown all the same.
    let asked = tokio::time::timeout(PERIOD, service.engine.explain_all()).await;
    let all = asked.ok().and_then(Result::ok).unwrap_or_default();
    let requests: Vec<_> = all.iter().take(MAX_REQUESTS).map(explanation).collect();
    json!({
        "time_ms": unix_time_ms(),
        "stats": service.engine.stats(),
        "num_requests": all.len(),
        "requests": requests,
    })
}
