//! The OpenAPI document, written from the table.

use quire_engine::SamplingParams;
use serde_json::{Map, Value, json};

use super::{Answer, Field, ROUTES, Route, answers};
use crate::http::ErrorForm;
use crate::http::auth;

const ABOUT: &str = "The API of OpenAI as vLLM serves it. A field that is null counts as absent; one that is wrong is answered \
with 400 and its name in `param`, one that has no code yet with 501.";

/// What a document says of one server.
pub(super) struct Facts<'a> {
    /// Fields that a request does not give are as here.
    pub(super) defaults: &'a SamplingParams,
    /// What the model may be called.
    pub(super) served_names: &'a [String],
    pub(super) error_form: ErrorForm,
    pub(super) has_keys: bool,
}

/// The whole document (OpenAPI 3.1).
pub(super) fn document(facts: &Facts<'_>) -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(shown_path(route.path)).or_insert_with(|| json!({}));
        path[route.method] = operation(route, facts);
    }
    let error = json!({
        "description": "What went wrong.",
        "content": { "application/json": { "schema": answers::error(facts.error_form) } },
    });
    let mut components = json!({ "responses": { "Error": error } });
    if facts.has_keys {
        components["securitySchemes"] = json!({ "key": { "type": "http", "scheme": "bearer" } });
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Quire", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT },
        "paths": paths,
        "components": components,
    })
}

/// `{*name}` is the router's way to write a parameter that takes slashes.
pub(super) fn shown_path(path: &str) -> String {
    path.replace("{*", "{")
}

fn operation(route: &Route, facts: &Facts<'_>) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "operationId": format!("{} {}", route.method, shown_path(route.path)),
        "responses": { "200": answer(route.answer), "default": { "$ref": "#/components/responses/Error" } },
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(fields) = route.fields {
        let mut schema = body(&fields(facts.defaults));
        if let Some(model) = schema["properties"].get_mut("model") {
            let names = facts.served_names.iter().map(|name| json!(name));
            model["enum"] = names.chain([Value::Null]).collect();
        }
        let content = json!({ "application/json": { "schema": schema } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if facts.has_keys && !auth::is_open(route.path) {
        operation["security"] = json!([{ "key": [] }]);
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let of_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let of_path = of_path.map(|name| {
        let name = name.trim_start_matches('*');
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let of_head = route.headers.iter().map(|(name, text)| {
        json!({ "name": name, "in": "header", "description": text, "schema": { "type": "string" } })
    });
    of_path.chain(of_head).collect()
}

fn body(fields: &[Field]) -> Value {
    let properties = fields.iter().map(|field| (field.name.to_owned(), field.schema()));
    let required: Vec<_> = fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    json!({ "type": "object", "required": required, "properties": Value::Object(properties.collect()) })
}

fn answer(answer: Answer) -> Value {
    let json = |schema: fn() -> Value| json!({ "schema": schema() });
    let text = json!({ "schema": { "type": "string" } });
    match answer {
        Answer::Empty => json!({ "description": "Yes." }),
        Answer::Json(schema) => {
            json!({ "description": "The answer.", "content": { "application/json": json(schema) } })
        }
        Answer::JsonOrEvents(schema) => json!({
            "description": "The answer, or its pieces as server-sent events where stream is true.",
            "content": { "application/json": json(schema), "text/event-stream": text },
        }),
        Answer::Text(kind) => json!({ "description": "The answer.", "content": { kind: text } }),
    }
}
