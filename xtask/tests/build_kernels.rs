//! `build-kernels` as a program: what it prints, and what it does when nobody reads that.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

const NVCC: &str = "#!/bin/sh
case \"$1\" in --version) echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit 0 ;; esac
while [ $# -gt 0 ]; do case \"$1\" in -o) out=$2; shift ;; esac; shift; done
echo image > \"$out\"
";

/// A folder with a toolkit and one family.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for folder in ["bin", "cuda"] {
        fs::create_dir(place.path().join(folder)).unwrap();
    }
    fs::write(place.path().join("cuda/norm.cu"), "").unwrap();
    fs::write(place.path().join("script"), NVCC).unwrap();
    // Another process writes the program: see the stand-in for nvcc.
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(place.path().join("script")).arg(place.path().join("bin/nvcc"));
    assert!(install.status().unwrap().success());
    place
}

fn build_kernels(place: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["build-kernels", "--toolkit"]).arg(place).arg("--source").arg(place.join("cuda"));
    command.arg("--out").arg(place.join("out")).stdin(Stdio::null());
    command
}

#[test]
fn a_reader_that_is_gone_does_not_end_the_work() {
    let place = place();
    for (args, num_images) in [(&["--dry-run"][..], 0), (&["--arch", "sm_80,sm_90a"], 2)] {
        let mut command = build_kernels(place.path());
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Before the program has asked nvcc for its version, hence before it prints.
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(child.wait().unwrap().success() && !stderr.contains("panicked"), "{stderr}");
        let names = fs::read_dir(place.path().join("out")).unwrap().map(|entry| entry.unwrap().file_name());
        let images = names.filter(|name| name.to_string_lossy().ends_with(".cubin")).count();
        assert_eq!(images, num_images);
    }
}

#[test]
fn a_second_call_says_that_it_waits_and_for_what() {
    let place = place();
    let lock = place.path().join("out/lock");
    fs::create_dir(place.path().join("out")).unwrap();
    let held = File::create(&lock).unwrap();
    held.lock().unwrap();
    let mut child = build_kernels(place.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Without the word the program would wait, and this too: so the lock is given up after a while.
    let releasing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        drop(held);
    });
    let waits = lines.by_ref().find(|line| line.contains("waiting"));
    let waits = waits.expect("it says that it waits");
    assert!(waits.contains(&lock.display().to_string()), "{waits}");
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
    releasing.join().unwrap();
}

#[test]
fn no_compilers_at_once_are_refused() {
    let output = build_kernels(Path::new("/nowhere")).args(["--jobs", "0"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--jobs") && text.contains("0 is not in"), "{text}");
}
