//! What goes to standard output, in which order.

use serde_json::Value;

use crate::program::{Tiny, command, run};

#[test]
fn only_the_text_goes_to_standard_output() {
    let tiny = Tiny::new();
    let ran = tiny.generate(&["--max-tokens", "8"]).ok();
    let line = &tiny.generate(&["--max-tokens", "8", "--output-format", "json"]).ok().lines()[0];
    assert_eq!(ran.stdout, format!("{}\n", line["text"].as_str().expect("a text")));
    assert!(ran.stderr.contains("max_num_seqs"), "the configuration is logged: {}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'), "no colour where there is no terminal");
}

#[test]
fn an_output_line_has_all_fields_in_their_order() {
    let tiny = Tiny::new();
    let ran = tiny.generate(&["--max-tokens", "3", "--logprobs", "2", "--output-format", "json"]).ok();
    let line = &ran.lines()[0];
    let fields: Vec<_> = line.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "index",
        "output_index",
        "prompt_token_ids",
        "token_ids",
        "text",
        "finish_reason",
        "stop_reason",
        "logprobs",
        "num_cached_tokens",
        "metrics",
    ];
    assert_eq!(fields, expected);
    assert_eq!(line["token_ids"].as_array().map(Vec::len), Some(3));
    assert_eq!(line["logprobs"].as_array().map(Vec::len), Some(3));
    assert_eq!((&line["finish_reason"], &line["stop_reason"]), (&Value::from("length"), &Value::Null));
    for metric in ["queue_ms", "ttft_ms", "tpot_ms", "e2e_ms"] {
        assert!(line["metrics"][metric].is_f64(), "{metric}: {line}");
    }
}

#[test]
fn outputs_come_in_the_order_of_the_lines_and_equal_lone_runs() {
    let tiny = Tiny::new();
    let input = tiny.input(
        "{\"prompt\": \"hello\", \"max_tokens\": 20}\n\
         {\"prompt_token_ids\": [5, 6, 7], \"max_tokens\": 2}\n\n\
         {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 3, \"seed\": 1, \"temperature\": 1}\n",
    );
    let words = ["--input", input.as_str(), "--temperature", "0", "--ignore-eos"];
    let lines = tiny.run("generate", &words).ok().lines();
    let indexes: Vec<_> = lines.iter().map(|line| line["index"].as_u64().expect("a number")).collect();
    assert_eq!(indexes, [0, 1, 2]);
    let num_tokens = lines.iter().map(|line| line["token_ids"].as_array().expect("ids").len());
    assert_eq!(num_tokens.collect::<Vec<_>>(), [20, 2, 3]);
    assert_eq!(lines[1]["prompt_token_ids"], serde_json::json!([5, 6, 7]));
    let alone = tiny.generate(&["--max-tokens", "20"]).ok().stdout;
    assert_eq!(alone, format!("{}\n", lines[0]["text"].as_str().expect("a text")));
}

#[test]
fn every_line_says_whose_output_it_is_and_which() {
    let tiny = Tiny::new();
    let requests: String = [1, 3, 1, 2].map(|n| format!("{{\"prompt\": \"hello\", \"n\": {n}}}\n")).concat();
    let input = tiny.input(&requests);
    let words = ["--input", input.as_str(), "--temperature", "1", "--max-tokens", "2", "--seed", "3"];
    let lines = tiny.run("generate", &words).ok().lines();
    let number = |line: &Value, name: &str| line[name].as_u64().expect("a number");
    let places: Vec<_> =
        lines.iter().map(|line| (number(line, "index"), number(line, "output_index"))).collect();
    assert_eq!(places, [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1)]);
}

#[test]
fn requests_are_read_from_standard_input_too() {
    let tiny = Tiny::new();
    let words = ["generate", &tiny.path(), "--input", "-", "--output-format", "text", "--max-tokens", "2"];
    let ran = run(&words, "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n").ok();
    assert!(ran.stdout.lines().count() >= 2, "{}", ran.stdout);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let tiny = Tiny::new();
    let line = "{\"prompt\": \"a\", \"max_tokens\": 30, \"ignore_eos\": true}\n".repeat(400);
    let input = tiny.input(&line);
    let words = ["generate", &tiny.path(), "--input", &input, "--log-level", "error"];
    let mut child = command(&words).spawn().expect("the program was built for this test");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn a_file_loses_no_request_however_few_may_wait() {
    let tiny = Tiny::new();
    let lines = "{\"prompt\": \"hello\", \"max_tokens\": 3, \"temperature\": 0}\n".repeat(12);
    let input = tiny.input(&lines);
    let words = ["--input", &input, "--max-num-seqs", "1", "--max-num-waiting", "2"];
    let lines = tiny.run("generate", &words).ok().lines();
    assert_eq!(lines.len(), 12);
    assert!(lines.iter().all(|line| line.get("error").is_none()), "{lines:?}");
}
