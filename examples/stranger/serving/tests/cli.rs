//! The parts work from the command line, on a tiny model.

use std::path::Path;
use std::process::{Command, Output};

use quire::models::testing::TinyModel;

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stranger-serving"));
    command.args(words).env("QUIRE_LOG", "info").env("HF_HUB_OFFLINE", "1");
    command.output().expect("the program was built for this test")
}

fn tiny_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for tests");
    TinyModel::llama().write_folder(folder.path()).expect("writable");
    folder
}

fn generate(model: &Path, more: &[&str]) -> (String, String) {
    let model = model.to_str().expect("a plain path");
    let prompt = "a prompt that is a good deal longer than the window of the attention that is tested";
    let words =
        ["generate", model, "--prompt", prompt, "--temperature", "0", "--max-tokens", "12", "--ignore-eos"];
    let output = run(&[&words[..], more].concat());
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    (stdout.into_owned(), stderr.into_owned())
}

#[test]
fn a_policy_of_ones_own_serves_requests_and_does_not_change_them() {
    let folder = tiny_model();
    let (shipped, _) = generate(folder.path(), &[]);
    let (mine, log) = generate(folder.path(), &["--scheduling-policy", "mine"]);
    assert_eq!(mine, shipped);
    assert!(log.contains("scheduling_policy = mine"), "{log}");
}

#[test]
fn a_logits_processor_of_ones_own_edits_what_asks_for_it() {
    let folder = tiny_model();
    let (shipped, _) = generate(folder.path(), &[]);
    assert_eq!(generate(folder.path(), &["--logits-processor", "no_stutter=0"]).0, shipped);
    // Raised, the last tokens come again and again.
    assert_ne!(generate(folder.path(), &["--logits-processor", "no_stutter=-100"]).0, shipped);
}

#[test]
fn an_attention_part_of_ones_own_is_used_and_named() {
    let folder = tiny_model();
    let (shipped, _) = generate(folder.path(), &["--kv-cache-dtype", "float32"]);
    let (text, log) = generate(folder.path(), &["--device", "mine", "--kv-cache-dtype", "float32"]);
    assert!(log.contains("[dispatch] attention=mine because"), "{log}");
    assert_eq!(text, shipped);
}

#[test]
fn an_architecture_of_ones_own_is_built() {
    let folder = tempfile::tempdir().expect("a folder for tests");
    let model = TinyModel::llama().with_config("architectures", vec!["StrangerForCausalLM"]);
    model.write_folder(folder.path()).expect("writable");
    let plain = tiny_model();
    assert_eq!(generate(folder.path(), &[]).0, generate(plain.path(), &[]).0);
}

#[test]
fn unknown_names_are_answered_with_those_known() {
    let folder = tiny_model();
    let model = folder.path().to_str().expect("a plain path");
    for (flag, known) in [
        ("--scheduling-policy", "fcfs, length-bucket, mine"),
        ("--device", "auto, cpu, cuda, mine"),
        ("--logits-processor", "expected one of no_stutter"),
    ] {
        let output = run(&["generate", model, "--prompt", "a", flag, "yours"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(known), "{stderr}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn the_policy_is_the_one_that_the_readme_shows() {
    let (readme, policy) = (include_str!("../../../../README.md"), include_str!("../src/policy.rs"));
    assert!(readme.contains(policy), "README.md and src/policy.rs have parted");
    assert!(policy.lines().count() <= 35);
}
