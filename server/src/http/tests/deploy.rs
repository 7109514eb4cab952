//! The files under `deploy/` ask for what there is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::rig::Rig;
use crate::http::api::ROUTES;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words of an expression that name a metric, and those that it groups by.
fn asked(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = |text: &str| text.chars().take_while(|&c| is_word(c)).collect::<String>();
    let metrics =
        expression.match_indices("vllm:").map(|(at, prefix)| word(&expression[at + prefix.len()..]));
    let labels = expression.match_indices("by (").map(|(at, prefix)| word(&expression[at + prefix.len()..]));
    (metrics.map(|name| format!("vllm:{name}")).collect(), labels.collect())
}

#[tokio::test]
async fn the_dashboard_asks_for_metrics_and_labels_that_a_scrape_has() {
    let rig = Rig::new();
    rig.post("/v1/completions", json!({"prompt": "a"})).await;
    let (_, scrape) = rig.get("/metrics").await;
    let scrape = scrape.as_str().expect("text");
    let samples: Vec<_> = scrape.lines().filter(|line| !line.starts_with('#')).collect();
    let dashboard: Value = serde_json::from_str(&read("grafana/quire.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut num_metrics = 0;
    for target in targets {
        let expression = target["expr"].as_str().expect("an expression");
        let (metrics, labels) = asked(expression);
        assert!(!metrics.is_empty(), "{expression}");
        for metric in &metrics {
            let of_metric = format!("{metric}{{");
            let lines: Vec<_> = samples.iter().filter(|line| line.starts_with(&of_metric)).collect();
            // What nothing waits for has no line: its family is declared all the same.
            let is_declared = scrape.contains(&format!("# TYPE {metric} "));
            assert!(is_declared || !lines.is_empty(), "{metric} of {expression}");
            for label in labels.iter().filter(|_| !lines.is_empty()) {
                let label = format!("{label}=\"");
                assert!(lines.iter().all(|line| line.contains(&label)), "{label} of {expression}");
            }
            num_metrics += 1;
        }
    }
    assert!(num_metrics > 40, "{num_metrics} metrics");
}

#[test]
fn probes_ask_for_routes_that_need_no_key() {
    for (file, marks) in [
        ("kubernetes.yaml", &["path: /health,", "path: /health/ready,"][..]),
        ("Dockerfile", &["http://127.0.0.1:8000/health\""]),
    ] {
        let text = read(file);
        for mark in marks {
            assert!(text.contains(mark), "{file}: {mark}");
        }
    }
    for path in ["/health", "/health/ready"] {
        assert!(ROUTES.iter().any(|route| route.path == path && route.method == "get"));
        assert!(crate::http::auth::is_open(path));
    }
}
