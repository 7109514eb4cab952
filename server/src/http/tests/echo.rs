use axum::http::StatusCode;
use quire_models::testing::TinyTokenizer;
use serde_json::{Value, json};

use super::rig::Rig;

const PATH: &str = "/v1/completions";

/// What each choice of a stream says, joined: texts, the four lists of log-probabilities, and the end.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().expect("choices")) {
        let index = choice["index"].as_u64().expect("a place") as usize;
        choices.resize(choices.len().max(index + 1), Value::Null);
        let all = &mut choices[index];
        if all.is_null() {
            *all = choice.clone();
            continue;
        }
        let text = [all["text"].as_str(), choice["text"].as_str()].map(Option::unwrap_or_default).concat();
        all["text"] = text.into();
        for (list, more) in choice["logprobs"].as_object().into_iter().flatten() {
            let more = more.as_array().expect("a list").clone();
            all["logprobs"][list].as_array_mut().expect("a list").extend(more);
        }
        for end in ["finish_reason", "stop_reason"] {
            all[end] = choice[end].clone();
        }
    }
    choices
}

/// The first piece brings the prompt, with its log-probabilities.
#[tokio::test]
async fn an_echo_with_log_probabilities_is_the_same_in_a_stream() {
    let rig = Rig::new();
    for fields in [
        json!({"max_tokens": 3}),
        json!({"max_tokens": 1, "n": 2, "seed": 3, "prompt": ["ab", "c"]}),
        json!({"max_tokens": 4, "logprobs": 0, "stop": "l"}),
        json!({"max_tokens": 4, "logprobs": 1, "prompt_logprobs": 0}),
        json!({"max_tokens": 3, "truncate_prompt_tokens": 2}),
        json!({"max_tokens": 3, "detokenize": false}),
        json!({"max_tokens": 3, "return_tokens_as_token_ids": true}),
        json!({"max_tokens": 3, "use_beam_search": false, "guided_choice": ["Hello", "Hi"]}),
    ] {
        let mut body = json!({"prompt": "本ab", "echo": true, "logprobs": 2, "temperature": 0.5, "seed": 1});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let (status, whole) = rig.post(PATH, body.clone()).await;
        assert_eq!(status, StatusCode::OK, "{fields}: {whole}");
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let events = rig.stream(PATH, body).await;
        let (usage, events) = events.split_last().expect("usage comes last");
        assert_eq!(usage["usage"], whole["usage"], "{fields}");
        let (streamed, choices) = (joined(events), whole["choices"].as_array().expect("choices"));
        assert_eq!(streamed.len(), choices.len());
        for (streamed, choice) in streamed.iter().zip(choices) {
            for key in ["text", "logprobs", "finish_reason", "stop_reason"] {
                assert_eq!(streamed[key], choice[key], "{fields}: {key}");
            }
            let logprobs = &choice["logprobs"];
            let num = |list: &str| logprobs[list].as_array().map(Vec::len);
            assert!(num("tokens") > Some(1), "{logprobs}");
            assert!(
                ["text_offset", "token_logprobs", "top_logprobs"].map(num) == [num("tokens"); 3],
                "{logprobs}"
            );
        }
    }
    rig.check_alive().await;
}

#[tokio::test]
async fn a_prompt_that_is_cut_is_echoed_as_it_is_read() {
    let rig = Rig::new();
    let base = json!({"prompt": "abc本d", "echo": true, "max_tokens": 1, "logprobs": 0, "temperature": 0});
    for (kept, text, tokens, offsets) in [
        (1, "dH", json!(["d", "H"]), json!([0, 1])),
        (
            6,
            "bc本dH",
            json!(["b", "c", "\u{FFFD}", "\u{FFFD}", "\u{FFFD}", "d", "H"]),
            json!([0, 1, 2, 2, 2, 3, 4]),
        ),
        // Within a character.
        (3, "\u{FFFD}\u{FFFD}dH", json!(["\u{FFFD}", "\u{FFFD}", "d", "H"]), json!([0, 1, 2, 3])),
        (7, "abc本dH", Value::Null, Value::Null),
        (100, "abc本dH", Value::Null, json!([0, 1, 2, 3, 3, 3, 4, 5])),
    ] {
        let mut body = base.clone();
        body["truncate_prompt_tokens"] = json!(kept);
        let (status, answer) = rig.post(PATH, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], text, "{kept}: {answer}");
        for (key, expected) in [("tokens", tokens), ("text_offset", offsets)] {
            if !expected.is_null() {
                assert_eq!(choice["logprobs"][key], expected, "{kept}");
            }
        }
    }
}

/// Where no text is wanted, tokens stand where they would.
#[tokio::test]
async fn tokens_of_an_echo_without_text_stand_where_they_would() {
    let rig = Rig::new();
    for prompt in [json!([TinyTokenizer::EOS, TinyTokenizer::byte(b'a')]), json!("ab")] {
        let mut body =
            json!({"prompt": prompt, "echo": true, "max_tokens": 1, "logprobs": 0, "temperature": 0});
        let (_, with_text) = rig.post(PATH, body.clone()).await;
        body["detokenize"] = false.into();
        let (_, answer) = rig.post(PATH, body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "", "no text is wanted: {answer}");
        assert_eq!(choice["logprobs"], with_text["choices"][0]["logprobs"], "{answer}");
        assert_ne!(choice["logprobs"]["text_offset"][1], json!(0), "{answer}");
    }
}

/// What is said of outputs is looked at though there are none.
#[tokio::test]
async fn an_echo_alone_is_checked_like_others() {
    let rig = Rig::new();
    for (field, value) in [
        ("guided_json", json!({"type": "object", "required": ["a"], "additionalProperties": false})),
        ("guided_regex", json!("(")),
        ("response_format", json!({"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}})),
        ("n", json!(0)),
        ("n", json!(2)),
        ("bad_words", json!([""])),
        ("allowed_token_ids", json!([])),
        ("top_p", json!(0)),
    ] {
        let mut body = json!({"prompt": "ab", "echo": true, "max_tokens": 0, "temperature": 0});
        body[field] = value.clone();
        let (status, answer) = rig.post(PATH, body.clone()).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{answer}");
        body["stream"] = true.into();
        assert_eq!(rig.post(PATH, body).await.0, StatusCode::BAD_REQUEST, "{field} {value}");
    }
    let body = json!({"prompt": "ab", "echo": true, "max_tokens": 0, "use_beam_search": true, "n": 11});
    assert_eq!(rig.post(PATH, body).await.0, StatusCode::BAD_REQUEST);
    let good = json!({"prompt": "ab", "echo": true, "max_tokens": 0, "guided_regex": "[0-9]+", "n": 2});
    let (status, answer) = rig.post(PATH, good).await;
    assert_eq!((status, answer["choices"].as_array().map(Vec::len)), (StatusCode::OK, Some(2)), "{answer}");
    rig.check_alive().await;
}

#[tokio::test]
async fn an_echo_alone_may_fill_the_context() {
    let rig = Rig::new();
    let of = |len: usize| json!({"prompt": "x".repeat(len), "echo": true, "max_tokens": 0, "logprobs": 0});
    let (status, answer) = rig.post(PATH, of(200)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let told = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list");
    assert!(told.len() == 200 && told[1..].iter().all(Value::is_number), "{told:?}");
    for body in [of(201), json!({"prompt": "x".repeat(200), "echo": true, "max_tokens": 1})] {
        assert_eq!(rig.post(PATH, body).await.0, StatusCode::BAD_REQUEST);
    }
    rig.check_alive().await;
}
