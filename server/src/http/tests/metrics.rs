use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use http_body_util::BodyExt;
use serde_json::json;

use super::rig::{Parts, Rig};

/// The samples of a scrape, without the label that all have.
pub(super) async fn scrape(rig: &Rig) -> BTreeMap<String, f64> {
    let response = rig.send(Request::get("/metrics").body(Body::empty()).expect("a request")).await;
    assert!(
        response.headers()[header::CONTENT_TYPE].to_str().is_ok_and(|kind| kind.starts_with("text/plain"))
    );
    let bytes = response.into_body().collect().await.expect("all of it").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let name = name.replace("model_name=\"tiny\",", "").replace("{model_name=\"tiny\"}", "");
        (name, value.parse().expect("a number"))
    });
    samples.collect()
}

/// What holds at every moment.
fn check_laws(samples: &BTreeMap<String, f64>) {
    let of = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name}"));
    let finished: f64 = samples
        .iter()
        .filter(|(name, _)| name.starts_with("vllm:request_success_total"))
        .map(|(_, value)| value)
        .sum();
    let open = ["running", "waiting", "swapped"].map(|state| of(&format!("vllm:num_requests_{state}")));
    assert_eq!(of("vllm:requests_total"), open.iter().sum::<f64>() + finished, "{samples:#?}");
    assert_eq!(of("vllm:time_to_first_token_seconds_count"), of("vllm:first_tokens_total"));
    let blocks = ["free", "live", "cached"].map(|state| of(&format!("quire:kv_blocks{{state=\"{state}\"}}")));
    assert_eq!(blocks.iter().sum::<f64>(), 64.0);
    assert_eq!(of("vllm:tokens_total"), of("vllm:prompt_tokens_total") + of("vllm:generation_tokens_total"));
}

#[tokio::test]
async fn br_20_every_request_is_counted_once() {
    let rig = Rig::new();
    rig.control.set_delay(Duration::from_micros(300));
    let mut usage = (0, 0);
    for round in 0..10 {
        let requests = (0..8).map(|i| {
            let n = if i == 7 { 2 } else { 1 };
            rig.post(
                "/v1/completions",
                json!({"prompt": format!("{round} {i} abc"), "n": n, "max_tokens": 12}),
            )
        });
        let watch = async {
            for _ in 0..5 {
                check_laws(&scrape(&rig).await);
                tokio::task::yield_now().await;
            }
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(requests), watch);
        for (status, body) in answers {
            assert!(status.is_success(), "{body}");
            usage.0 += body["usage"]["prompt_tokens"].as_u64().expect("a number");
            usage.1 += body["usage"]["completion_tokens"].as_u64().expect("a number");
        }
        for _ in 0..2 {
            let body = json!({"prompt": "gone", "ignore_eos": true, "max_tokens": 150});
            // It leaves once it has been taken in.
            let num_before = rig.service.engine.stats().num_requests;
            let is_in = async {
                while rig.service.engine.stats().num_requests == num_before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                answer = rig.post("/v1/completions", body) => panic!("{answer:?}"),
                () = is_in => {}
            }
        }
    }
    rig.idle().await;
    let samples = scrape(&rig).await;
    check_laws(&samples);
    assert_eq!(samples["vllm:requests_total"], 100.0);
    assert_eq!(samples["vllm:request_success_total{finished_reason=\"length\"}"], 80.0);
    assert_eq!(samples["vllm:request_success_total{finished_reason=\"abort\"}"], 20.0);
    assert_eq!(samples["vllm:request_params_n_count"], 100.0);
    assert_eq!(samples["vllm:e2e_request_latency_seconds_count"], 100.0);
    assert_eq!(samples["quire:kv_blocks{state=\"live\"}"], 0.0);
    // What was generated for those who left is in no usage.
    assert!(samples["vllm:generation_tokens_total"] >= usage.1 as f64);
    assert!(samples["vllm:prompt_tokens_total"] >= usage.0 as f64);
}

#[tokio::test]
async fn br_20_what_gives_way_is_counted_once() {
    let rig = Parts::parrot().start();
    let requests = (0..10).map(|i| {
        rig.post(
            "/v1/completions",
            json!({"prompt": format!("{i} abcdefgh"), "max_tokens": 60, "n": 1 + i % 2, "seed": 1}),
        )
    });
    let answers = futures_util::future::join_all(requests).await;
    rig.idle().await;
    let stats = rig.service.engine.stats();
    assert!(stats.num_preemptions > 0, "the pool was large enough for all of them");
    let usage =
        |field| answers.iter().map(|(_, body)| body["usage"][field].as_u64().expect("a number")).sum::<u64>();
    assert_eq!(usage("completion_tokens"), 15 * 60);
    assert_eq!((stats.num_generation_tokens, stats.num_prompt_tokens), (15 * 60, usage("prompt_tokens")));
    assert_eq!((stats.num_requests, stats.num_first_tokens), (10, 10));
    assert_eq!(stats.num_finished, [(quire_engine::FinishReason::Length, 10)].into());
    assert_eq!(stats.num_live_blocks + stats.num_cached_blocks + stats.num_free_blocks, 64);
}

#[tokio::test]
async fn one_switch_turns_the_old_names_off() {
    let mut settings = crate::http::HttpSettings::new(vec!["tiny".to_owned()]);
    settings.has_vllm_metrics = false;
    let rig = Rig::with(settings, quire_engine::EngineOptions::new("tiny"));
    let samples = scrape(&rig).await;
    assert!(samples.keys().all(|name| name.starts_with("quire:")), "{samples:?}");
}
