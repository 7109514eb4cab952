//! Conversations and what is rendered of them.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::program::{Tiny, command, run};

#[test]
fn a_conversation_outlives_what_it_cannot_take() {
    let tiny = Tiny::new();
    let words = [
        "chat",
        &tiny.path(),
        "--max-model-len",
        "64",
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--ignore-eos",
    ];
    let once = run(&words, "hi\n").ok().stdout;
    let long = "far too long ".repeat(40);
    let ran = run(&words, &format!("{long}\nhi\n"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.stdout, once, "the long message was left out");
    for part in ["max_model_len is 64", "tokens", "/reset", "1 of 2 turns failed"] {
        assert!(ran.stderr.contains(part), "`{part}` is not in: {}", ran.stderr);
    }
    let mut child = command(&words).spawn().expect("the program was built for this test");
    child.stdin.take().expect("piped").write_all(b"\xff\xfe\nhi\n").expect("read by the program");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
        (Some(1), once.as_str())
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("not UTF-8"));
}

#[test]
fn a_conversation_goes_on_over_its_turns() {
    let tiny = Tiny::new();
    let words = ["chat", &tiny.path(), "--max-tokens", "5", "--temperature", "0", "--ignore-eos"];
    let ran = run(&words, "hello\n\nand now\n/reset\nhello\n/nonsense\n/exit\nnever read\n").ok();
    assert!(ran.stderr.contains("no command /nonsense"), "{}", ran.stderr);
    let once = run(&words, "hello\n").ok().stdout;
    assert!(ran.stdout.starts_with(&once) && ran.stdout.ends_with(&once), "{:?} and {once:?}", ran.stdout);
    assert!(ran.stdout.len() > 2 * once.len(), "the second turn was answered");
}

#[test]
fn a_model_without_a_chat_template_is_told_at_once() {
    let tiny = Tiny::new();
    let config = Path::new(&tiny.path()).join("tokenizer_config.json");
    let mut fields: Value = serde_json::from_slice(&fs::read(&config).expect("there")).expect("JSON");
    fields.as_object_mut().expect("an object").remove("chat_template");
    fs::write(&config, fields.to_string()).expect("writable");
    tiny.run("chat", &[]).refused(&["has no chat template", "--chat-template"]);
}

#[test]
fn files_in_place_of_the_models_own_are_read_before_its_weights() {
    let tiny = Tiny::new();
    let broken = tiny.input("{");
    for (flag, given, said) in [
        ("--chat-template", "/nonexistent.jinja", "/nonexistent.jinja cannot be read"),
        ("--chat-template", "{% if %}", "the chat template cannot be used"),
        ("--tokenizer", broken.as_str(), "the tokenizer cannot be used"),
    ] {
        for command in ["generate", "inspect"] {
            let prompt: &[&str] = if command == "generate" { &["--prompt", "a"] } else { &[] };
            let ran = tiny.run(command, &[&[flag, given][..], prompt].concat());
            assert!(!ran.stderr.contains("[model]"), "nothing is loaded yet: {}", ran.stderr);
            ran.refused(&[said]);
        }
    }
}

#[test]
fn render_shows_a_prompt_and_its_tokens_without_running() {
    let tiny = Tiny::new();
    let ran = tiny.run("render", &["--prompt", "hello"]).ok();
    assert!(ran.stdout.starts_with("hello\n\n") && ran.stdout.contains(" tokens: "), "{}", ran.stdout);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("chat.json");
    fs::write(&path, r#"{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true}"#)
        .expect("a file");
    let file = path.to_str().expect("a path of text");
    let rendered = &tiny.run("render", &["--chat", file, "--json"]).ok().lines()[0];
    assert_eq!(rendered["text"], "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    assert!(rendered["token_ids"].as_array().is_some_and(|ids| ids.len() > 8), "{rendered}");

    fs::write(&path, "{}").expect("a file");
    let refused = tiny.run("render", &["--chat", file]);
    assert!(
        refused.stderr.contains("not a list of messages, nor an object with messages"),
        "{}",
        refused.stderr
    );
    assert_eq!(refused.code, Some(2));
}
