//! Routes by which an operator looks into a running engine.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quire_engine::RequestExplanation;
use serde_json::{Value, json};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::request_id;
use super::service::Service;

/// `GET /v1/requests/{id}/why`: what each output of a request is doing, and what it waits for.
pub(crate) async fn why(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let meant = open_outputs(&service, &id, "id").await?;
    let outputs = meant.iter().map(explanation);
    Ok(Json(json!({ "id": id, "outputs": outputs.collect::<Vec<_>>() })))
}

/// The outputs of the request that `param` names, of all its prompts; 404 where there is none.
async fn open_outputs(service: &Service, id: &str, param: &str) -> Result<Vec<RequestExplanation>, ApiError> {
    let mut meant = service.engine.explain_all().await?;
    meant.retain(|one| request_id::is_meant(one.request_id.as_str(), id));
    if meant.is_empty() {
        let message = format!("no request {id:?} is open: it never came, or it has ended");
        return Err(ApiError {
            param: Some(param.to_owned()),
            ..ApiError::new(StatusCode::NOT_FOUND, message)
        });
    }
    Ok(meant)
}

/// What one output is doing, as an object.
pub(crate) fn explanation(one: &RequestExplanation) -> Value {
    json!({
        "request_id": one.request_id,
        "index": one.index,
        "status": format!("{:?}", one.explanation.status).to_lowercase(),
        "age_s": one.explanation.age.as_secs_f64(),
        "waiting_s": one.explanation.waiting.as_secs_f64(),
        "why": one.to_string(),
    })
}

/// `POST /reset_prefix_cache`.
pub(crate) async fn reset_prefix_cache(State(service): State<Arc<Service>>) -> Result<(), ApiError> {
    Ok(service.engine.reset_prefix_cache()?)
}

/// `POST /debug/schedule-log`: whose scheduling decisions are logged. A request has to be open.
pub(crate) async fn schedule_log(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Json<Value>, ApiError> {
    let id = body.take_text("request_id")?;
    // By the name that the engine has for it: that of its first prompt.
    let open = match &id {
        Some(id) => open_outputs(&service, id, "request_id").await?.into_iter().next(),
        None => None,
    };
    let level = body.take_text("level")?.unwrap_or_else(|| "debug".to_owned());
    service.pass_over(&body.rest(), &caller)?;
    crate::logging::set_target_level("quire::schedule", &level)
        .map_err(|error| ApiError::bad_field("level", error.to_string()))?;
    service.engine.log_schedule_of(open.map(|one| one.request_id).as_ref())?;
    Ok(Json(json!({ "request_id": id, "level": level })))
}
