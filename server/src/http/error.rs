//! What a client is told went wrong.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use quire_engine::ErrorKind;
use serde_json::{Value, json};

use crate::error::with_causes;

/// Beyond this a message is cut.
const MAX_MESSAGE_BYTES: usize = 600;
/// Beyond this the name of a field is.
const MAX_NAME_BYTES: usize = 64;

/// An error on its way to a client. The body is written by [`ErrorForm`], since it depends on the server's settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field of the request that is to be changed.
    pub(crate) param: Option<String>,
    /// Seconds after which the same request may succeed.
    pub(crate) retry_after_s: Option<u64>,
}

/// The form of error bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ErrorForm {
    /// `{"error": {...}}`, as OpenAI and today's vLLM have it.
    #[default]
    Nested,
    /// The object alone, as vLLM 0.7 has it.
    Flat,
}

impl ApiError {
    /// A message of any length: what a client sent may be part of it, and is not sent back whole.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, retry_after_s: None }
    }

    /// A request that is wrong, in a field.
    pub(crate) fn bad_field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A field or a route that is known and has no code yet.
    pub(crate) fn not_built(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::NOT_IMPLEMENTED, message) }
    }

    /// The name of the error's kind on the wire.
    pub(crate) fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "AuthenticationError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            StatusCode::NOT_IMPLEMENTED => "NotImplementedError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            StatusCode::HTTP_VERSION_NOT_SUPPORTED => "BadRequestError",
            status if status.is_server_error() => "InternalServerError",
            _ => "BadRequestError",
        }
    }

    /// The error as an object: what an event of a stream holds as well.
    pub(crate) fn to_json(&self, form: ErrorForm) -> Value {
        let error = json!({
            "message": shortened(&self.message, MAX_MESSAGE_BYTES),
            "type": self.kind(),
            "param": self.param.as_deref().map(shortened_name),
            "code": self.status.as_u16(),
        });
        match form {
            ErrorForm::Nested => json!({ "error": error }),
            ErrorForm::Flat => {
                let mut flat = error;
                flat["object"] = "error".into();
                flat
            }
        }
    }

    /// The whole answer.
    pub(crate) fn respond(&self, form: ErrorForm) -> Response {
        let mut response = (self.status, axum::Json(self.to_json(form))).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE
            && self.param.as_deref() == Some("Content-Encoding")
        {
            // RFC 9110, 12.5.3: what would be taken.
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A text of so many bytes at most, more or less. What is long about a message is a value in its midst: the beginning says which,
/// the end what is wrong with it.
fn shortened(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return text.into();
    }
    let head = &text[..text.floor_char_boundary(max_bytes / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - max_bytes / 2)..];
    format!("{head} ... {tail}").into()
}

/// The name of a field that a client made up.
pub(crate) fn shortened_name(name: &str) -> Cow<'_, str> {
    shortened(name, MAX_NAME_BYTES)
}

impl From<quire_engine::Error> for ApiError {
    fn from(error: quire_engine::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::BadRequest => StatusCode::BAD_REQUEST,
            ErrorKind::NotBuilt => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let param = error.field().map(str::to_owned);
        Self { param, ..Self::new(status, with_causes(&error)) }
    }
}

impl From<quire_engine::ParamError> for ApiError {
    fn from(error: quire_engine::ParamError) -> Self {
        quire_engine::Error::from(error).into()
    }
}

/// Carries the error to the layer that writes bodies (`finish`), which knows the form.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the body of an error, also of those that the router answers by itself.
pub(crate) fn finish(form: ErrorForm, response: Response) -> Response {
    if let Some(error) = response.extensions().get::<ApiError>() {
        return error.respond(form);
    }
    match response.status() {
        StatusCode::NOT_FOUND => ApiError::new(StatusCode::NOT_FOUND, "there is no such route").respond(form),
        // The router adds the header after this.
        StatusCode::METHOD_NOT_ALLOWED => {
            let message = "the route does not have this method: the header Allow names those it has";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).respond(form)
        }
        // The router's own word for a path that it cannot read.
        StatusCode::BAD_REQUEST if !is_json(&response) => {
            ApiError::bad_field("path", "the path is no text: expected UTF-8 behind its percent signs")
                .respond(form)
        }
        _ => response,
    }
}

fn is_json(response: &Response) -> bool {
    let of_type = response.headers().get(header::CONTENT_TYPE);
    of_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_hold_the_same() {
        let error = ApiError::bad_field("top_p", "top_p is 0: expected above 0");
        let inner = json!({"message": "top_p is 0: expected above 0", "type": "BadRequestError", "param": "top_p", "code": 400});
        assert_eq!(error.to_json(ErrorForm::Nested), json!({ "error": inner }));
        let mut flat = inner;
        flat["object"] = "error".into();
        assert_eq!(error.to_json(ErrorForm::Flat), flat);
    }

    #[test]
    fn a_value_of_megabytes_is_not_sent_back_whole() {
        let long = "ü".repeat(1 << 20);
        let error = ApiError::bad_field(&long, format!("temperature is {long}: expected a number"));
        let told = &error.to_json(ErrorForm::Nested)["error"];
        let (message, param) = (told["message"].as_str(), told["param"].as_str());
        let (message, param) = (message.expect("a text"), param.expect("a name"));
        assert!(message.starts_with("temperature is ü") && message.ends_with("ü: expected a number"));
        assert!(message.len() <= MAX_MESSAGE_BYTES + " ... ".len() && message.contains(" ... "));
        assert!(param.len() <= MAX_NAME_BYTES + " ... ".len(), "{param}");
    }

    #[test]
    fn an_engine_error_keeps_field_and_kind() {
        let refused = quire_engine::ParamError::Unknown { field: "x".to_owned() };
        let error = ApiError::from(refused);
        assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, Some("x")));
        let full = quire_engine::Error::Overloaded { num_waiting: 4, max_num_waiting: 4 };
        assert_eq!(ApiError::from(full).status, StatusCode::TOO_MANY_REQUESTS);
    }
}
