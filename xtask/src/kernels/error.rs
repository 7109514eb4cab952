//! What keeps kernels from being built; each message ends with what to do.

use std::path::PathBuf;
use std::process::ExitStatus;

use super::target::{Release, TARGETS};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "unknown target `{given}`{}; known are all, {}",
        meant.map_or(String::new(), |name| format!(": write {name}")),
        TARGETS.map(|target| target.name).join(", ")
    )]
    UnknownTarget { given: String, meant: Option<&'static str> },
    #[error(
        "no CUDA toolkit found: neither CUDA_HOME nor CUDA_PATH is set, and there is no nvcc in PATH nor in \
         {default}; `cargo xtask build-kernels --toolkit pip` brings one (105 MB, by the installed pip)"
    )]
    NoToolkit { default: PathBuf },
    #[error(
        "{source_name} holds no CUDA toolkit: {} is not there; correct it, or use `--toolkit pip`",
        nvcc.display()
    )]
    NoNvcc { source_name: String, nvcc: PathBuf },
    #[error("{} cannot be run ({source}); reinstall the toolkit, or use `--toolkit pip`", nvcc.display())]
    BrokenNvcc { nvcc: PathBuf, source: std::io::Error },
    #[error(
        "{} --version ended with {status} and said: {}; reinstall the toolkit, or use `--toolkit pip`",
        nvcc.display(),
        if stderr.is_empty() { "nothing" } else { stderr }
    )]
    FailingNvcc { nvcc: PathBuf, status: ExitStatus, stderr: String },
    #[error("{} --version says no release, but `{output}`; use another toolkit: `--toolkit pip`", nvcc.display())]
    UnknownNvcc { nvcc: PathBuf, output: String },
    #[error(
        "nvcc {given} knows no {target}, which came with {needed}; use a newer toolkit (`--toolkit pip`), or \
         leave the target out: --arch {rest}"
    )]
    OldNvcc { given: Release, target: &'static str, needed: Release, rest: String },
    #[error("nvcc needs a C++ compiler, and there is no {0}; install g++, or name one in NVCC_CCBIN")]
    NoHostCompiler(String),
    #[error("{} holds no .cu file", .0.display())]
    NoFamily(PathBuf),
    #[error("{}: a family's name may hold a-z, 0-9 and _ alone; rename the file", .0.display())]
    FamilyName(PathBuf),
    #[error(
        "the pinned toolkit of `--toolkit pip` is for Linux on x86-64; install CUDA 13.0 and set CUDA_HOME"
    )]
    NoPinnedToolkit,
    #[error(
        "the toolkit cannot be brought: {source}; that needs python3 with pip and a network, or a mirror that pip is \
         configured for; without them install CUDA 12.8 or newer and name it by CUDA_HOME or `--toolkit PATH`"
    )]
    NoPip { source: Box<crate::error::Error> },
    #[error(
        "the images cannot be put into {} ({source}); name a folder that can be written: --out FOLDER",
        folder.display()
    )]
    Out { folder: PathBuf, source: std::io::Error },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: "))]
    Faults(Vec<Error>),
    #[error("not built: {}; the messages of nvcc are above", .0.join(", "))]
    Failed(Vec<String>),
    #[error("hot kernels that must not spill do: {}", .0.join(", "))]
    Spills(Vec<String>),
    #[error(
        "{family}.cu marks `{pattern}` as hot, and none of its images has such a kernel; correct the marker"
    )]
    NoHotKernel { family: String, pattern: String },
    #[error("{}: no compiler log, so nothing to verify; delete the file and build again", .0.display())]
    NoLog(PathBuf),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
