//! The program, and what a run of it leaves.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use quire::models::testing::TinyModel;
use serde_json::Value;

/// A tiny model in a folder of its own.
pub(crate) struct Tiny {
    pub(crate) folder: tempfile::TempDir,
}

/// What a run of the program left.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Tiny {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for tests");
        fs::create_dir(folder.path().join("tiny")).expect("writable");
        TinyModel::llama().write_folder(&folder.path().join("tiny")).expect("writable");
        Self { folder }
    }

    pub(crate) fn path(&self) -> String {
        self.folder.path().join("tiny").display().to_string()
    }

    pub(crate) fn input(&self, lines: &str) -> String {
        let path = self.folder.path().join("requests.jsonl");
        fs::write(&path, lines).expect("writable");
        path.display().to_string()
    }
}

pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(words).env("HF_HUB_OFFLINE", "1").env("QUIRE_CACHE", "/nonexistent").env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn run(words: &[&str], stdin: &str) -> Ran {
    let mut child = command(words).spawn().expect("the program was built for this test");
    child.stdin.take().expect("piped").write_all(stdin.as_bytes()).expect("read by the program");
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
    Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// A wrong command line or input: code 2, nothing on standard output, and each of `parts` on standard error.
    #[track_caller]
    pub(crate) fn refused(self, parts: &[&str]) {
        self.failed(2, parts);
    }

    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
    }
}
