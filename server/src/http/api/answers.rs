//! The schemas of answers: what is always there.

use serde_json::{Map, Value, json};

use crate::http::ErrorForm;

pub(super) fn completion() -> Value {
    answer(object([
        ("index", integer()),
        ("text", text()),
        ("finish_reason", json!({ "type": ["string", "null"] })),
    ]))
}

pub(super) fn chat() -> Value {
    let message = object([("role", text()), ("content", json!({ "type": ["string", "null"] }))]);
    answer(object([("index", integer()), ("message", message), ("finish_reason", text())]))
}

fn answer(choice: Value) -> Value {
    let usage =
        object([("prompt_tokens", integer()), ("completion_tokens", integer()), ("total_tokens", integer())]);
    object([
        ("id", text()),
        ("object", text()),
        ("created", integer()),
        ("model", text()),
        ("choices", list(choice)),
        ("usage", usage),
    ])
}

pub(super) fn model() -> Value {
    object([
        ("id", text()),
        ("object", text()),
        ("created", integer()),
        ("owned_by", text()),
        ("max_model_len", integer()),
    ])
}

pub(super) fn models() -> Value {
    object([("object", text()), ("data", list(model()))])
}

pub(super) fn version() -> Value {
    object([("version", text())])
}

pub(super) fn effective() -> Value {
    let setting = object([("value", text()), ("source", text())]);
    object([
        ("settings", json!({ "type": "object", "additionalProperties": setting })),
        ("server", json!({ "type": "object" })),
        ("memory", json!({ "type": ["object", "null"] })),
        ("stats", json!({ "type": "object" })),
    ])
}

/// The tokens as the vocabulary writes them come where they are asked for.
pub(super) fn tokens() -> Value {
    let mut tokens =
        object([("count", integer()), ("max_model_len", integer()), ("tokens", list(integer()))]);
    tokens["properties"]["token_strs"] = list(text());
    tokens
}

pub(super) fn prompt() -> Value {
    object([("prompt", text())])
}

pub(super) fn rendered() -> Value {
    object([
        ("request_id", text()),
        ("model", text()),
        ("prompt", text()),
        ("token_ids", list(integer())),
        ("count", integer()),
        ("max_model_len", integer()),
        ("sampling_params", json!({ "type": "object" })),
    ])
}

pub(super) fn why() -> Value {
    let number = || json!({ "type": "number" });
    let output = object([
        ("request_id", text()),
        ("index", integer()),
        ("status", text()),
        ("age_s", number()),
        ("waiting_s", number()),
        ("why", text()),
    ]);
    object([("id", text()), ("outputs", list(output))])
}

pub(super) fn schedule_log() -> Value {
    object([("request_id", json!({ "type": ["string", "null"] })), ("level", text())])
}

pub(super) fn document() -> Value {
    object([
        ("openapi", text()),
        ("info", json!({ "type": "object" })),
        ("paths", json!({ "type": "object" })),
    ])
}

/// What is said instead of an answer.
pub(super) fn error(form: ErrorForm) -> Value {
    let error = object([
        ("message", text()),
        ("type", text()),
        ("param", json!({ "type": ["string", "null"] })),
        ("code", integer()),
    ]);
    match form {
        ErrorForm::Nested => object([("error", error)]),
        ErrorForm::Flat => error,
    }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let required = fields.each_ref().map(|(name, _)| (*name).to_owned());
    let properties: Map<_, _> = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({ "type": "object", "required": required.to_vec(), "properties": properties })
}

fn list(of: Value) -> Value {
    json!({ "type": "array", "items": of })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn integer() -> Value {
    json!({ "type": "integer" })
}
