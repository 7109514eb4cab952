//! Recordings, their replay, and simulation, from outside, on a tiny model.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quire::models::testing::TinyModel;
use serde_json::Value;

struct Folder(tempfile::TempDir);

impl Folder {
    /// With a tiny model and a trace whose requests do not all fit into a small pool at once.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder for tests"));
        fs::create_dir(folder.path("tiny")).expect("writable");
        TinyModel::llama().write_folder(&folder.path("tiny")).expect("writable");
        let row = |i: u32| {
            let prefix = ["", "system"][i as usize % 3 / 2];
            format!("{},{},{},{prefix},20\n", f64::from(i) * 0.2, 25 + i * 37 % 60, 1 + i * 53 % 40)
        };
        let rows: String = (0..30).map(row).collect();
        let header = "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens";
        fs::write(folder.path("trace.csv"), format!("{header}\n{rows}")).expect("writable");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program's words, in which a name with a dot or `tiny` is a file of this folder.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let is_file = |word: &str| word == "tiny" || word.contains(".qrec") || has_extension(word);
        let word = |word: &str| match is_file(word) {
            true => self.path(word).into_os_string(),
            false => word.into(),
        };
        command.args(line.split_whitespace().map(word));
        command.env("HF_HUB_OFFLINE", "1").env("QUIRE_CACHE", "/nonexistent").env_remove("RUST_LOG");
        command
    }

    #[track_caller]
    fn run(&self, line: &str) -> String {
        let output = self.command(line).output().expect("the program was built for this test");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8(output.stdout).expect("the program writes UTF-8")
    }

    #[track_caller]
    fn json(&self, line: &str) -> Value {
        let output = self.run(&format!("{line} --output-format json"));
        serde_json::from_str(output.lines().next().expect("a line")).expect("an object")
    }

    #[track_caller]
    fn fails(&self, line: &str, code: i32, part: &str) {
        let output = self.command(line).output().expect("the program was built for this test");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
        assert!(stderr.contains(part), "{line}: {stderr}");
    }
}

fn has_extension(word: &str) -> bool {
    [".csv", ".json", ".svg"].iter().any(|extension| word.ends_with(extension))
}

const LIMITS: &str = "--max-num-seqs 6 --max-num-batched-tokens 48 --max-model-len 128 --block-size 8";

#[test]
fn the_engine_decides_as_its_replay_and_as_its_simulation() {
    let folder = Folder::new();
    // All at once, in both orders of the loop.
    fs::write(folder.path("atonce.csv"), at_once(&folder.path("trace.csv"))).expect("writable");
    for (order, name) in [("", "overlapped.qrec"), ("--no-async-scheduling", "plain.qrec")] {
        let pool = "--num-gpu-blocks-override 24";
        folder.run(&format!("trace record tiny --trace atonce.csv -o {name} {pool} {LIMITS} {order}"));
        let summary = folder.json(&format!("trace show {name}"));
        assert_eq!((&summary["num_finished"], &summary["num_aborted"]), (&30.into(), &0.into()));
        let replayed = folder.json(&format!("trace replay {name}"));
        assert_eq!(replayed["decisions"], summary["decisions"], "{name}");
        assert!(replayed["num_preemptions"].as_u64() > Some(0), "{name}: the pool is small: {replayed}");
        let simulated = folder.json(&format!("simulate --trace atonce.csv --blocks 24 {LIMITS} {order}"));
        assert_eq!(simulated["decisions"], summary["decisions"], "{name}: {simulated}");
        assert!(simulated["prefix_hit_rate"].as_f64() > Some(0.05), "{name}: {simulated}");
    }
}

/// The trace with every arrival at zero.
fn at_once(trace: &Path) -> String {
    let text = fs::read_to_string(trace).expect("it was written");
    let line = |line: &str| match line.split_once(',') {
        Some(("arrival_s", _)) | None => format!("{line}\n"),
        Some((_, rest)) => format!("0,{rest}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn a_recording_is_shown_drawn_fitted_and_run_under_another_policy() {
    let folder = Folder::new();
    folder.run(&format!("trace record tiny --trace trace.csv --request-rate 100 -o run.qrec {LIMITS}"));
    let text = folder.run("trace show run.qrec --steps");
    assert!(text.contains("30 finished") && text.contains("step=1 at="), "{text}");
    folder.run("trace plot run.qrec -o run.svg");
    let svg = fs::read_to_string(folder.path("run.svg")).expect("it was written");
    assert!(svg.starts_with("<svg") && svg.matches("<polyline").count() == 5);
    let fitted = folder.json("trace fit run.qrec -o cost.json");
    assert!(fitted["num_steps"].as_u64() > Some(16), "{fitted}");
    let reports = folder.run("trace replay run.qrec --policy shortest-first --cost-model cost.json");
    assert!(reports.contains("policy fcfs") && reports.contains("policy shortest-first"), "{reports}");
    let simulated = folder.json(
        "simulate --trace trace.csv --cost-model cost.json --policy fcfs,fair --num-requests 200 --plot sim.svg",
    );
    assert_eq!(simulated["num_finished"], 200);
    assert!(folder.path("sim.svg").exists());
    assert!(folder.run("trace replay run.qrec --decisions").contains("seq_id=0 kind=New start=0"));
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let folder = Folder::new();
    fs::write(folder.path("bad.csv"), "arrival_s,prompt_tokens,output_tokens\n0,5,x\n").expect("writable");
    folder.fails("simulate --trace bad.csv", 2, "bad.csv: line 2, column `output_tokens`: `x`");
    folder.fails("simulate --trace trace.csv --policy best", 2, "unknown scheduling policy `best`");
    folder.fails("simulate --trace trace.csv --max-num-seqs 0", 2, "max_num_seqs is 0");
    folder.fails("simulate --trace trace.csv --cost-model trace.csv", 2, "not a cost model");
    folder.fails("trace show trace.csv", 2, "not a recording");
    folder.run(&format!("trace record tiny --trace trace.csv --num-requests 3 -o run.qrec {LIMITS}"));
    let bytes = fs::read(folder.path("run.qrec")).expect("it was written");
    fs::write(folder.path("torn.qrec"), &bytes[..bytes.len() / 2]).expect("writable");
    folder.fails("trace replay torn.qrec", 2, "the recording is torn");
    let newer = [&bytes[..8], &[9, 0], &bytes[10..]].concat();
    fs::write(folder.path("newer.qrec"), newer).expect("writable");
    folder.fails("trace show newer.qrec", 2, "format version 9");
}

#[test]
fn settings_are_found_for_a_goal() {
    let folder = Folder::new();
    let text = folder.run("tune --trace trace.csv --max-ttft-ms 200 --max-tpot-ms 8 --kv-tokens 4000");
    for part in ["goal: p99 TTFT 200 ms", "max_num_seqs 16", "short-chat:", "long-context:", "--block-size "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_writes_a_recording_while_requests_go_on() {
    let folder = Folder::new();
    fs::create_dir(folder.path("recordings")).expect("writable");
    let recordings = folder.path("recordings");
    let line = format!(
        "trace record tiny --trace trace.csv --request-rate 3 -o run.qrec --log-level debug {LIMITS}"
    );
    let mut child = folder
        .command(&line)
        .arg("--recording-dir")
        .arg(&recordings)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built for this test");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("SIGUSR1 writes") {
        line.clear();
        assert!(log.read_line(&mut line).expect("text") > 0, "the program has ended");
    }
    // The rest of the log must not fill its pipe.
    let rest = std::thread::spawn(move || log.lines().map_while(Result::ok).count());
    let killed = Command::new("kill").args(["-USR1", &child.id().to_string()]).status();
    assert!(killed.expect("kill is there").success());
    let deadline = Instant::now() + Duration::from_secs(60);
    let written = || fs::read_dir(&recordings).expect("it is there").flatten().next();
    let file = loop {
        if let Some(file) = written() {
            break file.path();
        }
        assert!(Instant::now() < deadline, "a recording is written");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(child.wait().expect("it ends").success());
    rest.join().expect("the log is text");
    assert!(file.extension().is_some_and(|extension| extension == "qrec"));
    let show = folder.command("trace show").arg(&file).output().expect("it was built");
    assert!(show.status.success(), "{}", String::from_utf8_lossy(&show.stderr));
}
