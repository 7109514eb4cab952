//! Recordings, their replay, and simulation, from outside, on a tiny model.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
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
        let is_file = |word: &str| {
            word == "tiny" || (word.contains(".qrec") && !word.contains('/')) || has_extension(word)
        };
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
    !word.contains('/') && [".csv", ".json", ".svg", ".png"].iter().any(|extension| word.ends_with(extension))
}

const LIMITS: &str = "--max-num-seqs 6 --max-num-batched-tokens 48 --max-model-len 128 --block-size 8";

#[test]
fn the_engine_decides_as_its_replay_and_as_its_simulation() {
    let folder = Folder::new();
    // In both orders of the loop.
    for (order, name) in [("", "overlapped.qrec"), ("--no-async-scheduling", "plain.qrec")] {
        let pool = "--num-gpu-blocks-override 24";
        folder
            .run(&format!("trace record tiny --trace trace.csv --at-once -o {name} {pool} {LIMITS} {order}"));
        let summary = folder.json(&format!("trace show {name}"));
        assert_eq!((&summary["num_finished"], &summary["num_aborted"]), (&30.into(), &0.into()));
        let replayed = folder.json(&format!("trace replay {name}"));
        assert_eq!(replayed["decisions"], summary["decisions"], "{name}");
        assert!(replayed["num_preemptions"].as_u64() > Some(0), "{name}: the pool is small: {replayed}");
        let simulated =
            folder.json(&format!("simulate --trace trace.csv --at-once --blocks 24 {LIMITS} {order}"));
        assert_eq!(simulated["decisions"], summary["decisions"], "{name}: {simulated}");
        assert!(simulated["prefix_hit_rate"].as_f64() > Some(0.05), "{name}: {simulated}");
    }
}

#[test]
fn a_recording_is_shown_drawn_fitted_and_run_under_another_policy() {
    let folder = Folder::new();
    folder.run(&format!("trace record tiny --trace trace.csv --request-rate 100 -o run.qrec {LIMITS}"));
    let text = folder.run("trace show run.qrec --steps");
    assert!(text.contains("30 finished") && text.contains("step=1 at="), "{text}");
    folder.run("trace plot run.qrec -o run.svg");
    folder.run("trace plot run.qrec -o run.png");
    let svg = fs::read_to_string(folder.path("run.svg")).expect("it was written");
    assert!(svg.starts_with("<svg") && svg.matches("<polyline").count() == 5);
    assert!(fs::read(folder.path("run.png")).expect("it was written").starts_with(b"\x89PNG"));
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
    let labels: Vec<_> =
        text.lines().filter_map(|line| line.split_once("  ")).map(|(label, _)| label).collect();
    let longer = labels.iter().filter(|label| label.starts_with("max_model_len ")).count();
    assert_eq!(longer, 4, "{text}");
    let distinct: std::collections::BTreeSet<_> = labels.iter().filter(|label| label.contains('_')).collect();
    assert_eq!(distinct.len(), labels.iter().filter(|label| label.contains('_')).count(), "{text}");
}

#[test]
fn what_cannot_work_is_not_recommended() {
    let folder = Folder::new();
    let goal = "--max-ttft-ms 0.001 --max-tpot-ms 0.001";
    folder.fails(&format!("tune --trace trace.csv {goal} --kv-tokens 4000"), 1, "no settings reach the goal");
    folder.fails("tune --trace trace.csv --kv-tokens 10", 1, "holds the longest request, of ");
    folder.fails("tune --trace trace.csv --device-memory 0", 1, "holds the longest request, of ");
    folder.fails("tune --trace trace.csv --kv-token-bytes 0", 2, "expected at least 1 byte");
    folder.fails("tune --trace trace.csv --kv-tokens 18446744073709551615", 2, "num_blocks is ");
}

#[test]
fn what_the_trace_says_of_a_request_is_recorded() {
    let folder = Folder::new();
    let row = |i: u32| {
        format!(
            "0,{},{},{},{},p,16,{}\n",
            20 + i * 37 % 60,
            1 + i * 53 % 20,
            ["a", "b", ""][i as usize % 3],
            40,
            30 - i
        )
    };
    let rows: String = (0..24).map(row).collect();
    let header = "arrival_s,prompt_tokens,output_tokens,tenant,max_tokens,prefix,prefix_tokens,priority";
    fs::write(folder.path("rich.csv"), format!("{header}\n{rows}")).expect("writable");
    let mut decisions = Vec::new();
    for policy in ["fcfs", "fair", "priority"] {
        let pool = "--num-gpu-blocks-override 24";
        folder.run(&format!(
            "trace record tiny --trace rich.csv -o r.qrec {pool} {LIMITS} --scheduling-policy {policy}"
        ));
        let recorded = folder.json("trace show r.qrec");
        let simulated =
            folder.json(&format!("simulate --trace rich.csv --blocks 24 {LIMITS} --policy {policy}"));
        assert_eq!(simulated["decisions"], recorded["decisions"], "{policy}: {simulated}");
        assert_eq!(simulated["num_finished"], 24);
        decisions.push(simulated["decisions"].to_string());
    }
    decisions.sort();
    decisions.dedup();
    assert_eq!(decisions.len(), 3, "each policy decides otherwise");
}

#[test]
fn requests_are_recorded_when_the_trace_says_that_they_come() {
    let folder = Folder::new();
    fs::write(folder.path("late.csv"), "arrival_s,prompt_tokens,output_tokens\n0,16,4\n1.5,16,4\n")
        .expect("writable");
    folder.run(&format!("trace record tiny --trace late.csv -o late.qrec {LIMITS}"));
    assert!(folder.json("trace show late.qrec")["duration_s"].as_f64() > Some(1.4));
    folder.run(&format!("trace record tiny --trace late.csv --at-once -o once.qrec {LIMITS}"));
    assert!(folder.json("trace show once.qrec")["num_steps"].as_u64() < Some(8));
    let model =
        "{\"name\": \"m\", \"source\": \"s\", \"step_us\": 1, \"prefill_token_us\": 1, \"decode_us\": 1}";
    fs::write(folder.path("cost.json"), model).expect("writable");
    let output = folder
        .command("trace replay once.qrec --policy fair --cost-model cost.json")
        .output()
        .expect("it was built");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("both policies decide alike on this load, which has one tenant"), "{stderr}");
}

#[test]
fn what_could_never_run_is_told() {
    let folder = Folder::new();
    let refused = "of 30 requests could never run";
    folder.fails("simulate --trace trace.csv --blocks 1", 1, refused);
    folder.fails("simulate --trace trace.csv --max-model-len 50", 1, refused);
    folder.fails("simulate --trace trace.csv --max-tokens 0", 2, "--max-tokens");
    let report =
        folder.command("simulate --trace trace.csv --max-model-len 50").output().expect("it was built");
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("the first is request 1: the prompt has 62 tokens"), "{report}");
    for line in ["--blocks 4294967295", "--block-size 4294967295", "--num-requests 4294967295"] {
        folder.fails(&format!("simulate --trace trace.csv {line}"), 2, "4294967295");
    }
    folder.fails(
        "simulate --trace trace.csv --request-rate 1e-300",
        2,
        "trace.csv: request 1 would come after",
    );
    folder.fails("simulate --trace trace.csv --preemption-mode swap", 2, "give --swap-blocks");
    let model = "{\"name\": \"m\", \"source\": \"s\", \"step_us\": 1, \"prefill_token_us\": 1, \"decode_us\": 1, \"kv_pool_tokens\": 1}";
    fs::write(folder.path("tiny-pool.json"), model).expect("writable");
    folder.fails(
        "simulate --trace trace.csv --cost-model tiny-pool.json",
        2,
        "kv_pool_tokens = 1, holds no block of 16",
    );
}

#[test]
fn where_a_result_cannot_go_is_told_before_the_run() {
    let folder = Folder::new();
    folder.fails("trace record nowhere --trace trace.csv -o /nowhere/run.qrec", 2, "/nowhere/run.qrec");
    folder.fails("simulate --trace trace.csv --plot /nowhere/run.svg", 2, "/nowhere/run.svg");
    folder.fails("simulate --trace trace.csv --plot run.gif", 2, "ends in .svg or .png");
    folder.fails("trace plot run.qrec -o run", 2, "ends in .svg or .png");
    folder.fails("trace fit run.qrec -o /nowhere/cost.json", 2, "/nowhere/cost.json");
}

#[test]
fn what_a_what_if_leaves_out_and_a_header_that_lies_are_told() {
    let folder = Folder::new();
    folder.run(&format!("trace record tiny --trace trace.csv --at-once -o run.qrec {LIMITS}"));
    let bytes = fs::read(folder.path("run.qrec")).expect("it was written");
    let lie = |name: &str, field: &str, value: u64| {
        fs::write(folder.path(name), with_header(&bytes, field, value)).expect("writable");
    };
    lie("steps.qrec", "/num_steps", 1_000_000_000_000_000_000);
    folder.fails("trace replay steps.qrec", 2, "the header says that 1000000000000000000 steps were planned");
    lie("pool.qrec", "/pool/num_blocks", 4_000_000_000);
    for policy in ["", "--policy fair"] {
        let expected = "pool.qrec: the recorded configuration: num_blocks is 4000000000";
        folder.fails(&format!("trace replay pool.qrec {policy}"), 2, expected);
    }
}

#[test]
fn swap_space_and_pins_that_leave_nothing_are_refused() {
    let folder = Folder::new();
    let record = format!("trace record tiny --trace trace.csv --at-once -o run.qrec {LIMITS}");
    let swap = "--swap-space 1e-9 --preemption-mode swap";
    folder.fails(
        &format!("{record} {swap}"),
        2,
        "swap_space is 0.000000001, expected 0, or at least one block, of ",
    );
    folder.fails(
        &format!("{record} --max-pinned-bytes 90GiB"),
        2,
        "which leaves room for a sequence of max_model_len = 128",
    );
    let few = format!("{record} --num-gpu-blocks-override 24 --max-pinned-bytes 90GiB");
    folder.fails(&few, 2, "which leaves prompts a block");
}

/// A recording with another number in its header.
fn with_header(recording: &[u8], field: &str, value: u64) -> Vec<u8> {
    let len = u32::from_le_bytes(recording[10..14].try_into().expect("four bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&recording[14..14 + len]).expect("an object");
    *header.pointer_mut(field).expect("the field is there") = value.into();
    let header = serde_json::to_vec(&header).expect("plain data");
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let checksum = header.iter().fold(0xcbf2_9ce4_8422_2325, step);
    let len_now = (header.len() as u32).to_le_bytes();
    [&recording[..10], &len_now, &header, &checksum.to_le_bytes(), &recording[14 + len + 8..]].concat()
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

#[cfg(unix)]
#[test]
fn who_asks_by_a_signal_is_answered_whatever_the_log_lets_through() {
    let folder = Folder::new();
    fs::create_dir(folder.path("recordings")).expect("writable");
    let line = format!(
        "trace record tiny --trace trace.csv --request-rate 3 -o run.qrec --log-level schedule=debug {LIMITS}"
    );
    let mut command = folder.command(&line);
    command.arg("--recording-dir").arg(folder.path("recordings"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the program was built for this test");
    let mut log = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("step=3 ")), "the scheduler is at work");
    // The threads that wait for signals were started before it.
    std::thread::sleep(Duration::from_millis(500));
    for signal in ["-USR1", "-USR2"] {
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(killed.expect("kill is there").success());
    }
    let rest: Vec<_> = log.filter(|line| !line.contains("[schedule]")).collect();
    assert!(child.wait().expect("it ends").success(), "{rest:?}");
    assert!(rest.iter().any(|line| line.starts_with("recording written to ")), "{rest:?}");
    assert!(rest.iter().any(|line| line.starts_with("request ") || line == "no request is open"), "{rest:?}");
}

#[test]
fn what_does_not_fit_is_told_and_what_never_runs_is_refused() {
    let folder = Folder::new();
    let header = "arrival_s,prompt_tokens,output_tokens";
    fs::write(folder.path("long.csv"), format!("{header}\n0,10,20\n0,10,300\n")).expect("writable");
    let cut = "cut short: 1 output, by 182 tokens, the first is request 1: 300 output tokens, 118 fit: max_model_len = 128";
    let output =
        folder.command(&format!("trace record tiny --trace long.csv -o long.qrec {LIMITS}")).output();
    let output = output.expect("the program was built for this test");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains(cut), "{stderr}");
    let simulated = folder.json(&format!("simulate --trace long.csv {LIMITS}"));
    assert_eq!((&simulated["num_cut"], &simulated["cut"][0]["limit"]), (&1.into(), &"max_model_len".into()));
    fs::write(folder.path("never.csv"), format!("{header}\n0,10,20\n0,128,1\n")).expect("writable");
    let line = format!("trace record tiny --trace never.csv -o never.qrec {LIMITS}");
    folder.fails(&line, 2, "never.csv: request 1 can never run: the prompt has 128 tokens");
}

#[test]
fn what_is_read_is_not_overwritten() {
    let folder = Folder::new();
    folder.run(&format!("trace record tiny --trace trace.csv --num-requests 30 -o a.qrec {LIMITS}"));
    let before = ["trace.csv", "a.qrec"].map(|name| fs::read(folder.path(name)).expect("it is there"));
    fs::copy(folder.path("a.qrec"), folder.path("a.svg")).expect("writable");
    fs::copy(folder.path("trace.csv"), folder.path("trace.svg")).expect("writable");
    for line in [
        &format!("trace record tiny --trace trace.csv -o trace.csv {LIMITS}"),
        "trace fit a.qrec -o a.qrec",
        "trace plot a.svg -o a.svg",
        "simulate --trace trace.svg --plot trace.svg",
    ] {
        folder.fails(line, 2, "the output would take the place of a file that is read");
    }
    let after = ["trace.csv", "a.qrec"].map(|name| fs::read(folder.path(name)).expect("it is there"));
    assert_eq!(before, after);
}

#[test]
fn an_interrupted_recording_is_written() {
    let folder = Folder::new();
    let rows = "arrival_s,prompt_tokens,output_tokens\n0,10,20\n0.1,10,20\n600,10,20\n";
    fs::write(folder.path("slow.csv"), rows).expect("writable");
    let line = format!("trace record tiny --trace slow.csv -o slow.qrec {LIMITS} --log schedule=debug");
    let mut running = folder.command(&line).stderr(Stdio::piped()).spawn().expect("it runs");
    let stderr = BufReader::new(running.stderr.take().expect("a pipe"));
    let mut lines = stderr.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("[schedule]")), "the first request runs");
    let id = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("there is kill").success());
    let rest: Vec<_> = lines.collect();
    assert_eq!(running.wait().expect("it ends").code(), Some(1));
    assert!(
        rest.iter().any(|line| line.contains("slow.qrec holds what was recorded until then")),
        "{rest:?}"
    );
    let summary = folder.json("trace show slow.qrec");
    assert!(summary["num_requests"].as_u64().is_some_and(|num| (1..3).contains(&num)), "{summary}");
}
