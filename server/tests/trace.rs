//! `--trace-tensors` and `quire trace diff` from outside, on a tiny model.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;

use quire::kernels::{
    AttentionArgs, AttentionKernels, AttentionPlan, DeviceId, Dispatch, Kernels, KvGroupSpec, KvLayer,
    KvLayout, Limits, Part, Result, ShapeKey, StepCtx, StepRows, Tensor,
};
use quire::models::testing::TinyModel;
use serde_json::Value;

struct Tiny {
    folder: tempfile::TempDir,
}

impl Tiny {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for tests");
        fs::create_dir(folder.path().join("tiny")).expect("writable");
        TinyModel::llama().write_folder(&folder.path().join("tiny")).expect("writable");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command line that continues a prompt by six tokens.
    fn generate(&self, words: &[&str]) -> Vec<String> {
        let model = self.path("tiny").display().to_string();
        let given = ["generate", &model, "--prompt", "hello there", "--temperature", "0", "--ignore-eos"];
        let rest = ["--max-tokens", "6", "--threads", "2", "--output-format", "text"];
        [&given, &rest[..], words].concat().into_iter().map(str::to_owned).collect()
    }

    /// Generates, traced to a folder of that name.
    fn trace(&self, name: &str, words: &[&str]) -> Output {
        let folder = self.path(name).display().to_string();
        quire(&self.generate(&[&["--trace-tensors", &folder], words].concat()))
    }

    fn diff(&self, a: &str, b: &str, words: &[&str]) -> Output {
        let (a, b) = (self.path(a).display().to_string(), self.path(b).display().to_string());
        quire(&[&["trace", "diff", &a, &b], words].concat().map_to_owned())
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name).join("tensors.jsonl")).expect("a trace was written");
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
    }
}

trait MapToOwned {
    fn map_to_owned(&self) -> Vec<String>;
}

impl MapToOwned for Vec<&str> {
    fn map_to_owned(&self) -> Vec<String> {
        self.iter().map(|word| (*word).to_owned()).collect()
    }
}

fn quire(words: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(words).env("HF_HUB_OFFLINE", "1").env("QUIRE_CACHE", "/nonexistent").env_remove("RUST_LOG");
    command.output().expect("the program was built for this test")
}

#[track_caller]
fn text_of(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    String::from_utf8(output.stdout.clone()).expect("the program writes UTF-8")
}

#[test]
fn a_trace_changes_no_token_and_is_the_same_every_time() {
    let tiny = Tiny::new();
    let plain = text_of(&quire(&tiny.generate(&[])), 0);
    for name in ["a", "b"] {
        let traced = tiny.trace(name, &[]);
        assert_eq!(text_of(&traced, 0), plain);
        assert!(String::from_utf8_lossy(&traced.stderr).contains("tensors.jsonl"), "it says that it is slow");
    }
    assert_eq!(tiny.lines("a"), tiny.lines("b"));
    let report = text_of(&tiny.diff("a", "b", &[]), 0);
    assert!(report.starts_with("a: cpu (") && report.contains(" 0 beyond 0.01"), "{report}");
}

#[test]
fn a_trace_holds_every_operation_of_every_step() {
    let tiny = Tiny::new();
    text_of(&tiny.trace("a", &["--no-async-scheduling"]), 0);
    let lines = tiny.lines("a");
    assert_eq!((&lines[0]["tensor_trace"], &lines[0]["backend"]), (&1.into(), &"cpu".into()));
    let num_layers = TinyModel::llama().num_layers as u64;
    for step in 0..6 {
        let ops: Vec<&Value> = lines[1..].iter().filter(|line| line["step"] == step).collect();
        for (i, pair) in ops.windows(2).enumerate() {
            let next = pair[1]["op_idx"].as_u64().expect("an index");
            let same_op = pair[0]["op_idx"].as_u64() == Some(next) && pair[0]["op"] == pair[1]["op"];
            assert!(same_op || pair[0]["op_idx"].as_u64() == Some(next - 1), "line {i} of step {step}");
        }
        let count = |op: &str| ops.iter().filter(|line| line["op"] == op).count() as u64;
        assert_eq!(count("linear.embed"), 1);
        assert_eq!(count("linear.forward"), 4 * num_layers + 1, "with the head");
        assert_eq!(count("attention.forward"), num_layers);
        assert_eq!(count("attention.write_kv"), 2 * num_layers, "keys and values");
        assert_eq!(count("norm.rms_norm"), 2 * num_layers + 1);
        assert_eq!(count("activation.silu_mul"), num_layers);
        assert_eq!(count("sampling.sample"), 1);
        assert_eq!(ops[ops.len() - 1]["op"], "sampling.scatter");
        let last = ops.iter().rfind(|line| line["op"] == "attention.forward").expect("counted above");
        assert_eq!(last["ordinal"], num_layers - 1);
        let head = ops.iter().rfind(|line| line["op"] == "linear.forward").expect("counted above");
        assert_eq!((&head["tensor"], head["shape"].as_array().map(Vec::len)), (&"out".into(), Some(2)));
        assert!(
            ops.iter().all(|line| line["num_nan"] == 0 && line["hash"].as_str().map(str::len) == Some(16))
        );
    }
    let weights: Vec<_> = lines.iter().filter_map(|line| line["weight"].as_str()).collect();
    assert!(weights.iter().any(|name| name.contains("layers.1.mlp.down_proj")), "{weights:?}");
}

/// Attention that gives a hundredth too much.
struct TooMuch(Kernels);

impl Part for TooMuch {
    fn device(&self) -> DeviceId {
        self.0.device().id()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.0.attention().scratch_bytes(limits)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        self.0.attention().dispatch()
    }
}

impl AttentionKernels for TooMuch {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        self.0.attention().kv_layout(spec, block_size)
    }

    fn plan(
        &self,
        ctx: &mut StepCtx,
        key: ShapeKey,
        rows: &StepRows,
        layout: &KvLayout,
    ) -> Result<AttentionPlan> {
        self.0.attention().plan(ctx, key, rows, layout)
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slots: &Tensor,
    ) -> Result<()> {
        self.0.attention().write_kv(ctx, k, v, kv, slots)
    }

    /// The backend is the CPU's, which has done its work when a call returns.
    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        self.0.attention().forward(ctx, args)?;
        let queue = ctx.queue().decorated().expect("the queue is traced");
        queue.set_in_step(false);
        let values = queue.read(args.out)?.wait_as::<f32>()?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| (1.01 * value).to_le_bytes()).collect();
        queue.write(args.out, &bytes)?;
        queue.set_in_step(true);
        Ok(())
    }
}

#[test]
fn the_first_wrong_operation_is_found() {
    let tiny = Tiny::new();
    text_of(&tiny.trace("right", &[]), 0);
    let app = quire::App::new().backend("too-much", |options| {
        let kernels = quire::cpu_kernels(options)?;
        let attention = Arc::new(TooMuch(kernels.clone()));
        kernels.with_attention(attention)
    });
    let folder = tiny.path("wrong").display().to_string();
    let words = tiny.generate(&["--device", "too-much", "--trace-tensors", &folder]);
    let code = app.run_with(std::iter::once("quire".to_owned()).chain(words));
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));

    let diff =
        tiny.diff("right", "wrong", &["--tolerance", "0.005", "--output-format", "json", "--worst", "3"]);
    assert!(String::from_utf8_lossy(&diff.stderr).contains("the traces differ"));
    let report: Value = serde_json::from_str(&text_of(&diff, 1)).expect("an object");
    let first = &report["first"];
    let place = (&first["a"]["step"], &first["a"]["op"], &first["a"]["ordinal"], &first["what"]);
    assert_eq!(place, (&0.into(), &"attention.forward".into(), &0.into(), &"rms".into()), "{first}");
    assert!((first["by"].as_f64().expect("a number") - 0.01 / 1.01).abs() < 1e-5, "{first}");
    assert_eq!(report["worst"].as_array().map(Vec::len), Some(3));
    // What came before it is the same bit for bit, although the fused forms went with the right attention.
    let exact = tiny.diff("right", "wrong", &["--tolerance", "0", "--output-format", "json"]);
    let exact: Value = serde_json::from_str(&text_of(&exact, 1)).expect("an object");
    assert_eq!(exact["first"], *first);
    assert!(exact["parting"].is_null(), "{exact}");
}

#[test]
fn what_is_no_trace_is_told() {
    let tiny = Tiny::new();
    let check = |output: Output, parts: &[&str]| {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        parts.iter().for_each(|part| assert!(stderr.contains(part), "`{part}` is not in: {stderr}"));
    };
    check(tiny.diff("none", "none", &[]), &["none"]);
    let model = tiny.path("tiny").join("config.json").display().to_string();
    check(quire(&tiny.generate(&["--trace-tensors", &model])), &["config.json"]);
    check(tiny.diff("tiny/config.json", "none", &[]), &["config.json, line 1"]);
    fs::create_dir(tiny.path("empty")).expect("writable");
    fs::write(tiny.path("empty").join("tensors.jsonl"), "").expect("writable");
    check(tiny.diff("empty", "empty", &[]), &["tensors.jsonl, line 1: the file is empty"]);
    check(tiny.diff("empty", "empty", &["--tolerance=-1"]), &["--tolerance", "at least 0"]);
    let file: &Path = &tiny.path("tiny").join("config.json");
    check(
        quire(&tiny.generate(&["--trace-tensors", &file.join("x").display().to_string()])),
        &["config.json"],
    );
}

#[test]
fn traces_with_nothing_in_common_are_told_apart_from_such_that_differ() {
    let tiny = Tiny::new();
    text_of(&tiny.trace("a", &[]), 0);
    // The same run, from its second operation on: as another model would.
    let text = fs::read_to_string(tiny.path("a").join("tensors.jsonl")).expect("a trace was written");
    let lines: Vec<&str> = text.lines().collect();
    let write = |name: &str, lines: &[&str]| {
        fs::create_dir(tiny.path(name)).expect("writable");
        fs::write(tiny.path(name).join("tensors.jsonl"), lines.join("\n")).expect("writable");
    };
    write("other", &[&lines[..1], &lines[3..]].concat());
    write("none", &lines[..1]);
    write("shorter", &lines[..lines.len() - 1]);
    for other in ["other", "none"] {
        let diff = tiny.diff("a", other, &[]);
        let stderr = String::from_utf8_lossy(&diff.stderr);
        assert!(stderr.contains("nothing in common") && stderr.contains("other models"), "{stderr}");
        assert_eq!(diff.status.code(), Some(1));
    }
    assert_eq!(tiny.diff("none", "none", &[]).status.code(), Some(1), "nothing was compared");
    let diff = tiny.diff("a", "shorter", &[]);
    let stderr = String::from_utf8_lossy(&diff.stderr);
    assert!(stderr.contains("0 of ") && stderr.contains("then the runs do different things"), "{stderr}");
}

#[test]
fn a_trace_in_place_of_an_older_one_says_so() {
    let tiny = Tiny::new();
    let told =
        |output: &Output| String::from_utf8_lossy(&output.stderr).contains("in place of an older trace");
    assert!(!told(&tiny.trace("a", &[])));
    assert!(told(&tiny.trace("a", &[])));
}
