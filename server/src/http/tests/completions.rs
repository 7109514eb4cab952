use axum::http::StatusCode;
use serde_json::{Value, json};

use super::rig::{ANSWER, Rig};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn a_completion_has_all_its_keys() {
    let rig = Rig::new();
    let (status, mut body) =
        rig.post(PATH, json!({"model": "tiny", "prompt": "abc", "temperature": 0})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let id = body["id"].take();
    assert!(id.as_str().is_some_and(|id| id.starts_with("cmpl-")), "{id}");
    assert!(body["created"].take().as_u64().is_some_and(|created| created > 1_600_000_000));
    // The answer's 13 characters are 14 tokens, and the end is one.
    let expected = json!({
        "id": null, "object": "text_completion", "created": null, "model": "tiny",
        "choices": [{
            "index": 0, "text": ANSWER, "logprobs": null, "finish_reason": "stop", "stop_reason": null,
            "prompt_logprobs": null,
        }],
        "usage": {"prompt_tokens": 3, "total_tokens": 18, "completion_tokens": 15, "prompt_tokens_details": null},
    });
    assert_eq!(body, expected);
    rig.check_alive().await;
}

#[tokio::test]
async fn a_stream_says_what_the_answer_says() {
    let rig = Rig::new();
    let body = json!({"prompt": ["ab", "c"], "n": 2, "seed": 1, "stream": true, "stream_options": {"include_usage": true}});
    let mut events = rig.stream(PATH, body).await;
    let last = events.pop().expect("usage comes last");
    assert_eq!(last["choices"], json!([]));
    // n outputs share a prompt: it is counted once.
    assert_eq!(last["usage"]["prompt_tokens"], 3);
    assert_eq!(last["usage"]["completion_tokens"], 60);
    let mut texts = vec![String::new(); 4];
    let mut reasons = vec![Value::Null; 4];
    for event in &events {
        assert_eq!((&event["id"], &event["object"]), (&last["id"], &json!("text_completion")));
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().expect("a number") as usize;
        texts[index].push_str(choice["text"].as_str().expect("a text"));
        assert_eq!(reasons[index], Value::Null, "nothing comes after the end");
        reasons[index] = choice["finish_reason"].clone();
        let keys: Vec<_> = choice.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["index", "text", "logprobs", "finish_reason", "stop_reason"]);
        assert_eq!(event["usage"], Value::Null);
    }
    assert_eq!(texts, [ANSWER; 4]);
    assert_eq!(reasons, [json!("stop"), json!("stop"), json!("stop"), json!("stop")]);
    rig.check_alive().await;
}

#[tokio::test]
async fn usage_goes_along_where_asked_for() {
    let rig = Rig::new();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = rig.stream(PATH, json!({"prompt": "ab", "stream": true, "stream_options": options})).await;
    let counts: Vec<_> = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64()).collect();
    assert!(counts.iter().all(Option::is_some) && counts.is_sorted(), "{counts:?}");
}

#[tokio::test]
async fn an_echo_begins_with_the_prompt() {
    let rig = Rig::new();
    let (_, body) = rig.post(PATH, json!({"prompt": "abc ", "echo": true, "max_tokens": 5})).await;
    assert_eq!(body["choices"][0]["text"], "abc Hello");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let tokens = json!([100, 101]);
    let (_, body) = rig.post(PATH, json!({"prompt": tokens, "echo": true, "max_tokens": 5})).await;
    assert_eq!(body["choices"][0]["text"], "abHello");
    let events =
        rig.stream(PATH, json!({"prompt": "abc ", "echo": true, "max_tokens": 5, "stream": true})).await;
    let text: String =
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap_or_default()).collect();
    assert_eq!(text, "abc Hello");
    rig.check_alive().await;
}

#[tokio::test]
async fn an_echo_of_nothing_more_generates_nothing() {
    let rig = Rig::new();
    let (status, body) = rig.post(PATH, json!({"prompt": ["abc", "d"], "echo": true, "max_tokens": 0})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let texts: Vec<_> =
        body["choices"].as_array().expect("a list").iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["abc", "d"]);
    assert_eq!(
        (&body["usage"]["prompt_tokens"], &body["usage"]["completion_tokens"]),
        (&json!(4), &json!(0))
    );
    assert_eq!(rig.service.engine.stats().num_generation_tokens, 0);
}

/// What evaluation programs score prompts with.
/// A character of three bytes is three tokens here.
#[tokio::test]
async fn tokens_of_an_echo_stand_where_their_characters_do() {
    let rig = Rig::new();
    let asked = json!({"prompt": "ab本c", "echo": true, "max_tokens": 0, "logprobs": 0});
    let (status, body) = rig.post(PATH, asked).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!((&logprobs["tokens"][0], &logprobs["tokens"][5]), (&json!("a"), &json!("c")), "{logprobs}");
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 2, 2, 3]), "{logprobs}");
}

#[tokio::test]
async fn an_echo_of_nothing_more_has_the_log_probabilities_of_the_prompt() {
    let rig = Rig::new();
    let asked = json!({"prompt": "abc", "echo": true, "max_tokens": 0, "min_tokens": 3, "logprobs": 1});
    let (status, body) = rig.post(PATH, asked).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abc"), &json!("length")));
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b", "c"]));
    let of_tokens = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
    assert!(of_tokens[0].is_null() && of_tokens[1..].iter().all(Value::is_number), "{of_tokens:?}");
    assert_eq!(body["usage"]["completion_tokens"], 0);
    let asked = json!({"prompt": "abc", "echo": true, "max_tokens": 0, "prompt_logprobs": 1});
    let (_, body) = rig.post(PATH, asked).await;
    assert_eq!(body["choices"][0]["prompt_logprobs"].as_array().map(Vec::len), Some(3), "{body}");
    rig.check_alive().await;
}

#[tokio::test]
async fn log_probabilities_have_offsets_in_the_text() {
    let rig = Rig::new();
    let (status, body) = rig.post(PATH, json!({"prompt": "ab", "max_tokens": 3, "logprobs": 2})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["H", "e", "l"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    for list in ["token_logprobs", "top_logprobs"] {
        assert_eq!(logprobs[list].as_array().map(Vec::len), Some(3), "{logprobs}");
    }
}

#[tokio::test]
async fn br_39_the_length_is_never_nobodys() {
    let rig = Rig::new();
    for (max_tokens, expected) in [
        (Value::Null, StatusCode::OK),
        (json!(0), StatusCode::BAD_REQUEST),
        (json!(1_000_000_000), StatusCode::BAD_REQUEST),
        (json!(u64::MAX), StatusCode::BAD_REQUEST),
        (json!(-1), StatusCode::BAD_REQUEST),
    ] {
        let (status, body) = rig.post(PATH, json!({"prompt": "ab", "max_tokens": max_tokens})).await;
        assert_eq!(status, expected, "{max_tokens}: {body}");
        if expected != StatusCode::OK {
            assert_eq!(body["error"]["param"], "max_tokens", "{body}");
        }
    }
    rig.check_alive().await;
}

#[tokio::test]
async fn br_38_prompts_that_are_empty_or_too_long_are_refused() {
    let rig = Rig::new();
    let long = "x".repeat(200);
    for prompt in [json!(""), json!([]), json!([[]]), json!([""]), json!(long)] {
        let (status, body) = rig.post(PATH, json!({"prompt": prompt})).await;
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")), "{body}");
        rig.check_alive().await;
    }
    let (status, body) = rig.post(PATH, json!({"prompt": long})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let message = body["error"]["message"].as_str().expect("a text");
    assert!(message.contains("200"), "{message}");
    let (status, body) = rig.post(PATH, json!({"prompt": "x".repeat(199), "max_tokens": 1})).await;
    assert_eq!((status, &body["choices"][0]["finish_reason"]), (StatusCode::OK, &json!("length")), "{body}");
    // Nobody asked for 16 tokens: as many as fit are made.
    let (status, body) = rig.post(PATH, json!({"prompt": "x".repeat(195)})).await;
    assert_eq!((status, &body["usage"]["completion_tokens"]), (StatusCode::OK, &json!(5)), "{body}");
}

#[tokio::test]
async fn br_22_outputs_of_a_seed_are_the_same_for_any_n() {
    let rig = Rig::new();
    let (_, two) = rig.post(PATH, json!({"prompt": "ab", "n": 2, "seed": 7})).await;
    let (_, four) = rig.post(PATH, json!({"prompt": "ab", "n": 4, "seed": 7})).await;
    let indexes: Vec<_> =
        four["choices"].as_array().expect("a list").iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_eq!(
        two["choices"].as_array().expect("a list")[..],
        four["choices"].as_array().expect("a list")[..2]
    );
}

#[tokio::test]
async fn a_search_gives_its_best_texts_at_once() {
    let rig = Rig::new();
    let body = json!({"prompt": ["ab", "c"], "use_beam_search": true, "n": 2, "max_tokens": 4, "length_penalty": 0.5,
        "temperature": 0, "echo": true, "stop": [], "repetition_penalty": 1});
    let (status, answer) = rig.post(PATH, body.clone()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let usage = answer["usage"]["completion_tokens"].as_u64();
    assert_eq!(Some(rig.service.engine.stats().num_generation_tokens), usage, "{answer}");
    let choices = answer["choices"].as_array().expect("choices");
    let indices: Vec<_> = choices.iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let texts = || choices.iter().map(|choice| choice["text"].as_str().expect("a text"));
    assert!(
        texts().take(2).all(|text| text.starts_with("ab"))
            && texts().skip(2).all(|text| text.starts_with('c'))
    );
    // The stream has one event for each text.
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = rig.stream(PATH, streamed).await;
    let mut told: Vec<_> =
        events.iter().flat_map(|event| event["choices"].as_array().expect("choices")).collect();
    told.sort_by_key(|choice| choice["index"].as_u64());
    assert_eq!((events.len(), told.len()), (4, 4));
    for (told, choice) in told.iter().zip(choices) {
        assert_eq!(
            (&told["index"], &told["text"], &told["finish_reason"]),
            (&choice["index"], &choice["text"], &choice["finish_reason"])
        );
    }
    for (field, value, expected) in [
        ("n", json!(11), StatusCode::BAD_REQUEST),
        ("length_penalty", json!("a"), StatusCode::BAD_REQUEST),
        ("stop", json!("a"), StatusCode::NOT_IMPLEMENTED),
        ("logprobs", json!(1), StatusCode::NOT_IMPLEMENTED),
        ("guided_regex", json!("a+"), StatusCode::NOT_IMPLEMENTED),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        let (status, answer) = rig.post(PATH, wrong).await;
        assert_eq!(status, expected, "{field}: {answer}");
        assert_eq!(answer["error"]["param"], field, "{answer}");
        rig.check_alive().await;
    }
}
