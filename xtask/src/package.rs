//! `package-gpu-tests`: the tests that need a GPU, as a folder for a machine that has one and no Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::{self, Program};
use crate::error::{Error, Result};
use crate::kernels;
use crate::process::{self, cargo, root};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder to make, which is emptied first; target/gpu-tests where not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// What the GPU there can run: the images lie in each test program, so all of them would be large
    #[arg(long, value_delimiter = ',', default_value = "sm_90a")]
    arch: Vec<String>,
}

/// What the folder may hold at most.
const MAX_BYTES: u64 = 60_000_000;
const RUN: &str = include_str!("package/run.sh");

/// Tests of other packages than the backend's own that need a GPU have names that begin so.
const GPU_TEST: &str = "cuda";

pub(crate) fn run(options: &Options) -> Result<()> {
    kernels::run(&kernels::Options::for_targets(&options.arch))?;
    let images = root().join("target/gpu-tests-kernels");
    kernels::copy_images(&options.arch, &images)?;
    let programs = artifacts::programs(build_command().env("QUIRE_CUDA_KERNELS", images))?;
    let programs: Vec<Program> = programs.into_iter().filter(needs_gpu).collect();
    let out = options.out.clone().unwrap_or_else(|| root().join("target/gpu-tests"));
    write(&out, &programs, &about(&options.arch))?;
    let bytes = folder_bytes(&out)?;
    println!(
        "{}: {} test programs, {:.1} MB; run it with `sh run.sh`",
        out.display(),
        programs.len(),
        bytes as f64 / 1e6
    );
    if bytes > MAX_BYTES {
        return Err(Error::TooLarge { path: out, bytes, max_bytes: MAX_BYTES });
    }
    Ok(())
}

/// The server is built only where it has such tests: that takes minutes.
fn build_command() -> Command {
    let mut command = cargo(["test", "--release", "--no-run", "-p", "quire-kernels-cuda"]);
    let server_tests = fs::read_dir(root().join("server/tests")).into_iter().flatten().flatten();
    let names = server_tests.filter_map(|entry| entry.file_name().into_string().ok());
    if names.into_iter().any(|name| name.starts_with(GPU_TEST)) {
        command.args(["-p", "quire-llm", "--features", "quire-llm/cuda"])
    } else {
        command.args(["--features", "cuda"])
    };
    command
}

fn needs_gpu(program: &Program) -> bool {
    let is_named = program.folder == "kernels-cuda" || program.name.starts_with(GPU_TEST);
    program.is_test && program.kind == "test" && is_named
}

fn about(arch: &[String]) -> String {
    let commit = process::output(&mut git(&["describe", "--always", "--dirty", "--abbrev=12"]));
    let commit = commit.unwrap_or_else(|_| "unknown\n".to_owned());
    format!("commit {}, release, kernels for {}\n", commit.trim(), arch.join(" "))
}

fn git(args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(args).current_dir(root());
    command
}

/// `run.sh`, `about.txt` and a stripped copy of each program under `tests`.
fn write(out: &Path, programs: &[Program], about: &str) -> Result<()> {
    remake(out)?;
    let tests = out.join("tests");
    fs::create_dir(&tests).map_err(Error::io(&tests))?;
    for program in programs {
        let name = format!("{}-{}", program.folder, program.name);
        process::run(Command::new("strip").arg("-o").arg(tests.join(name)).arg(&program.path))?;
    }
    for (name, text) in [("run.sh", RUN), ("about.txt", about)] {
        fs::write(out.join(name), text).map_err(Error::io(out))?;
    }
    Ok(())
}

/// Empties a folder that this command made; any other that holds something is left alone.
fn remake(out: &Path) -> Result<()> {
    let is_empty = fs::read_dir(out).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty && !out.join("about.txt").exists() {
        return Err(Error::NotOurs(out.to_owned()));
    }
    if out.exists() {
        fs::remove_dir_all(out).map_err(Error::io(out))?;
    }
    fs::create_dir_all(out).map_err(Error::io(out))
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(Error::io(folder))?.flatten() {
        let metadata = entry.metadata().map_err(Error::io(entry.path()))?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as `write` makes it, with scripts for programs.
    fn package(tests: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[], "commit abc\n").unwrap();
        for (name, text) in tests {
            let script = folder.path().join("script");
            fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
            // Another process writes the program: see the stand-in for nvcc.
            let place = folder.path().join("tests").join(name);
            let mut install = Command::new("install");
            assert!(install.args(["-m", "755"]).arg(&script).arg(place).status().unwrap().success());
        }
        folder
    }

    /// Runs the folder's script from elsewhere: exit code and output.
    fn run_package(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new("sh");
        command.arg(folder.join("run.sh")).args(args).current_dir("/").env_remove("QUIRE_TEST_CUDA");
        let output = command.env("QUIRE_TEST_SECONDS", "2").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    const PASSES: &str = "echo \"demanded: $QUIRE_TEST_CUDA\"\n\
        echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s'";
    const FAILS: &str = "echo 'test a ... ok'\necho 'test rows::are_equal ... FAILED'\n\
        echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out'; exit 101";

    #[test]
    fn all_that_pass_end_with_zero_and_a_gpu_is_demanded() {
        let folder = package(&[("kernels-cuda-a", PASSES), ("kernels-cuda-b", PASSES)]);
        let (code, text) = run_package(folder.path(), &[]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("commit abc") && text.contains("6 passed, 0 failed, 2 ignored"), "{text}");
        let log = fs::read_to_string(folder.path().join("logs/kernels-cuda-a.log")).unwrap();
        assert!(log.contains("demanded: 1"), "{log}");
    }

    #[test]
    fn a_failure_a_crash_a_hang_and_silence_are_told_and_the_rest_is_run() {
        let folder = package(&[
            ("a", FAILS),
            ("b", "kill -SEGV $$"),
            ("c", "sleep 30"),
            ("d", "exit 0"),
            ("e", PASSES),
        ]);
        let (code, text) = run_package(folder.path(), &[]);
        assert_eq!(code, Some(1), "{text}");
        for expected in
            ["rows::are_equal", "ended with 139", "no end after 2 s", "no result", "4 passed, 1 failed"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn an_argument_chooses_programs_and_the_rest_goes_to_them() {
        let folder =
            package(&[("kernels-cuda-norm", "echo \"got $*\"; exit 1"), ("kernels-cuda-rope", PASSES)]);
        assert_eq!(run_package(folder.path(), &["rope"]).0, Some(0));
        let (code, text) = run_package(folder.path(), &["norm", "--exact", "x"]);
        assert!(code == Some(1) && text.contains("got --test-threads=1 --nocapture --exact x"), "{text}");
        let (code, text) = run_package(folder.path(), &["nothing"]);
        assert!(code == Some(2) && text.contains("no test program"), "{text}");
    }

    #[test]
    fn a_folder_of_something_else_is_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "years").unwrap();
        assert!(matches!(write(folder.path(), &[], ""), Err(Error::NotOurs(_))));
        assert!(folder.path().join("thesis.tex").exists());
    }
}
