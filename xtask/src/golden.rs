//! `golden`: the reference outputs, from every form of the weights.

use std::path::PathBuf;
use std::process::Command;

use crate::cache;
use crate::error::{Error, Result};
use crate::fetch;
use crate::peer::LlamaCpp;
use crate::process::{self, cargo, root};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A peer whose distance to float32 is printed beside ours: `llama.cpp`
    #[arg(long)]
    against: Option<String>,
}

/// Runs the golden tests of both models in release, then those of the folders.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut tests = cargo(["test", "--release", "-p", "quire-llm", "--test", "golden", "--", "--nocapture"]);
    if let Some(peer) = &options.against {
        let peer = LlamaCpp::named(peer, &fetch::SMOLLM2.fetch()?)?;
        tests.env("QUIRE_TEST_LLAMA_CPP_LOGITS", peer.logits_program()?);
    }
    tests
        .env("QUIRE_TEST_SMOLLM2", fetch::SMOLLM2.fetch()?)
        .env("QUIRE_TEST_QWEN_CODER", fetch::QWEN_CODER.fetch()?);
    process::run(&mut tests)?;
    folders()
}

/// The same weights as a Hugging Face folder: one file, and several with an index.
pub(crate) fn folders() -> Result<()> {
    let python = python_with(&["gguf", "numpy"])?;
    for (name, shard_mb) in [("smollm2-hf", "0"), ("smollm2-hf-sharded", "100")] {
        let folder = cache::folder()?.join(name);
        if !folder.join("tokenizer_config.json").exists() {
            process::run(
                Command::new(&python)
                    .arg(root().join("tests/tools/gguf_to_hf.py"))
                    .arg("--gguf")
                    .arg(fetch::SMOLLM2.fetch()?)
                    .args(["--dtype", "f32", "--shard-mb", shard_mb, "--out"])
                    .arg(&folder),
            )?;
        }
        process::run(
            cargo(["test", "--release", "-p", "quire-llm", "--test", "golden", "folder"])
                .env("QUIRE_TEST_SMOLLM2_FOLDER", &folder),
        )?;
    }
    Ok(())
}

/// A Python with these packages, in a virtual environment under the cache folder.
pub(crate) fn python_with(packages: &[&str]) -> Result<PathBuf> {
    let venv = cache::folder()?.join("venv");
    let python = venv.join("bin").join("python3");
    if !python.exists() {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }

    if !python.exists() {
        return Err(Error::Io { path: python, source: std::io::ErrorKind::NotFound.into() });
    }
    process::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    Ok(python)
}
