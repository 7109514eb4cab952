//! The API as a table, and what is made of it: the router, `GET /openapi.json` and `GET /docs`.

mod answers;
mod document;
mod field;
mod fields;
mod table;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Html;
use axum::routing::MethodRouter;
use quire_engine::SamplingParams;
use serde_json::Value;

use super::service::Service;
pub(crate) use field::Field;
pub(crate) use table::ROUTES;

/// One method of one path.
pub(crate) struct Route {
    /// In small letters, as OpenAPI has it.
    pub(crate) method: &'static str,
    /// As the router has it; `{*name}` takes slashes too.
    pub(crate) path: &'static str,
    /// What answers.
    pub(crate) handler: fn() -> MethodRouter<Arc<Service>>,
    /// What it does, in one line.
    summary: &'static str,
    /// The fields of its body, where it has one; what a request does not give is as in the parameters.
    pub(crate) fields: Option<fn(&SamplingParams) -> Vec<Field>>,
    headers: &'static [(&'static str, &'static str)],
    answer: Answer,
}

/// What an answer of status 200 holds.
#[derive(Clone, Copy)]
enum Answer {
    Empty,
    /// JSON of that schema.
    Json(fn() -> Value),
    /// The same, or server-sent events where the request asks for them.
    JsonOrEvents(fn() -> Value),
    /// Text of that type.
    Text(&'static str),
}

/// `GET /openapi.json`.
pub(crate) async fn openapi(State(service): State<Arc<Service>>) -> Json<Value> {
    let settings = &service.settings;
    Json(document::document(&document::Facts {
        defaults: &service.engine.model().default_params,
        served_names: &settings.served_names,
        error_form: settings.error_form,
        has_keys: !settings.api_keys.is_empty(),
    }))
}

/// `GET /docs`. It holds nothing: it asks for the document, and for the API key.
pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("page.html"))
}
