//! `quire bench` from outside, on a tiny model: a result is of what was asked for, or there is none.

#[path = "common/program.rs"]
mod program;

use std::fs;

use program::{Ran, Tiny, run};

fn bench(tiny: &Tiny, kind: &str, words: &[&str]) -> Ran {
    run(&[&["bench", kind, &tiny.path()], words].concat(), "")
}

#[test]
fn bench_latency_prints_a_line_for_each_batch_size() {
    let tiny = Tiny::new();
    let words = ["--input-len", "9", "--output-len", "4", "--batch-size", "1,3", "--num-iters", "2"];
    let ran = run(&[&["bench", "latency", &tiny.path()], &words[..]].concat(), "").ok();
    let lines = ran.lines();
    assert_eq!(lines.iter().map(|line| &line["batch_size"]).collect::<Vec<_>>(), [1, 3]);
    for line in &lines {
        let positive = ["total_s", "first_token_s"].map(|field| line[field]["median"].as_f64());
        assert!(positive.iter().all(|median| median.is_some_and(|median| median > 0.0)), "{line}");
    }
    assert!(lines[0]["tpot_ms"]["max"].is_number() && lines[1].get("tpot_ms").is_none(), "{lines:?}");
}

#[test]
fn bench_throughput_counts_the_tokens_of_a_trace() {
    let tiny = Tiny::new();
    let trace = tiny.input(concat!(
        "{\"id\": 0, \"prompt_tokens\": 5, \"output_tokens\": 7}\n",
        "{\"id\": 1, \"prompt_tokens\": 30, \"output_tokens\": 1}\n",
    ));
    let ran = run(&["bench", "throughput", &tiny.path(), "--trace", &trace], "").ok();
    let line = &ran.lines()[0];
    let counts = ["prompt_tokens", "output_tokens", "num_requests"].map(|field| &line[field]);
    assert_eq!(counts, [35, 8, 2]);
}

#[test]
fn lengths_that_the_model_does_not_take_are_refused_with_their_numbers() {
    let tiny = Tiny::new();
    for kind in ["latency", "throughput"] {
        let words = ["--max-model-len", "64", "--input-len", "60", "--output-len", "32"];
        bench(&tiny, kind, &words).refused(&["60", "32", "92 tokens", "max_model_len = 64"]);
    }
    let words = ["--max-model-len", "64", "--input-len", "60", "--output-len", "4", "--num-iters", "1"];
    bench(&tiny, "latency", &words).ok();
}

#[test]
fn what_ends_an_output_early_is_not_offered() {
    let tiny = Tiny::new();
    for flag in ["--stop=a", "--stop-token-ids=1", "--max-tokens=2", "--min-tokens=2", "--ignore-eos=false"] {
        let name = flag.split('=').next().expect("a name");
        bench(&tiny, "latency", &[flag]).refused(&["unexpected argument", name]);
        bench(&tiny, "throughput", &[flag]).refused(&["unexpected argument", name]);
    }
}

#[test]
fn an_output_that_ends_early_is_no_result() {
    let tiny = Tiny::new();
    // The model takes the lengths, the pool of 48 tokens does not.
    let pool = ["--num-gpu-blocks-override", "3", "--block-size", "16", "--max-model-len", "128"];
    let words = [&pool[..], &["--input-len", "20", "--output-len", "90", "--num-iters", "1"]].concat();
    bench(&tiny, "latency", &words).failed(1, &["an output ended after", "where 90 were asked for"]);
    let words = [&words[..], &["--num-prompts", "1"]].concat();
    bench(&tiny, "throughput", &words).failed(1, &["an output ended after", "where 90 were asked for"]);
}

#[test]
fn a_batch_that_does_not_run_at_once_is_refused_or_told() {
    let tiny = Tiny::new();
    let short = ["--input-len", "20", "--output-len", "8", "--num-iters", "1"];
    let words = [&short[..], &["--batch-size", "1,9", "--max-num-seqs", "4"]].concat();
    bench(&tiny, "latency", &words).refused(&["--batch-size 9", "max_num_seqs = 4"]);
    // Two blocks each, five in all.
    let pool = ["--batch-size", "4", "--num-gpu-blocks-override", "5", "--block-size", "16"];
    let ran = bench(&tiny, "latency", &[&short[..], &pool].concat()).ok();
    assert!(ran.stderr.contains("holds 2 sequences of 28 tokens: a batch of 4"), "{}", ran.stderr);
    assert_eq!(ran.lines()[0]["max_concurrency"], 2);
    assert!(ran.lines()[0]["num_preemptions"].is_u64());
}

#[test]
fn large_numbers_are_refused_before_anything_is_allocated() {
    let tiny = Tiny::new();
    for (kind, flag, number, range) in [
        ("latency", "--input-len", "9999999999", "from 1 to 16777216"),
        ("latency", "--input-len", "9999999", "max_model_len = "),
        ("latency", "--output-len", "99999999999999999999", "from 1 to 16777216"),
        ("latency", "--batch-size", "100000000", "from 1 to 1000000"),
        ("latency", "--batch-size", "1000000", "max_num_seqs = "),
        ("throughput", "--num-prompts", "99999999999", "from 1 to 1000000"),
        ("throughput", "--num-prompts", "1000000", "expected at most 268435456"),
        ("throughput", "--input-len", "0", "from 1 to 16777216"),
    ] {
        let lengths = ["--input-len", "250", "--output-len", "30"];
        let rest = if flag == "--num-prompts" { &lengths[..] } else { &[] };
        bench(&tiny, kind, &[rest, &[flag, number]].concat()).refused(&[flag_or_number(flag, number), range]);
    }
    for (flag, range) in
        [("--rows", "1048576"), ("--contexts", "16777216"), ("--block-size", "1024"), ("--rounds", "100000")]
    {
        run(&["bench", "kernels", flag, "99999999999"], "").refused(&[flag, &format!("from 1 to {range}")]);
    }
}

/// What a refusal of a number names.
fn flag_or_number<'a>(flag: &'a str, number: &'a str) -> &'a str {
    if flag == "--num-prompts" { number } else { flag }
}

#[test]
fn a_trace_is_checked_whole_before_anything_runs() {
    let tiny = Tiny::new();
    let check = |text: &str, parts: &[&str]| {
        bench(&tiny, "throughput", &["--max-model-len", "64", "--trace", &tiny.input(text)]).refused(parts);
    };
    check("", &["holds no request"]);
    check("{\"prompt_tokens\": 5}", &["line 1: output_tokens is missing"]);
    check(
        concat!(
            "{\"prompt_tokens\": 5, \"output_tokens\": 7}\n",
            "{\"prompt_tokens\": 5, \"output_tok\n",
            "{\"prompt_tokens\": 60, \"output_tokens\": 7}\n",
            "{\"prompt_tokens\": 99999999999, \"output_tokens\": 7}\n",
            "{\"prompt_tokens\": 999999, \"output_tokens\": 7}\n",
        ),
        &[
            "4 bad line(s)",
            "line 2: not a JSON object",
            "line 3: prompt_tokens 60",
            "line 4",
            "line 5",
            "max_model_len = 64",
        ],
    );
}

#[test]
fn another_kind_of_file_is_wrong_input() {
    let tiny = Tiny::new();
    let gguf = tiny.folder.path().join("model.gguf");
    fs::write(&gguf, b"GGUF\x03\x00\xff\xfe\x80\n").expect("writable");
    let gguf = gguf.display().to_string();
    bench(&tiny, "throughput", &["--trace", &gguf]).refused(&["model.gguf", "UTF-8"]);
    run(&["bench", "kernels", "--shapes", &gguf], "").refused(&["model.gguf", "UTF-8"]);
    run(&["generate", &gguf, "--prompt", "a", "--load-format", "dummy"], "")
        .refused(&["model.gguf", "load_format dummy"]);
    bench(&tiny, "latency", &["--trace-tensors", &gguf]).refused(&["model.gguf"]);
}

#[test]
fn shares_are_of_one_product_whatever_the_rows() {
    let words = ["bench", "kernels", "--device", "cpu", "--op", "norm", "--rows", "1"];
    let ran = run(&[&words[..], &["--rounds", "1", "--round-ms", "1"]].concat(), "");
    let lines = ran.ok().lines();
    let product = lines.iter().find(|line| line["case"] == "product").expect("a ceiling");
    assert_eq!((&product["op"], &product["rows"]), (&"ceiling".into(), &512.into()));
    assert!(
        product["kernel"].is_string() && product["tflops"].as_f64().is_some_and(|rate| rate > 0.0),
        "{product}"
    );
}

#[test]
fn a_case_without_room_is_skipped() {
    let words = ["bench", "kernels", "--device", "cpu", "--op", "activation", "--rows", "1048576"];
    let ran = run(&[&words[..], &["--shapes", "7b", "--rounds", "1", "--round-ms", "1"]].concat(), "").ok();
    // 75 GB on both sides.
    let gate = ran.lines().into_iter().find(|line| line["op"] == "silu_mul").expect("a line");
    assert!(gate["skipped"].as_str().is_some_and(|why| why.contains("memory")), "{gate}");
}
