//! What the log says at the start.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{Tiny, command};

#[test]
fn what_does_not_show_is_said() {
    let tiny = Tiny::new();
    let warned = tiny.run("generate", &["--input", &tiny.input("\n")]).ok();
    assert!(warned.stdout.is_empty() && warned.stderr.contains("holds no request"), "{}", warned.stderr);
    let flags = ["--prompt", "a", "--max-tokens", "1", "--logprobs", "1"];
    let unseen = tiny.run("generate", &flags).ok().stderr;
    assert!(unseen.contains("--output-format json shows them"), "{unseen}");
    let seen = tiny.run("generate", &[&flags[..], &["--output-format", "json"]].concat()).ok().stderr;
    assert!(!seen.contains("--output-format"), "{seen}");
}

#[test]
fn a_pool_below_the_longest_sequence_is_warned_of() {
    let tiny = Tiny::new();
    let words = ["--num-gpu-blocks-override", "2", "--max-model-len", "64", "--log-level", "warn"];
    let ran = tiny.generate(&[&words[..], &["--max-tokens", "2"]].concat()).ok();
    let warning = "num_gpu_blocks_override leaves room for 32 tokens, max_model_len is 64";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    let ran = tiny.generate(&["--max-model-len", "64", "--max-tokens", "2", "--log-level", "warn"]).ok();
    assert_eq!(ran.stderr, "");
}

#[test]
fn only_kernels_in_use_are_listed() {
    let ran = Tiny::new().generate(&["--max-tokens", "1"]).ok();
    let lines: Vec<_> = ran.stderr.lines().filter(|line| line.contains("[dispatch] linear.")).collect();
    assert!(lines.len() == 1 && lines[0].contains("linear.f32="), "{lines:?}");
}

/// The download is somebody else's program: it must not outlive this one.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_download_leaves_nothing_running() {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    let folder = tempfile::tempdir().expect("a folder for tests");
    let (python, pid_file) = (folder.path().join("python3"), folder.path().join("pid"));
    let script = format!("#!/bin/sh\necho $$ > '{}'\nexec sleep 600\n", pid_file.display());
    fs::write(&python, script).expect("writable");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("ours");

    let mut quire = command(&["generate", "--prompt", "a"]);
    quire.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", "http://127.0.0.1:9");
    quire.env("QUIRE_CACHE", folder.path().join("cache")).stderr(Stdio::null());
    let mut child =
        quire.env("PATH", format!("{}:/bin:/usr/bin", folder.path().display())).spawn().expect("built");
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let download = || fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok();
    wait_for("the download begins", &|| download().is_some());
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.expect("there is a kill").success());
    assert!(!child.wait().expect("it ends").success());
    let program = format!("/proc/{}/cmdline", download().expect("it began"));
    // One that has ended and that nobody has waited for has no words.
    wait_for("the download ends", &|| {
        fs::read(&program).is_ok_and(|words| words.is_empty()) || !Path::new(&program).exists()
    });
}

#[test]
fn a_fingerprint_is_that_of_model_dtypes_and_kernels() {
    let fingerprint = |tiny: &Tiny, flags: &[&str]| {
        let ran = tiny.run("inspect", &[&["--output-format", "json"], flags].concat()).ok();
        ran.lines()[0]["fingerprint"].as_str().expect("a number in hexadecimal").to_owned()
    };
    let (one, same) = (Tiny::new(), Tiny::new());
    let plain = fingerprint(&one, &[]);
    assert_eq!(plain, fingerprint(&same, &["--max-num-seqs", "3"]), "neither the place nor the batch counts");
    for flags in [&["--kv-cache-dtype", "fp8"][..], &["--dtype", "bfloat16"], &["--quantization", "fp8"]] {
        assert_ne!(plain, fingerprint(&one, flags), "{flags:?}");
    }
}

#[test]
fn a_fingerprint_without_a_revision_is_that_of_every_file() {
    let fingerprint = |tiny: &Tiny, flags: &[&str]| {
        let ran = tiny.run("inspect", &[&["--output-format", "json"], flags].concat()).ok();
        ran.lines()[0]["fingerprint"].as_str().expect("a number in hexadecimal").to_owned()
    };
    let plain = fingerprint(&Tiny::new(), &[]);
    let append = |file: &str, text: &str| {
        let tiny = Tiny::new();
        let path = Path::new(&tiny.path()).join(file);
        let old = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, old + text).expect("writable");
        fingerprint(&tiny, &[])
    };
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        assert_ne!(append(file, "\n"), plain, "{file}");
    }
    assert_ne!(append("chat_template.jinja", "{{ 1 }}"), plain);
    assert_eq!(append("README.md", "nothing reads it"), plain);
    // The last weight, far from every header.
    let tiny = Tiny::new();
    let path = Path::new(&tiny.path()).join("model.safetensors");
    let mut bytes = fs::read(&path).expect("there");
    let end = bytes.len();
    bytes[end - 4] ^= 1;
    fs::write(path, bytes).expect("writable");
    assert_ne!(fingerprint(&tiny, &[]), plain);
    // What is given in place of the model's own.
    let (tiny, other) = (Tiny::new(), Tiny::new());
    assert_ne!(fingerprint(&tiny, &["--chat-template", "{{ 1 }}"]), plain);
    assert_ne!(fingerprint(&tiny, &["--tokenizer", &other.path()]), plain);
}

#[test]
fn misspelt_names_in_the_environment_are_warned_of() {
    let tiny = Tiny::new();
    let mut command = command(&["inspect", &tiny.path()]);
    let output = command.env("VLLM_CPU_KVCACHE_SPAC", "1").output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("the nearest is VLLM_CPU_KVCACHE_SPACE"), "{stderr}");
}

#[test]
fn sampling_defaults_that_no_request_may_have_are_warned_of_and_not_used() {
    let tiny = Tiny::new();
    let file = Path::new(&tiny.path()).join("generation_config.json");
    fs::write(&file, "{\"top_p\": 7, \"temperature\": 100}").expect("writable");
    let run = tiny.generate(&["--max-tokens", "1"]).ok();
    for said in ["top_p is 7", "temperature is 100: requests get 2", "generation_config.json"] {
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
    let quiet = tiny.generate(&["--max-tokens", "1", "--generation-config", "none"]).ok();
    assert!(!quiet.stderr.contains("top_p is 7"), "{}", quiet.stderr);
}
