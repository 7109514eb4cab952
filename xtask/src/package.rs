//! `package-gpu-tests`: the tests that need a GPU, as a folder for a machine that has one and no Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::{self, Program};
use crate::error::{Error, Result};
use crate::kernels;
use crate::print::out;
use crate::process::{self, cargo, root};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder to make, which is emptied first; target/gpu-tests where not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// What the GPU there can run: the images lie in each test program
    #[arg(long, value_delimiter = ',', default_value = "sm_90a")]
    arch: Vec<String>,
    /// Only the backend's own tests, without those of whole models
    #[arg(long)]
    backend_only: bool,
    /// Of which of cargo's profiles the programs are
    #[arg(long, default_value = "release")]
    profile: String,
}

/// What the folder may hold at most.
const MAX_BYTES: u64 = 60_000_000;
const RUN: &str = include_str!("package/run.sh");

/// The programs with tests that need a GPU: the package's folder, the target (any, where empty), and what the names
/// of the tests begin with or hold.
const GPU_TESTS: [(&str, &str, &str); 4] = [
    ("kernels-cuda", "", ""),
    ("server", "golden", "cuda::"),
    ("server", "batching", "on_a_gpu"),
    ("server", "lost", ""),
];

/// A program of the folder.
struct Entry {
    name: String,
    path: PathBuf,
    filter: &'static str,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let out = options.out.clone().unwrap_or_else(|| root().join("target/gpu-tests"));
    check_ours(&out)?;
    kernels::run(&kernels::Options::for_targets(&options.arch))?;
    let images = root().join("target/gpu-tests-kernels");
    kernels::copy_images(&options.arch, &images)?;
    let mut build = cargo(["test", "--profile", &options.profile, "--no-run", "-p", "quire-kernels-cuda"]);
    build.env("QUIRE_CUDA_KERNELS", images);
    match options.backend_only {
        true => build.args(["--features", "cuda"]),
        false => build.args(["-p", "quire-llm", "--features", "quire-llm/cuda"]),
    };
    let built = artifacts::programs(&mut build)?;
    let entries: Vec<Entry> = built.iter().filter_map(entry).collect();
    let quire = built.iter().find(|program| is_quire(program)).map(|program| program.path.as_path());
    write(&out, &entries, quire, &about(&options.profile, &options.arch))?;
    let bytes = folder_bytes(&out)?;
    out!(
        "{}: {} programs, {:.1} MB; run it with `sh run.sh`",
        out.display(),
        entries.len(),
        bytes as f64 / 1e6
    );
    if bytes > MAX_BYTES {
        return Err(Error::TooLarge { path: out, bytes, max_bytes: MAX_BYTES });
    }
    Ok(())
}

fn entry(program: &Program) -> Option<Entry> {
    let is_meant = |(folder, target, _): &&(&str, &str, &str)| {
        program.folder == *folder && (target.is_empty() || program.name == *target)
    };
    let (_, _, filter) = GPU_TESTS.iter().find(is_meant)?;
    let target = if program.kind == "lib" { "unit" } else { &program.name };
    let name = format!("{}-{target}", program.folder);
    program.is_test.then(|| Entry { name, path: program.path.clone(), filter })
}

/// The program itself, for measurements beside the tests.
fn is_quire(program: &Program) -> bool {
    program.folder == "server" && program.kind == "bin" && !program.is_test
}

fn about(profile: &str, arch: &[String]) -> String {
    let commit = process::output(&mut git(&["describe", "--always", "--dirty", "--abbrev=12"]));
    let commit = commit.unwrap_or_else(|_| "unknown\n".to_owned());
    format!("commit {}, {profile}, kernels for {}\n", commit.trim(), arch.join(" "))
}

fn git(args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(args).current_dir(root());
    command
}

/// Makes the folder beside its place, which it takes when it is whole. A fault leaves what was there before.
fn write(out: &Path, entries: &[Entry], quire: Option<&Path>, about: &str) -> Result<()> {
    check_ours(out)?;
    let name = out.file_name().ok_or_else(|| Error::NotOurs(out.to_owned()))?;
    let partial = out.with_file_name(format!("{}.partial", name.to_string_lossy()));
    check_ours(&partial)?;
    remove(&partial)?;
    let filled = fill(&partial, entries, quire, about).and_then(|()| remove(out));
    match filled.and_then(|()| fs::rename(&partial, out).map_err(Error::io(out))) {
        Ok(()) => Ok(()),
        Err(error) => {
            // The fault that is told is the first.
            let _ = remove(&partial);
            Err(error)
        }
    }
}

/// `run.sh`, `about.txt`, the reference files, `programs.txt` (a name and a filter of tests a line), and a stripped
/// copy of each program under `tests`, compressed: each holds the kernels, which shrink to a tenth.
fn fill(out: &Path, entries: &[Entry], quire: Option<&Path>, about: &str) -> Result<()> {
    let tests = out.join("tests");
    fs::create_dir_all(&tests).map_err(Error::io(&tests))?;
    // First, so that what an interrupted call leaves is known as ours.
    fs::write(out.join("about.txt"), about).map_err(Error::io(out))?;
    for entry in entries {
        pack(&entry.path, &tests.join(&entry.name))?;
    }
    let programs: String = entries.iter().map(|entry| format!("{} {}\n", entry.name, entry.filter)).collect();
    for (name, text) in [("run.sh", RUN), ("programs.txt", &programs)] {
        fs::write(out.join(name), text).map_err(Error::io(out))?;
    }
    if let Some(quire) = quire {
        pack(quire, &out.join("quire"))?;
    }
    copy_folder(&root().join("tests/golden"), &out.join("golden"))
}

/// A stripped copy, compressed.
fn pack(program: &Path, to: &Path) -> Result<()> {
    process::run(Command::new("strip").arg("-o").arg(to).arg(program))?;
    process::run(Command::new("gzip").arg("-f").arg(to))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).map_err(Error::io(to))?;
    for entry in fs::read_dir(from).map_err(Error::io(from))?.flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy_folder(&from, &to)?,
            false => fs::copy(&from, &to).map(drop).map_err(Error::io(&from))?,
        }
    }
    Ok(())
}

/// Fails where something else than a folder of this command lies, which is left alone.
fn check_ours(out: &Path) -> Result<()> {
    if out.exists() && !out.is_dir() {
        return Err(Error::NotOurs(out.to_owned()));
    }
    let is_empty = fs::read_dir(out).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty && !out.join("about.txt").exists() {
        return Err(Error::NotOurs(out.to_owned()));
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::io(folder))?;
    }
    Ok(())
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
        write(folder.path(), &[], None, "commit abc\n").unwrap();
        for (name, text) in tests {
            let script = folder.path().join("script");
            fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
            // Another process writes the program: see the stand-in for nvcc.
            let place = folder.path().join("tests").join(name);
            let mut install = Command::new("install");
            assert!(install.args(["-m", "755"]).arg(&script).arg(&place).status().unwrap().success());
            assert!(Command::new("gzip").arg(place).status().unwrap().success());
        }
        let programs: String = tests.iter().map(|(name, _)| format!("{name} cuda::\n")).collect();
        fs::write(folder.path().join("programs.txt"), programs).unwrap();
        folder
    }

    /// Runs the folder's script from elsewhere: exit code and output.
    fn run_package(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
        run_with("1", folder, args)
    }

    /// The same; `anyway` is whether a GPU is looked for (0).
    fn run_with(anyway: &str, folder: &Path, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new("sh");
        command.arg(folder.join("run.sh")).args(args).current_dir("/").env_remove("QUIRE_TEST_CUDA");
        command.env("QUIRE_TEST_ANYWAY", anyway).env_remove("LD_LIBRARY_PATH");
        let output = command.env("QUIRE_TEST_SECONDS", "3").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    const PASSES: &str = "echo \"demanded: $QUIRE_TEST_CUDA $*\"\n\
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
        assert!(log.contains("demanded: 1 cuda:: --test-threads=1 --nocapture"), "{log}");
    }

    #[test]
    fn a_machine_without_a_driver_is_told_so_before_any_program_is_run() {
        let folder = package(&[("a", PASSES)]);
        let libraries = tempfile::tempdir().unwrap();
        fs::write(libraries.path().join("libcuda.so.1"), "").unwrap();
        let run = |folders: &str| {
            let mut command = Command::new("sh");
            command.arg(folder.path().join("run.sh")).env("QUIRE_CUDA_LIBRARIES", folders);
            let output =
                command.env_remove("QUIRE_TEST_ANYWAY").env_remove("LD_LIBRARY_PATH").output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let with = run(&format!("/nowhere:{}", libraries.path().display()));
        assert!(with.0 == Some(0) && with.1.contains("3 passed"), "{with:?}");
        let (code, text) = run("/nowhere");
        if Path::new("/dev/nvidiactl").exists() {
            assert_eq!(code, Some(0), "{text}");
            return;
        }
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("no NVIDIA driver") && text.contains("QUIRE_TEST_ANYWAY=1"), "{text}");
        assert!(!text.contains("passed"), "{text}");
        assert_eq!(run_with("0", folder.path(), &[]).0, Some(2));
        assert_eq!(run_with("1", folder.path(), &[]).0, Some(0));
    }

    #[test]
    fn a_folder_that_could_not_be_made_is_as_it_was_and_nothing_lies_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("gpu-tests");
        let broken = || [Entry { name: "a".to_owned(), path: "/nowhere/a".into(), filter: "" }];
        let names = || {
            let entries = fs::read_dir(place.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        assert!(write(&out, &broken(), None, "new\n").is_err());
        assert!(names().is_empty(), "{:?}", names());
        write(&out, &[], None, "old\n").unwrap();
        assert!(write(&out, &broken(), None, "new\n").is_err());
        assert_eq!(names(), ["gpu-tests"]);
        assert_eq!(fs::read_to_string(out.join("about.txt")).unwrap(), "old\n");
        assert!(out.join("run.sh").exists());
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
            ["rows::are_equal", "ended with 139", "no end after 3 s", "no test ran", "4 passed, 1 failed"]
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
        assert!(code == Some(1) && text.contains("got --exact x --test-threads=1 --nocapture"), "{text}");
        let (code, text) = run_package(folder.path(), &["nothing"]);
        assert!(code == Some(2) && text.contains("no test program"), "{text}");
    }

    #[test]
    fn the_programs_are_those_with_tests_on_a_gpu() {
        let name = |folder: &str, name: &str, kind: &str, is_test| {
            let (folder, name, kind) = (folder.to_owned(), name.to_owned(), kind.to_owned());
            entry(&Program { folder, name, kind, is_test, path: "p".into() })
                .map(|entry| (entry.name, entry.filter))
        };
        let some = |name: &str, filter| Some((name.to_owned(), filter));
        assert_eq!(name("kernels-cuda", "quire_kernels_cuda", "lib", true), some("kernels-cuda-unit", ""));
        assert_eq!(name("kernels-cuda", "lost", "test", true), some("kernels-cuda-lost", ""));
        assert_eq!(name("server", "golden", "test", true), some("server-golden", "cuda::"));
        assert_eq!(name("server", "cli", "test", true), None);
        assert_eq!(name("server", "lost", "test", true), some("server-lost", ""));
        assert_eq!(name("server", "quire", "bin", false), None);
        let quire = |kind: &str, is_test| Program {
            folder: "server".to_owned(),
            name: "quire".to_owned(),
            kind: kind.to_owned(),
            is_test,
            path: "p".into(),
        };
        assert!(is_quire(&quire("bin", false)) && !is_quire(&quire("bin", true)));
        assert!(!is_quire(&quire("lib", false)));
    }

    #[test]
    fn a_folder_of_something_else_is_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "years").unwrap();
        assert!(matches!(write(folder.path(), &[], None, ""), Err(Error::NotOurs(_))));
        assert!(folder.path().join("thesis.tex").exists());
    }
}
