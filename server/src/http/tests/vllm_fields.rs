//! Every field that the requests of vLLM 0.7.3 have, and those of its later versions that change an answer: each is honoured, told to
//! have no effect, or refused; and none takes a value of another type.

use axum::http::StatusCode;
use quire_engine::EngineOptions;
use quire_engine::chat::ToolFormat;
use serde_json::{Value, json};

use super::rig::Rig;
use crate::http::HttpSettings;

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Honoured,
    /// A strict server refuses it, another warns.
    NoEffect,
    NotBuilt,
}
use Fate::{Honoured, NoEffect, NotBuilt};

type Row = (&'static str, &'static str, Fate);

/// Fields of a completion and of a chat.
const BOTH: &[Row] = &[
    ("model", r#""tiny""#, Honoured),
    ("frequency_penalty", "0.5", Honoured),
    ("presence_penalty", "0.5", Honoured),
    ("logit_bias", r#"{"5": 1}"#, Honoured),
    ("max_tokens", "2", Honoured),
    ("n", "2", Honoured),
    ("best_of", "1", Honoured),
    ("seed", "7", Honoured),
    ("stop", r#"["x"]"#, Honoured),
    ("stream", "false", Honoured),
    ("temperature", "0.5", Honoured),
    ("top_p", "0.5", Honoured),
    ("user", r#""me""#, NoEffect),
    ("top_k", "5", Honoured),
    ("min_p", "0.1", Honoured),
    ("repetition_penalty", "1.1", Honoured),
    ("length_penalty", "1.5", Honoured),
    ("stop_token_ids", "[9]", Honoured),
    ("include_stop_str_in_output", "true", Honoured),
    ("ignore_eos", "true", Honoured),
    ("min_tokens", "1", Honoured),
    ("skip_special_tokens", "false", Honoured),
    ("spaces_between_special_tokens", "false", Honoured),
    ("truncate_prompt_tokens", "1", Honoured),
    ("allowed_token_ids", "[5, 6]", Honoured),
    ("prompt_logprobs", "1", Honoured),
    ("add_special_tokens", "true", Honoured),
    ("response_format", r#"{"type": "json_object"}"#, Honoured),
    ("guided_json", r#"{"type": "object"}"#, Honoured),
    ("guided_regex", r#""a+""#, Honoured),
    ("guided_choice", r#"["a", "b"]"#, Honoured),
    ("guided_grammar", r#""start: \"a\"""#, Honoured),
    ("guided_decoding_backend", r#""xgrammar""#, NoEffect),
    ("priority", "3", Honoured),
    ("logits_processors", r#"[{"name": "picky", "args": 1}]"#, Honoured),
    ("return_tokens_as_token_ids", "true", Honoured),
    ("request_id", r#""mine""#, Honoured),
    ("cache_salt", r#""salt""#, Honoured),
    ("skip_reading_prefix_cache", "true", Honoured),
    ("bad_words", r#"["x"]"#, Honoured),
    ("structured_outputs", r#"{"regex": "a+"}"#, Honoured),
    ("mm_processor_kwargs", "{}", NotBuilt),
    ("kv_transfer_params", "{}", NotBuilt),
    ("vllm_xargs", "{}", NotBuilt),
    ("return_token_ids", "true", NotBuilt),
    ("thinking_token_budget", "5", NotBuilt),
    ("logprob_token_ids", "[5]", NotBuilt),
    ("repetition_detection", "{}", NotBuilt),
];

const OF_COMPLETIONS: &[Row] = &[
    ("prompt", r#""ab""#, Honoured),
    ("echo", "true", Honoured),
    ("logprobs", "1", Honoured),
    ("use_beam_search", "true", Honoured),
    ("suffix", r#""x""#, NotBuilt),
    ("prompt_embeds", r#""x""#, NotBuilt),
];

/// What a prompt of messages is made of: the same for a chat, for its rendering and for its tokens.
const OF_CONVERSATIONS: &[Row] = &[
    ("messages", r#"[{"role": "user", "content": "b"}]"#, Honoured),
    ("add_generation_prompt", "false", Honoured),
    ("continue_final_message", "false", Honoured),
    ("add_special_tokens", "true", Honoured),
    ("documents", r#"[{"text": "d"}]"#, Honoured),
    ("chat_template", r#""x""#, Honoured),
    ("chat_template_kwargs", r#"{"k": 1}"#, Honoured),
    ("tools", r#"[{"type": "function", "function": {"name": "f"}}]"#, Honoured),
    ("tool_choice", r#""none""#, Honoured),
    ("parallel_tool_calls", "false", Honoured),
    ("truncate_prompt_tokens", "1", Honoured),
];

const OF_CHATS: &[Row] = &[
    ("logprobs", "true", Honoured),
    ("max_completion_tokens", "2", Honoured),
    ("echo", "true", Honoured),
    ("include_reasoning", "false", Honoured),
    ("use_beam_search", "true", Honoured),
];

const OF_TOKENS: &[Row] = &[("return_token_strs", "true", Honoured)];

/// Wrong for every field that is no list, and for the items of those that are.
fn of_no_type(field: &str) -> Value {
    if field == "documents" { json!("x") } else { json!([[{}]]) }
}

async fn check(path: &str, base: Value, rows: &[&[Row]]) {
    let rigs = [false, true].map(|is_strict| {
        let mut settings = HttpSettings { is_strict, ..HttpSettings::new(vec!["tiny".to_owned()]) };
        settings.reading.tool_format = Some(ToolFormat::Hermes);
        Rig::with(settings, EngineOptions::new("tiny"))
    });
    for &(field, value, fate) in rows.iter().copied().flatten() {
        let with = |value: Value| {
            let mut body = base.clone();
            body[field] = value;
            body
        };
        let good = with(serde_json::from_str(value).expect(field));
        let (status, answer) = rigs[0].post(path, good.clone()).await;
        let (strict_status, strict_answer) = rigs[1].post(path, good).await;
        let (expected, expected_strict) = match fate {
            Honoured => (StatusCode::OK, StatusCode::OK),
            NoEffect => (StatusCode::OK, StatusCode::BAD_REQUEST),
            NotBuilt => (StatusCode::NOT_IMPLEMENTED, StatusCode::NOT_IMPLEMENTED),
        };
        assert_eq!(status, expected, "{path} {field}: {answer}");
        assert_eq!(strict_status, expected_strict, "{path} {field}: {strict_answer}");
        if fate != NotBuilt {
            let (status, answer) = rigs[0].post(path, with(of_no_type(field))).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {field}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            let is_named = answer["error"]["param"] == field && message.contains(field);
            assert!(is_named, "{path} {field}: {answer}");
        }
    }
}

#[tokio::test]
async fn no_field_of_a_completion_is_passed_over_in_silence() {
    let base = json!({"prompt": "a", "max_tokens": 2});
    check("/v1/completions", base, &[BOTH, OF_COMPLETIONS]).await;
}

#[tokio::test]
async fn no_field_of_a_chat_is_passed_over_in_silence() {
    let base = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2});
    for path in ["/v1/chat/completions", "/v1/chat/completions/render"] {
        check(path, base.clone(), &[BOTH, OF_CONVERSATIONS, OF_CHATS]).await;
    }
}

#[tokio::test]
async fn no_field_of_tokenize_is_passed_over_in_silence() {
    let base = json!({"messages": [{"role": "user", "content": "a"}]});
    check("/tokenize", base, &[OF_CONVERSATIONS, OF_TOKENS]).await;
    let text: &[Row] = &[
        ("prompt", r#""ab""#, Honoured),
        ("add_special_tokens", "false", Honoured),
        ("truncate_prompt_tokens", "1", Honoured),
    ];
    check("/tokenize", json!({"prompt": "a"}), &[text, OF_TOKENS]).await;
}
