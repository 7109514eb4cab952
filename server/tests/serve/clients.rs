//! Clients that others wrote, against `quire serve`: chosen with `QUIRE_TEST_CLIENTS=1`, where their packages are
//! installed (`tests/clients/README.md`).

use std::env;
use std::path::Path;
use std::process::Command;

use crate::server::Server;

/// A client: the program that runs its script, what that program does only where the package is installed, and the script.
struct Client {
    program: String,
    probe: [&'static str; 2],
    script: &'static str,
}

fn python(module: &'static str, script: &'static str) -> Client {
    let program = env::var("QUIRE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    Client { program, probe: ["-c", module], script }
}

fn check(client: &Client, flags: &[&str]) {
    let Client { program, probe, script } = client;
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
    run.arg(path).arg(format!("http://{}", server.address));
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
    check(&Client { program: "node".to_owned(), probe, script: "openai_javascript.cjs" }, &TOOLS);
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
fn faults() {
    check(&python("import json", FAULTS), &["--max-num-waiting", "64", "--write-timeout", "5"]);
}
