//! What has failed in other engines and needs a real model, or a process, to be seen: by the numbers of that list.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::program::{Tiny, run};
use crate::server::Server;

const COMPLETIONS: &str = "POST /v1/completions";
const CHAT: &str = "POST /v1/chat/completions";

#[test]
fn br_02_an_automatic_length_is_what_clients_read() {
    let server =
        Server::start_with(&["--max-model-len", "auto", "--kv-cache-memory", "40000", "--port", "0"]);
    let cards = server.ask("GET /v1/models", "");
    let max_model_len = cards["data"][0]["max_model_len"].as_u64().expect("a number");
    assert!(max_model_len < 512, "the pool does not hold all of the context: {cards}");
    let body = |len: u64| json!({"prompt": vec![9; len as usize], "max_tokens": 1}).to_string();
    let refused = server.ask(COMPLETIONS, &body(max_model_len + 1));
    let message = refused["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(&max_model_len.to_string()), "{refused}");
    let answer = server.ask(COMPLETIONS, &body(3));
    assert_eq!(answer["usage"]["prompt_tokens"], 3, "{answer}");
    server.end_well();
}

/// How well an 8-bit cache does is not measured here: that takes a model that has learnt something.
#[test]
fn br_21_what_holds_for_the_cache_is_told() {
    let server = Server::start(&["--no-enable-prefix-caching", "--kv-cache-dtype", "fp8"]);
    let effective = server.ask("GET /v1/effective", "");
    assert_eq!(effective["settings"]["enable_prefix_caching"], json!({"value": "false", "source": "flag"}));
    assert_eq!(effective["settings"]["kv_cache_dtype"]["source"], "flag", "{effective}");
    let log = server.end_well();
    assert_eq!(log.matches("without scales").count(), 1, "{log}");
    let tiny = Tiny::new();
    run(&["serve", &tiny.path(), "--port", "0", "--kv-cache-dtype", "int8"], "")
        .refused(&["kv_cache_dtype", "int8"]);
}

#[test]
fn br_37_what_is_masked_is_a_number_in_every_answer() {
    let server = Server::start(&["--logprobs-mode", "processed_logprobs"]);
    let ask = |head, mut body: Value| {
        body["max_tokens"] = 3.into();
        let answer = server.ask(head, &body.to_string());
        assert!(answer["choices"][0].is_object(), "{answer}");
        answer["choices"][0]["logprobs"].clone()
    };
    let hello = json!([{"role": "user", "content": "Hi"}]);
    // Token 1 is a special one: it is asked for, so it is shown.
    for allowed in [40, 1] {
        let body = json!({
            "messages": hello, "logprobs": true, "top_logprobs": 5, "allowed_token_ids": [allowed],
            "skip_special_tokens": false, "ignore_eos": true,
        });
        let content = ask(CHAT, body)["content"].as_array().expect("a list").clone();
        assert_eq!(content.len(), 3);
        for token in &content {
            let top = token["top_logprobs"].as_array().expect("a list");
            assert_eq!((&token["logprob"], top.len()), (&json!(0.0), 5), "{token}");
            assert_eq!((&top[0]["token"], &top[4]["logprob"]), (&token["token"], &json!(-9999.0)), "{token}");
            let text = token["token"].as_str().expect("a text");
            assert_eq!(token["bytes"], json!(text.as_bytes()));
            assert!(!text.is_empty(), "{token}");
        }
    }
    let echoed = ask(
        COMPLETIONS,
        json!({"prompt": "ab", "echo": true, "logprobs": 1, "top_k": 1, "ignore_eos": true}),
    );
    assert_eq!(echoed["token_logprobs"][0], Value::Null, "{echoed}");
    assert_eq!(echoed["tokens"].as_array().map(Vec::len), Some(5), "{echoed}");
    let chosen = ask(COMPLETIONS, json!({"prompt": "ab", "logprobs": 5, "guided_choice": ["yes", "no"]}));
    let lists = chosen["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(chosen["top_logprobs"].as_array().expect("a list"));
    for (token, top) in lists {
        assert!(top[token.as_str().expect("a text")].is_number(), "{chosen}");
    }
    assert!(
        chosen["top_logprobs"][0].as_object().expect("some").values().any(|one| *one == json!(-9999.0)),
        "{chosen}"
    );
    server.end_well();
}

#[test]
fn br_41_a_client_that_leaves_is_logged_once_with_what_it_cost() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "abc", "max_tokens": 500, "ignore_eos": true, "stream": true, "n": 4, "request_id": "gone"});
    let body = body.to_string();
    let mut client = TcpStream::connect(&server.address).expect("it listens");
    let head = format!(
        "{COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).expect("sent");
    client.read_exact(&mut [0; 300]).expect("the beginning of a stream");
    drop(client);
    server.becomes_idle();
    let log = server.end_well();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("given up by its client")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(
        ["INFO", "cmpl-gone", "num_prompt_tokens=3", "num_tokens="]
            .iter()
            .all(|part| lines[0].contains(part)),
        "{log}"
    );
}
