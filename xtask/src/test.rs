//! `check` and `test`: what CI runs.

use std::process::Command;

use crate::cuda;
use crate::error::Result;
use crate::fetch;
use crate::process::{self, cargo, root};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also what takes long: the second model, the Hugging Face folders, many more random cases
    #[arg(long)]
    full: bool,
    /// Only what the features `cuda` and `otlp` add
    #[arg(long, conflicts_with = "full")]
    only_cuda: bool,
}

/// Formatting, lints and documentation, warnings denied.
pub(crate) fn check() -> Result<()> {
    process::run(&mut cargo(["fmt", "--all", "--check"]))?;
    process::run(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    process::run(cargo(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    cuda::check()
}

/// `check`, then every test of the workspace and the strangers' crates under `examples`, then what the features
/// `cuda` and `otlp` add.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.only_cuda {
        cuda::check()?;
        return cuda::test(&fetch::SMOLLM2.fetch()?);
    }
    check()?;
    let smollm2 = fetch::SMOLLM2.fetch()?;
    let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
    tests.env("QUIRE_TEST_SMOLLM2", &smollm2);
    if options.full {
        tests.env("QUIRE_TEST_QWEN_CODER", fetch::QWEN_CODER.fetch()?).env("PROPTEST_CASES", "2048");
    }
    process::run(&mut tests)?;
    examples()?;
    cuda::test(&smollm2)?;
    if options.full {
        crate::golden::folders()?;
    }
    Ok(())
}

/// The workspaces under `examples` are what a stranger would write: they are built and tested as such, with the
/// build folder of this one so that nothing is compiled twice.
fn examples() -> Result<()> {
    for example in example_manifests() {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["test", "--workspace", "--manifest-path"]).arg(example);
        process::run(command.env("CARGO_TARGET_DIR", root().join("target")).current_dir(root()))?;
    }
    Ok(())
}

fn example_manifests() -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(root().join("examples")).into_iter().flatten().flatten();
    let mut manifests: Vec<_> =
        entries.map(|entry| entry.path().join("Cargo.toml")).filter(|path| path.exists()).collect();
    manifests.sort();
    manifests
}
