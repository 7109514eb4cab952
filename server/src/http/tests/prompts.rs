//! From bodies to prompts, and what is told of them.

use axum::http::StatusCode;
use quire_models::testing::TinyTokenizer;
use serde_json::{Value, json};

use super::rig::{Parts, Rig};
use crate::http::HttpSettings;
use quire_engine::EngineOptions;
use quire_engine::chat::{ReasoningFormat, ToolFormat};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn bytes(text: &[u8]) -> Vec<u32> {
    text.iter().map(|&byte| TinyTokenizer::byte(byte)).collect()
}

fn texts(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
}

#[tokio::test]
async fn chat_render_and_tokenize_make_the_same_prompt() {
    let chat_template = "{{ bos_token }}{{ tools | tojson }}{{ documents | tojson }}{{ k }}\
        {% for message in messages %}{{ message.content }};{% endfor %}{% if add_generation_prompt %}>{% endif %}";
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.reading.tool_format = Some(ToolFormat::Hermes);
    let parts = Parts {
        settings,
        chat_template: chat_template.to_owned(),
        max_model_len: 2000,
        num_blocks: 1000,
        ..Parts::default()
    };
    let rig = parts.start();
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let mut lengths = std::collections::BTreeSet::new();
    for more in [
        json!({}),
        json!({"tools": tools}),
        json!({"tools": tools, "tool_choice": "none"}),
        json!({"documents": [{"text": "a document"}]}),
        json!({"chat_template_kwargs": {"k": "a variable"}}),
        json!({"chat_template": "{{ messages[0].content }}", "add_special_tokens": true}),
        json!({"continue_final_message": true}),
        json!({"add_generation_prompt": false}),
        json!({"truncate_prompt_tokens": 5}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "a question"}]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, tokens) = rig.post("/tokenize", body.clone()).await;
        assert_eq!(status, StatusCode::OK, "{tokens}");
        body["max_tokens"] = json!(1);
        let (_, rendered) = rig.post("/v1/chat/completions/render", body.clone()).await;
        assert_eq!(tokens["tokens"], rendered["token_ids"], "{more}");
        let (_, answer) = rig.post(CHAT, body).await;
        assert_eq!(tokens["count"], answer["usage"]["prompt_tokens"], "{more}: {answer}");
        lengths.insert(tokens["count"].as_u64());
    }
    assert!(lengths.len() >= 8, "each changes the prompt: {lengths:?}");
}

/// A context of 200.
#[tokio::test]
async fn a_prompt_is_cut_to_what_fits_beside_its_output() {
    let rig = Rig::new();
    for (max_tokens, kept) in [(json!(null), 184), (json!(1), 199), (json!(50), 150)] {
        let body = json!({"prompt": "x".repeat(300), "truncate_prompt_tokens": -1, "max_tokens": max_tokens});
        let (status, answer) = rig.post(COMPLETIONS, body.clone()).await;
        assert_eq!((status, &answer["usage"]["prompt_tokens"]), (StatusCode::OK, &json!(kept)), "{answer}");
        assert_eq!(rig.post("/tokenize", body).await.1["count"], kept);
    }
    let chat =
        json!({"messages": [{"role": "user", "content": "x".repeat(300)}], "truncate_prompt_tokens": -1});
    let (status, answer) = rig.post(CHAT, chat).await;
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (StatusCode::OK, &json!(199)), "{answer}");
    let alone =
        json!({"prompt": "x".repeat(300), "truncate_prompt_tokens": -1, "max_tokens": 0, "echo": true});
    assert_eq!(rig.post(COMPLETIONS, alone).await.1["usage"]["prompt_tokens"], 200);
}

#[tokio::test]
async fn tokens_are_told_as_the_vocabulary_writes_them() {
    let rig = Rig::new();
    let (_, body) = rig.post("/tokenize", json!({"prompt": "a é", "return_token_strs": true})).await;
    assert_eq!(
        body["token_strs"].as_array().map(Vec::len),
        body["count"].as_u64().map(|count| count as usize)
    );
    assert_eq!(body["token_strs"][0], "a");
    let (_, body) = rig.post("/tokenize", json!({"prompt": "a"})).await;
    assert_eq!(body.get("token_strs"), None);
    let (status, body) = rig.post("/tokenize", json!({"prompt": "", "return_token_strs": true})).await;
    assert_eq!(
        (status, &body["count"], &body["token_strs"]),
        (StatusCode::OK, &json!(0), &json!([])),
        "{body}"
    );
}

#[tokio::test]
async fn log_probabilities_name_tokens_as_the_request_wants() {
    let rig = Rig::new();
    let body = json!({"prompt": "ab", "echo": true, "max_tokens": 1, "logprobs": 1, "return_tokens_as_token_ids": true});
    let (_, body) = rig.post(COMPLETIONS, body).await;
    let names = bytes(b"abH").into_iter().map(|id| json!(format!("token_id:{id}"))).collect::<Vec<_>>();
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(names), "{body}");
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logprobs": true, "return_tokens_as_token_ids": true});
    let (_, body) = rig.post(CHAT, chat).await;
    assert_eq!(body["choices"][0]["logprobs"]["content"][0]["token"], names[2], "{body}");
}

#[tokio::test]
async fn reasoning_is_left_out_where_it_is_not_wanted() {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.reading.reasoning_format = Some(ReasoningFormat::Qwen3);
    let rig = Rig::saying("<think>deep</think>ok", settings, EngineOptions::new("tiny"));
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "temperature": 0});
    let (_, whole) = rig.post(CHAT, body.clone()).await;
    assert_eq!(whole["choices"][0]["message"]["reasoning_content"], "deep", "{whole}");
    body["include_reasoning"] = json!(false);
    let (_, whole) = rig.post(CHAT, body.clone()).await;
    assert_eq!(whole["choices"][0]["message"], json!({"role": "assistant", "content": "ok"}));
    body["stream"] = json!(true);
    let events = rig.stream(CHAT, body).await;
    let deltas: Vec<_> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert!(
        deltas
            .iter()
            .all(|delta| delta.get("reasoning").is_none() && delta.get("reasoning_content").is_none())
    );
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(content, "ok");
}

#[tokio::test]
async fn a_request_that_skips_the_prefix_cache_has_nothing_of_it() {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.enable_prompt_tokens_details = true;
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    let mut cached = Vec::new();
    for skips in [false, false, true] {
        let body = json!({"prompt": "a b c d e f", "max_tokens": 1, "skip_reading_prefix_cache": skips});
        let (_, body) = rig.post(COMPLETIONS, body).await;
        cached.push(body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64());
    }
    assert_eq!(cached, [Some(0), Some(8), Some(0)]);
}

/// The prompt ends within a character, which the model ends, and then says a byte that is none.
#[tokio::test]
async fn an_echo_tears_no_character_that_the_prompt_began() {
    let smile = "\u{1F600}".as_bytes();
    let script = |prompt: &[u32], position: usize| match position - prompt.len() {
        0 => TinyTokenizer::byte(0x80),
        1 => TinyTokenizer::byte(0xFF),
        _ => TinyTokenizer::EOS,
    };
    let rig = Parts { script: Box::new(script), ..Parts::default() }.start();
    for (prompt, expected) in [
        (bytes(&smile[..3]), "\u{1F600}\u{FFFD}"),
        (bytes(&[b"a", &smile[..3]].concat()), "a\u{1F600}\u{FFFD}"),
        // What the model does not end is no character; neither is what never began one.
        (bytes(&[b"a", &smile[..1]].concat()), "a\u{FFFD}\u{FFFD}\u{FFFD}"),
        (bytes(&[0xFF, b'a']), "\u{FFFD}a\u{FFFD}\u{FFFD}"),
    ] {
        let mut body = json!({"prompt": prompt, "echo": true, "temperature": 0, "max_tokens": 2});
        let (_, whole) = rig.post(COMPLETIONS, body.clone()).await;
        assert_eq!(whole["choices"][0]["text"], expected, "{prompt:?}");
        body["stream"] = json!(true);
        assert_eq!(texts(&rig.stream(COMPLETIONS, body.clone()).await), expected, "{prompt:?}");
        body["max_tokens"] = json!(0);
        let (_, alone) = rig.post("/detokenize", json!({"tokens": prompt})).await;
        assert_eq!(
            texts(&rig.stream(COMPLETIONS, body).await),
            alone["prompt"].as_str().expect("a text"),
            "{prompt:?}"
        );
    }
    rig.idle().await;
}

/// One way for all: the prompt is computed, nothing is generated or counted, and a stream is a stream.
#[tokio::test]
async fn an_echo_of_nothing_more_is_a_request_like_others() {
    let rig = Rig::new();
    let base = json!({"prompt": ["abc", "d"], "echo": true, "max_tokens": 0, "n": 2});
    let (status, whole) = rig.post(COMPLETIONS, base.clone()).await;
    assert_eq!(status, StatusCode::OK, "{whole}");
    let choices = whole["choices"].as_array().expect("a list");
    let told: Vec<_> =
        choices.iter().map(|choice| (choice["index"].as_u64(), choice["text"].as_str())).collect();
    assert_eq!(
        told,
        [(Some(0), Some("abc")), (Some(1), Some("abc")), (Some(2), Some("d")), (Some(3), Some("d"))]
    );
    assert!(choices.iter().all(|choice| choice["finish_reason"] == "length" && choice["logprobs"].is_null()));
    for logprobs in [Value::Null, json!(1)] {
        let mut body = base.clone();
        body["logprobs"] = logprobs.clone();
        let (_, whole) = rig.post(COMPLETIONS, body.clone()).await;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let events = rig.stream(COMPLETIONS, body).await;
        let (usage, events) = events.split_last().expect("usage comes last");
        assert_eq!(usage["usage"], whole["usage"]);
        assert_eq!(
            (&usage["usage"]["prompt_tokens"], &usage["usage"]["completion_tokens"]),
            (&json!(4), &json!(0))
        );
        for (event, choice) in events.iter().zip(whole["choices"].as_array().expect("a list")) {
            let event = &event["choices"][0];
            for key in ["index", "text", "logprobs", "finish_reason", "stop_reason"] {
                assert_eq!(event[key], choice[key], "{key}");
            }
            assert_eq!(event["logprobs"].is_null(), logprobs.is_null());
        }
        assert_eq!(events.len(), 4);
    }
    let stats = rig.service.engine.stats();
    assert_eq!((stats.num_generation_tokens, stats.num_first_tokens, stats.num_prompt_tokens), (0, 0, 20));
    let (status, body) = rig.post(COMPLETIONS, json!({"prompt": "a", "max_tokens": 0})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("max_tokens")), "{body}");
    let (status, body) =
        rig.post(COMPLETIONS, json!({"prompt": "a", "echo": true, "max_tokens": 0, "n": 0})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("n")), "{body}");
    rig.check_alive().await;
}

#[tokio::test]
async fn faults_name_what_the_client_wrote() {
    let rig = Rig::new();
    let chat =
        |template: &str| json!({"messages": [{"role": "user", "content": "a"}], "chat_template": template});
    for (path, body, field) in [
        (CHAT, chat("{{ 1 | unheard_of }}"), "chat_template"),
        (CHAT, chat("{% if %}"), "chat_template"),
        (CHAT, chat("{{ 1 + 'x' }}"), "chat_template"),
        (
            CHAT,
            chat("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"),
            "chat_template",
        ),
        ("/tokenize", chat("{{ raise_exception('no') }}"), "chat_template"),
        ("/detokenize", json!({"tokens": [300]}), "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens"),
        ("/detokenize", json!({"tokens": ["a"]}), "tokens"),
        ("/detokenize", json!({"tokens": 1}), "tokens"),
    ] {
        let (status, answer) = rig.post(path, body.clone()).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(field)),
            "{body}: {answer}"
        );
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(!message.contains("structured_outputs") && !message.contains("prompt token"), "{message}");
    }
    let body = json!({"prompt": "a", "guided_regex": "[0-9]", "allowed_token_ids": [100], "temperature": 0});
    for is_streamed in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(is_streamed);
        let error = match is_streamed {
            true => rig.stream(COMPLETIONS, body).await.pop().expect("an event"),
            false => rig.post(COMPLETIONS, body).await.1,
        };
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains("allowed_token_ids, guided_regex together"), "{message}");
    }
    rig.check_alive().await;
}
