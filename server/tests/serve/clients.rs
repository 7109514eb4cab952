//! Clients that others wrote, against `quire serve`: chosen with `QUIRE_TEST_CLIENTS=1`, where their packages are
//! installed (`tests/clients/README.md`).

use std::env;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::server::Server;

/// A client: the program that runs its script, what that program does only where the package is installed, the script, and what
/// it is told beside the server's address.
struct Client {
    program: String,
    probe: [&'static str; 2],
    script: &'static str,
    arguments: Vec<String>,
}

fn python(module: &'static str, script: &'static str) -> Client {
    let program = env::var("QUIRE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    Client { program, probe: ["-c", module], script, arguments: Vec::new() }
}

fn check(client: &Client, flags: &[&str]) {
    let Client { program, probe, script, arguments } = client;
    if env::var("QUIRE_TEST_CLIENTS").as_deref() != Ok("1") {
        eprintln!("skipped {script}: set QUIRE_TEST_CLIENTS=1 to run it");
        return;
    }
    let is_installed = Command::new(program).args(probe).output().is_ok_and(|output| output.status.success());
    if !is_installed {
        eprintln!("skipped {script}: {program} {} fails", probe.join(" "));
        return;
    }
    let server = Server::start(flags);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients").join(script);
    let mut run = Command::new(program);
    run.arg(path).arg(format!("http://{}", server.address)).args(arguments);
    if *script == FAULTS {
        run.arg(server.child.id().to_string());
    }
    let output = run.output().expect("it has answered the probe");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    eprintln!("{said}");
    server.end_well();
}

/// The one that asks for the server's process as well.
const FAULTS: &str = "faults.py";

const TOOLS: [&str; 3] = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];

#[test]
fn openai_python() {
    check(&python("import openai", "openai_python.py"), &TOOLS);
}

#[test]
fn openai_javascript() {
    let probe = ["-e", "require('openai')"];
    let (program, script) = ("node".to_owned(), "openai_javascript.cjs");
    check(&Client { program, probe, script, arguments: Vec::new() }, &TOOLS);
}

#[test]
fn langchain_python() {
    check(&python("import langchain_openai", "langchain_python.py"), &TOOLS);
}

#[test]
fn vllm_benchmark() {
    let probe = "import aiohttp, numpy, os, tqdm; open(os.environ['VLLM_WHEEL'])";
    check(&python(probe, "vllm_benchmark.py"), &[]);
}

#[test]
fn load_python() {
    let request = |k: u32| json!({"prompt_tokens": 5 + k, "output_tokens": 1 + 3 * k, "arrival_unit": k});
    let lines: String = (0..6).map(|k| format!("{}\n", request(k))).collect();
    let trace = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(trace.path(), lines).expect("written");
    let path = trace.path().display().to_string();
    let arguments = [&path, "50", "6", "-", "64"].map(str::to_owned).to_vec();
    check(&Client { arguments, ..python("import aiohttp", "load_python.py") }, &[]);
}

#[test]
fn faults() {
    check(&python("import json", FAULTS), &["--max-num-waiting", "64", "--write-timeout", "5"]);
}
