//! The routes, and what stands in front of all of them.

use std::sync::Arc;

use axum::Router;
use axum::body::HttpBody;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Uri, Version, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::any;

use super::api::ROUTES;
use super::auth::{self, ApiKeys};
use super::cors::CorsError;
use super::error::{self, ApiError};
use super::host;
use super::request_id::{self, Settled};
use super::service::Service;

/// Routes of other servers that this one does not have yet: clients are told so.
const NOT_BUILT: [&str; 33] = [
    "/v1/completions/render",
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/invocations",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/start_profile",
    "/stop_profile",
    "/load",
    "/tokenizer_info",
    "/inference/v1/generate",
    "/pause",
    "/resume",
    "/is_paused",
    "/abort_requests",
    "/server_info",
];

/// What --disable-fastapi-docs leaves out.
const DOCS: [&str; 2] = ["/docs", "/openapi.json"];

/// Everything the server answers.
///
/// # Errors
///
/// Settings for browsers that no header can be made of.
pub(crate) fn router(service: Arc<Service>) -> Result<Router, CorsError> {
    let cors = service.settings.cors.layer()?;
    let keys = ApiKeys::new(&service.settings.api_keys);
    let shown = ROUTES.iter().filter(|route| service.settings.has_docs || !DOCS.contains(&route.path));
    let routes = shown.fold(Router::new(), |routes, route| routes.route(route.path, (route.handler)()));
    let routes = NOT_BUILT.iter().fold(routes, |routes, path| routes.route(path, any(not_built)));
    let routes = routes
        .layer(DefaultBodyLimit::max(service.settings.max_body_bytes))
        .layer(middleware::from_fn_with_state(keys, auth::check))
        .layer(middleware::from_fn_with_state(Arc::clone(&service), finish))
        .layer(cors)
        .layer(middleware::from_fn_with_state(Arc::clone(&service), check_host))
        .with_state(service);
    Ok(routes)
}

async fn not_built(uri: Uri) -> ApiError {
    ApiError::not_built("path", format!("{} is not built yet", uri.path()))
}

/// Refuses requests to nobody in particular.
async fn check_host(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    match host::check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            service.responses.note(error.status);
            error.respond(service.settings.error_form)
        }
    }
}

/// Writes the bodies of errors, and counts all answers. Those of a server that ends are the last of their connections.
async fn finish(State(service): State<Arc<Service>>, mut request: Request, next: Next) -> Response {
    let is_old = request.version() < Version::HTTP_11;
    let named = request_id::settle(request.headers_mut());
    let mut response = error::finish(service.settings.error_form, next.run(request).await);
    if let Some(Settled { name, fault }) = named {
        fault.into_iter().for_each(|fault| service.note_name(fault));
        response.headers_mut().insert(&request_id::HEADER, name);
    }
    // What comes later over the connection of a server that ends would be refused, or cut off. To older clients the end of the
    // connection is that of a body without a length.
    if service.lifecycle.is_draining() || is_old && response.body().size_hint().exact().is_none() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        if is_old {
            // Else HTTP would promise to keep it.
            *response.version_mut() = Version::HTTP_10;
        }
    }
    service.responses.note(response.status());
    response
}
