//! What CI checks of the features `cuda` and `otlp`, on a machine that has neither a GPU nor CUDA.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::artifacts::{self, Program};
use crate::error::{Error, Result};
use crate::kernels;
use crate::print::note;
use crate::process::{self, cargo};

/// Adds the features to commands for the whole workspace, both at once: the server is built a second time for them, and not a
/// third. Only two packages differ by them, so what the same command without them has built is built once.
const FEATURES: [&str; 2] = ["--features", "quire-llm/cuda,quire-llm/otlp"];

/// Targets that CI compiles the kernels for: the oldest, and the one with code of its own.
const TARGETS: [&str; 2] = ["sm_80", "sm_90a"];

/// Lints and documentation of what the features add.
pub(crate) fn check() -> Result<()> {
    process::run(
        cargo(["clippy", "--workspace", "--all-targets"]).args(FEATURES).args(["--", "-D", "warnings"]),
    )?;
    process::run(cargo(["doc", "--workspace", "--no-deps"]).args(FEATURES).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Compiles the kernels, runs the tests that need no GPU, and starts the program. `model` is any model file.
pub(crate) fn test(model: &Path) -> Result<()> {
    kernels::run(&kernels::Options::for_targets(&TARGETS).verify())?;
    let built = artifacts::programs(cargo(["test", "--workspace", "--no-run"]).args(FEATURES))?;
    for program in built.iter().filter(|program| is_affected(program)) {
        process::run(Command::new(&program.path).current_dir(process::root().join(&program.folder)))?;
    }
    let quire =
        built.iter().find(|program| program.name == "quire" && program.kind == "bin" && !program.is_test);
    let quire = quire.ok_or_else(|| Error::NotBuilt("the program quire".to_owned()))?;
    starts_without_cuda(&quire.path, model)
}

/// Tests that come out otherwise by the features: those of the backend, and of the crate that names it and has the other one.
/// The golden tests run on the CPU whatever is built in.
fn is_affected(program: &Program) -> bool {
    let by_name = match program.folder.as_str() {
        "kernels-cuda" => true,
        "server" => matches!(program.kind.as_str(), "lib" | "bin") || program.name == "cli",
        _ => false,
    };
    program.is_test && by_name
}

/// The program starts where no CUDA library is, and says what is missing when it is asked for.
fn starts_without_cuda(quire: &Path, model: &Path) -> Result<()> {
    let version = process::output(Command::new(quire).arg("--version"))?;
    expect("quire --version", &version, "quire ")?;
    let libraries = process::output(Command::new("ldd").arg(quire))?;
    for name in ["libcuda", "libcublas", "libcudart", "libnccl"] {
        if libraries.contains(name) {
            return Err(Error::Linked { library: name, libraries });
        }
    }
    if Path::new("/dev/nvidiactl").exists() {
        note!("this machine has a GPU: what `--device cuda` says without one is not tried");
        return Ok(());
    }
    let mut generate = Command::new(quire);
    generate.arg("generate").arg(model).args(["--prompt", "a", "--max-tokens", "1", "--device", "cuda"]);
    let output = generate.stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Start { program: "quire".to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stderr);
    expect("quire generate --device cuda", &text, "libcuda.so.1")?;
    expect(
        "quire generate --device cuda",
        &format!("exit code {:?}", output.status.code()),
        "exit code Some(2)",
    )
}

fn expect(command: &'static str, output: &str, part: &'static str) -> Result<()> {
    if output.contains(part) {
        return Ok(());
    }
    Err(Error::Unexpected { command, part, output: output.to_owned() })
}
