use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};

use super::rig::Rig;
use crate::http::HttpSettings;
use crate::http::api::ROUTES;
use crate::http::body::asked;

use quire_engine::{EngineOptions, SamplingParams};

#[tokio::test]
async fn the_document_tells_of_every_route_and_its_methods() {
    let rig = Rig::new();
    let mut methods = BTreeMap::<_, BTreeSet<_>>::new();
    for route in ROUTES {
        methods.entry(route.path).or_default().insert(route.method.to_uppercase());
    }
    let (status, document) = rig.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (StatusCode::OK, &json!("3.1.0")));
    for (path, methods) in &methods {
        let of_document = document["paths"][path.replace("{*", "{")].as_object().expect("a path");
        assert_eq!(of_document.keys().map(|method| method.to_uppercase()).collect::<BTreeSet<_>>(), *methods);
        let request =
            Request::delete(path.replace(['{', '*', '}'], "")).body(Body::empty()).expect("a request");
        let response = rig.send(request).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        let allowed = response.headers()[header::ALLOW].to_str().expect("text").to_owned();
        let allowed: BTreeSet<_> = allowed
            .split(',')
            .map(|method| method.trim().to_owned())
            .filter(|method| method != "HEAD")
            .collect();
        assert_eq!(allowed, *methods, "{path}");
    }
    assert_eq!(document["paths"].as_object().map(serde_json::Map::len), Some(methods.len()));
}

#[tokio::test]
async fn the_document_has_the_fields_that_handlers_take() {
    let rig = Rig::new();
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let bodies: &[(&str, &[Value])] = &[
        ("/v1/completions", &[json!({"prompt": "a", "max_tokens": 1})]),
        ("/v1/chat/completions", std::slice::from_ref(&chat)),
        ("/v1/chat/completions/render", std::slice::from_ref(&chat)),
        ("/tokenize", &[json!({"prompt": "a"}), json!({"messages": chat["messages"]})]),
        ("/detokenize", &[json!({"tokens": [1]})]),
        ("/debug/schedule-log", &[json!({})]),
    ];
    let with_fields = ROUTES.iter().filter_map(|route| Some((route.path, route.fields?)));
    let mut num_routes = 0;
    for (path, fields) in with_fields {
        let (_, bodies) =
            bodies.iter().find(|(of, _)| *of == path).expect("a body for each route that takes one");
        asked::take();
        for body in *bodies {
            let (status, answer) = rig.post(path, body.clone()).await;
            // The log of this process is that of the tests.
            let is_right = status == StatusCode::OK || path == "/debug/schedule-log";
            assert!(is_right, "{path}: {status} {answer}");
        }
        let listed =
            fields(&SamplingParams::default()).iter().map(|field| field.name.to_owned()).collect::<Vec<_>>();
        let names: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(listed.len(), names.len(), "{path}: a field is listed twice");
        assert_eq!(names, asked::take(), "{path}");
        num_routes += 1;
    }
    assert_eq!(num_routes, bodies.len());
}

#[tokio::test]
async fn defaults_are_those_in_force() {
    let rig = Rig::new();
    let (_, document) = rig.get("/openapi.json").await;
    let field = |path: &str, name: &str| {
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
            [name]
            .clone()
    };
    assert_eq!(field("/v1/completions", "max_tokens")["default"], 16);
    assert_eq!(field("/v1/chat/completions", "max_tokens").get("default"), None);
    assert_eq!(field("/v1/completions", "top_p")["default"], 1.0);
    assert_eq!(field("/tokenize", "model")["enum"], json!(["tiny", "alias", null]));
    let description = field("/v1/completions", "temperature");
    assert_eq!(
        (&description["minimum"], &description["maximum"]),
        (&json!(0.0), &json!(2.0)),
        "{description}"
    );
}

#[tokio::test]
async fn the_page_is_open_and_the_document_is_not() {
    let settings =
        HttpSettings { api_keys: vec!["k".to_owned()], ..HttpSettings::new(vec!["tiny".to_owned()]) };
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    let (status, page) = rig.get("/docs").await;
    assert_eq!(status, StatusCode::OK);
    assert!(!page.as_str().expect("text").contains("://"), "nothing comes from elsewhere");
    assert_eq!(rig.get("/openapi.json").await.0, StatusCode::UNAUTHORIZED);
    let request = Request::get("/openapi.json").header(header::AUTHORIZATION, "Bearer k");
    let response = rig.send(request.body(Body::empty()).expect("a request")).await;
    let (status, document) = super::rig::read(response).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(document["paths"]["/v1/models"]["get"]["security"], json!([{"key": []}]));
    assert_eq!(document["paths"]["/health"]["get"].get("security"), None);
}

#[tokio::test]
async fn the_document_can_be_left_out() {
    let settings = HttpSettings { has_docs: false, ..HttpSettings::new(vec!["tiny".to_owned()]) };
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    for path in ["/docs", "/openapi.json"] {
        assert_eq!(rig.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(Rig::new().get(path).await.0, StatusCode::OK, "{path}");
    }
    let (status, page) = rig.get("/").await;
    let page = page.as_str().expect("text").to_owned();
    assert!(status == StatusCode::OK && !page.contains("/docs") && !page.contains("openapi"), "{page}");
}
