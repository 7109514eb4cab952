//! Routes that tell what is served, and whether.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::error::ApiError;
use super::memory;
use super::service::Service;

/// `GET /health`: whether the process serves at all.
pub(crate) async fn health(State(service): State<Arc<Service>>) -> Result<(), ApiError> {
    Ok(service.engine.health()?)
}

/// `GET /health/ready`: whether new work should come here.
pub(crate) async fn ready(State(service): State<Arc<Service>>) -> Result<(), ApiError> {
    service.engine.health()?;
    if service.lifecycle.is_draining() {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"));
    }
    match service.watchdog.stalled_for() {
        None => Ok(()),
        Some(stalled) => {
            let message = format!("the engine has finished no step for {} s", stalled.as_secs());
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
        }
    }
}

/// `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /v1/models`.
pub(crate) async fn models(State(service): State<Arc<Service>>) -> Json<Value> {
    let models: Vec<_> =
        service.settings.served_names.iter().map(|name| model_card(&service, name)).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// `GET /v1/models/{model}`.
pub(crate) async fn model(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = service.model_name(Some(name))?;
    Ok(Json(model_card(&service, &name)))
}

fn model_card(service: &Service, name: &str) -> Value {
    let model = service.engine.model();
    json!({
        "id": name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "vllm",
        "root": model.path,
        "parent": null,
        // What is in force: clients size their prompts by it.
        "max_model_len": model.max_model_len,
        "permission": [{
            "id": format!("modelperm-{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")),
            "object": "model_permission",
            "created": service.started_s,
            "allow_create_engine": false,
            "allow_sampling": true,
            "allow_logprobs": true,
            "allow_search_indices": false,
            "allow_view": true,
            "allow_fine_tuning": false,
            "organization": "*",
            "group": null,
            "is_blocking": false,
        }],
    })
}

/// Other methods of `/v1/effective`.
pub(crate) async fn refuse_change() -> impl IntoResponse {
    let message = "the configuration of a running server does not change: each setting needs a restart, with its flag \
                   or in the file of --config";
    ([(header::ALLOW, "GET,HEAD")], ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response())
}

/// `GET /v1/effective`: every setting in force, and where it came from; those of the server itself; the memory sum.
pub(crate) async fn effective(State(service): State<Arc<Service>>) -> Json<Value> {
    let lines = service.engine.config().map(|config| config.lines()).unwrap_or_default();
    let settings = lines.into_iter().map(|(name, value, source)| {
        (name.to_owned(), json!({ "value": value, "source": source.to_string() }))
    });
    Json(json!({
        "settings": Value::Object(settings.collect()),
        "server": service.settings.shown(),
        "memory": service.engine.memory().map(memory::sum),
        "stats": service.engine.stats(),
    }))
}
