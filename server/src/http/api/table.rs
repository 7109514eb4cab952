//! The table: the router is made of it, and so is the document.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use super::{Answer, Route, answers, fields};
use crate::http::chat::chat_completions;
use crate::http::completions::completions;
use crate::http::render::render;
use crate::http::service::Service;
use crate::http::{debug, live, metrics, status, tokens};

type Handler = fn() -> MethodRouter<Arc<Service>>;

const STRICT: (&str, &str) = ("X-Quire-Strict", "1 refuses fields that have no effect.");
const NAME: (&str, &str) = ("X-Request-Id", "Names the request; request_id in the body wins.");
const TIMEOUT: (&str, &str) = ("X-Request-Timeout", "Seconds after which the request ends with 408.");

/// All that the server answers, but for what is told to be not built.
pub(crate) const ROUTES: &[Route] = &[
    Route::post(
        "/v1/completions",
        || post(completions),
        "Continues prompts.",
        Answer::JsonOrEvents(answers::completion),
    )
    .takes(fields::completion, &[NAME, TIMEOUT, STRICT]),
    Route::post(
        "/v1/chat/completions",
        || post(chat_completions),
        "Answers a conversation.",
        Answer::JsonOrEvents(answers::chat),
    )
    .takes(fields::chat, &[NAME, TIMEOUT, STRICT]),
    Route::post(
        "/v1/chat/completions/render",
        || post(render),
        "The prompt that a conversation would be, as text and as tokens; nothing is generated.",
        Answer::Json(answers::rendered),
    )
    .takes(fields::chat, &[NAME, STRICT]),
    Route::get("/v1/models", || get(status::models), "What is served.", Answer::Json(answers::models)),
    Route::get(
        "/v1/models/{*model}",
        || get(status::model),
        "One of the names.",
        Answer::Json(answers::model),
    ),
    Route::post(
        "/tokenize",
        || post(tokens::tokenize),
        "The tokens of a prompt.",
        Answer::Json(answers::tokens),
    )
    .takes(fields::tokenize, &[STRICT]),
    Route::post(
        "/detokenize",
        || post(tokens::detokenize),
        "The text of tokens.",
        Answer::Json(answers::prompt),
    )
    .takes(fields::detokenize, &[STRICT]),
    Route::get("/health", || get(status::health), "200 while the engine lives.", Answer::Empty),
    Route::get(
        "/health/ready",
        || get(status::ready),
        "200 while new work should come here: the engine lives, steps end in time, the server stays.",
        Answer::Empty,
    ),
    Route::get("/ping", || get(status::health), "As /health.", Answer::Empty),
    Route::post("/ping", || post(status::health), "As /health.", Answer::Empty),
    Route::get("/version", || get(status::version), "Quire's version.", Answer::Json(answers::version)),
    Route::get("/metrics", || get(metrics::metrics), "Prometheus' text.", Answer::Text("text/plain")),
    Route::get(
        "/v1/effective",
        || get(status::effective).fallback(status::refuse_change),
        "Every setting in force with its source, the memory sum, and counters.",
        Answer::Json(answers::effective),
    ),
    Route::get(
        "/v1/requests/{id}/why",
        || get(debug::why),
        "What a request that has not ended is doing, and what it waits for.",
        Answer::Json(answers::why),
    ),
    Route::post(
        "/reset_prefix_cache",
        || post(debug::reset_prefix_cache),
        "Forgets what the prefix cache holds.",
        Answer::Empty,
    ),
    Route::post(
        "/debug/schedule-log",
        || post(debug::schedule_log),
        "Writes scheduling decisions to the log.",
        Answer::Json(answers::schedule_log),
    )
    .takes(fields::schedule_log, &[]),
    Route::get("/", || get(live::page), "A page that shows the engine at work.", Answer::Text("text/html")),
    Route::get(
        "/live/events",
        || get(live::events),
        "What that page shows, an event a second.",
        Answer::Text("text/event-stream"),
    ),
    Route::get("/openapi.json", || get(super::openapi), "This document.", Answer::Json(answers::document)),
    Route::get("/docs", || get(super::page), "A page that shows this document.", Answer::Text("text/html")),
];

impl Route {
    const fn get(path: &'static str, handler: Handler, summary: &'static str, answer: Answer) -> Self {
        Self { method: "get", path, handler, summary, fields: None, headers: &[], answer }
    }

    const fn post(path: &'static str, handler: Handler, summary: &'static str, answer: Answer) -> Self {
        Self { method: "post", ..Self::get(path, handler, summary, answer) }
    }

    const fn takes(
        self,
        fields: fn(&quire_engine::SamplingParams) -> Vec<super::Field>,
        headers: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { fields: Some(fields), headers, ..self }
    }
}
