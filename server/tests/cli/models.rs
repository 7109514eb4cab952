//! `inspect` and `check`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{Tiny, command, run};

#[test]
fn a_model_is_inspected_without_its_weights() {
    let tiny = Tiny::new();
    let ran = tiny.run("inspect", &["--output-format", "json", "--max-num-seqs", "4"]).ok();
    let report = &ran.lines()[0];
    assert_eq!(report["architecture"], "LlamaForCausalLM");
    for field in ["weight_bytes", "scratch_bytes", "kv_cache_bytes", "num_blocks", "max_model_len"] {
        assert!(report[field].as_u64().is_some_and(|number| number > 0), "{field}: {report}");
    }
    fs::remove_file(Path::new(&tiny.path()).join("tokenizer.json")).expect("there");
    let ran = tiny.run("inspect", &[]).ok();
    assert!(ran.stderr.contains("would refuse this model"), "{}", ran.stderr);
    let text = ran.stdout;
    assert!(text.contains("LlamaForCausalLM") && text.contains("blocks"), "{text}");
}

/// A cache of the hub as any client of it leaves it.
#[test]
fn a_cached_model_is_taken_offline_and_its_commit_is_shown() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let (tiny, home) = (Tiny::new(), tempfile::tempdir().expect("a folder for tests"));
    let repo = home.path().join("hub/models--org--tiny");
    let snapshot = repo.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).expect("writable");
    fs::create_dir_all(repo.join("refs")).expect("writable");
    fs::write(repo.join("refs/main"), COMMIT).expect("writable");
    for entry in fs::read_dir(tiny.path()).expect("there").flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), snapshot.join(entry.file_name())).expect("writable");
    }
    let run = |words: &[&str]| {
        let mut command = command(&[words, &["org/tiny", "--offline"]].concat());
        command.env_remove("HF_HUB_OFFLINE").env("HF_HOME", home.path());
        let output = command.env("HF_ENDPOINT", "http://127.0.0.1:9").output().expect("the program ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let text = run(&["inspect"]);
    let revision = text.lines().find_map(|line| line.strip_prefix("revision"));
    assert_eq!(revision.map(str::trim), Some(COMMIT), "{text}");
    let report: serde_json::Value =
        serde_json::from_str(&run(&["inspect", "--output-format", "json"])).expect("json");
    assert_eq!(report["revision"], COMMIT);
    assert!(run(&["check"]).contains("0 problems"));
    // A model without a commit has no such line.
    let text = tiny.run("inspect", &[]).ok().stdout;
    assert!(!text.contains("revision"), "{text}");
}

#[test]
fn a_check_says_everything_that_is_wrong_and_exits_with_1() {
    let tiny = Tiny::new();
    let sound = tiny.run("check", &[]).ok();
    assert!(sound.stdout.contains("0 problems"), "{}", sound.stdout);
    let empty = tempfile::tempdir().expect("a folder");
    let ran = run(&["check", &empty.path().display().to_string()], "");
    assert!(
        ran.stdout.contains("1 problem, 0 notes") && ran.stderr.contains("has 1 problem\n"),
        "{}",
        ran.stderr
    );
    let folder = Path::new(&tiny.path()).to_owned();
    let weights = fs::read(folder.join("model.safetensors")).expect("there");
    fs::write(folder.join("model.safetensors"), &weights[..weights.len() - 1024]).expect("writable");
    fs::write(folder.join("tokenizer_config.json"), "{\"eos_token\": \"<nothing>\"}").expect("writable");

    let ran = tiny.run("check", &["--full"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in ["broken-file", "bytes missing", "special-token", "<nothing>", "model.safetensors"] {
        assert!(ran.stdout.contains(part), "`{part}` is not in: {}", ran.stdout);
    }
    let ran = tiny.run("check", &["--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let line = &ran.lines()[0];
    assert_eq!(line["ok"], false);
    let findings = line["findings"].as_array().expect("a list");
    let missing = findings.iter().find(|finding| finding["kind"] == "broken-file").expect("one");
    assert!(missing["tensor"].is_string() && missing["bytes"].as_u64().is_some_and(|n| n > 0), "{missing}");
    // Loading refuses it for the same, and the words are those of the check.
    let refused = tiny.generate(&["--max-tokens", "1"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("bytes missing"), "{}", refused.stderr);
    tiny.run("check", &["--full", "--headers"]).refused(&["cannot be used with"]);
}

#[test]
fn a_check_for_programs_always_writes_a_line() {
    let ran = run(&["check", "smolm2", "--json"], "");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let line = &ran.lines()[0];
    assert_eq!((&line["ok"], &line["findings"][0]["kind"]), (&Value::from(false), &Value::from("not-found")));
}

#[test]
fn a_file_that_is_no_model_is_told_with_the_way_to_one() {
    let tiny = Tiny::new();
    let path = tiny.folder.path().join("pytorch_model.bin");
    fs::write(&path, "PK").expect("writable");
    let ran = run(&["check", &path.display().to_string()], "");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("pickled-weights") && ran.stdout.contains("save_pretrained"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_tokenizer_that_makes_its_library_panic_leaves_no_trace_of_that() {
    let tiny = Tiny::new();
    let path = Path::new(&tiny.path()).join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("json");
    tokenizer["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {},
    });
    fs::write(&path, tokenizer.to_string()).expect("writable");
    let ran = tiny.run("check", &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("ends in the midst of it") && !ran.stderr.contains("panicked"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_chat_template_that_cannot_be_rendered_is_a_problem() {
    let tiny = Tiny::new();
    let template = "{{ messages | no_such_filter }}";
    fs::write(Path::new(&tiny.path()).join("chat_template.jinja"), template).expect("writable");
    let ran = tiny.run("check", &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stdout.contains("chat-template") && ran.stdout.contains("no_such_filter"), "{}", ran.stdout);
}

#[test]
fn a_quantization_is_checked_against_the_model_or_made() {
    let tiny = Tiny::new();
    tiny.generate(&["--max-tokens", "2", "--quantization", "fp8"]).ok();
    let report = &tiny.run("inspect", &["--output-format", "json", "--quantization", "fp8"]).ok().lines()[0];
    assert!(report["weight_bytes_by_dtype"]["fp8_e4m3"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
    tiny.generate(&["--max-tokens", "2", "--quantization", "awq"])
        .refused(&["quantization", "not quantized"]);
    tiny.generate(&["--quantization", "marlin"]).refused(&["quantization", "marlin", "gptq, awq, fp8"]);
}
