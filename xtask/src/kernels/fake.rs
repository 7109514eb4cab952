//! A stand-in for nvcc that tests run: a shell script that writes what it was told into its output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with `bin/nvcc`.
///
/// The script sleeps for a moment, notes the beginning and the end of each call in `calls`, fails where the source
/// holds `#error`, writes nothing where it holds `#nothing`, and prints the lines of the source that begin with
/// `//log `.
pub(crate) struct FakeNvcc {
    folder: tempfile::TempDir,
}

const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$(dirname "$0")")
case "$1" in --version) echo "Cuda compilation tools, release VERSION, VVERSION.1"; exit 0 ;; esac
all="$*"
while [ $# -gt 0 ]; do case "$1" in -o) out=$2; shift ;; *.cu) source=$1 ;; esac; shift; done
echo "begin $all" >> "$here/calls"
printf 'half' > "$out"
sleep 0.1
sed -n 's,^//log ,,p' "$source" >&2
if grep -q '#error' "$source"; then echo "$source(1): error: told to fail" >&2; exit 2; fi
if grep -q '#nothing' "$source"; then rm "$out"; exit 0; fi
{ echo "image of $all"; cat "$source"; } > "$out"
echo "end" >> "$here/calls"
"#;

impl FakeNvcc {
    pub(crate) fn new(release: &str) -> Self {
        Self::of_script(&SCRIPT.replace("VERSION", release))
    }

    /// One that cannot even tell its version.
    pub(crate) fn failing(message: &str) -> Self {
        Self::of_script(&format!("#!/bin/sh\necho '{message}' >&2\nexit 1\n"))
    }

    fn of_script(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        let text = folder.path().join("script");
        fs::write(&text, script).unwrap();
        let fake = Self { folder };
        // Another process writes the program: were it this one, a thread that starts a process meanwhile would hand
        // it the open file, and running the program would fail with `text file busy`.
        let status = Command::new("install").args(["-m", "755"]).arg(text).arg(fake.nvcc()).status().unwrap();
        assert!(status.success());
        fake
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn nvcc(&self) -> PathBuf {
        self.root().join("bin/nvcc")
    }

    /// `begin ARGUMENTS` and `end`, in the order that they were written.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.root().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How many compilations were begun.
    pub(crate) fn num_calls(&self) -> usize {
        self.calls().iter().filter(|line| line.starts_with("begin")).count()
    }
}
