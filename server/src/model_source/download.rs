use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use hf_hub::api::sync::{Api, ApiError, ApiRepo, Metadata};
use hf_hub::{Repo, RepoType};

use super::hub::{Hub, INDEX, SINGLE, gguf_files, weight_files};
use super::progress::TransferBar;
use super::{HubId, SourceError, hash};

/// Files that are fetched where a repository has them. Weights come after these, so a cached repository whose
/// weights are whole is whole.
const SMALL_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
pub(super) const MAX_ATTEMPTS: usize = 4;
/// Weight files on their way at the same time: enough to fill a line that each alone does not.
const MAX_TRANSFERS: usize = 4;

/// Files of one commit on their way into the cache.
pub(super) struct Download<'a> {
    hub: &'a Hub,
    api: Api,
    repo: ApiRepo,
    /// `ORG/NAME`.
    name: String,
    /// The commit's files in the cache.
    snapshot: PathBuf,
    blobs: PathBuf,
}

impl<'a> Download<'a> {
    pub(super) fn new(hub: &'a Hub, api: Api, repo: &str, commit: &str) -> Self {
        let name = repo.to_owned();
        let repo = Repo::with_revision(name.clone(), RepoType::Model, commit.to_owned());
        let blobs = hub.cache().path().join(repo.folder_name()).join("blobs");
        let snapshot = hub.cache().repo(repo.clone()).pointer_path(commit);
        Self { hub, repo: api.repo(repo), name, api, snapshot, blobs }
    }

    pub(super) fn model(&self, id: &HubId, files: &[String]) -> Result<PathBuf, SourceError> {
        let has = |name: &str| files.iter().any(|file| file == name);
        if let Some(file) = id.file() {
            self.files(&gguf_files(file))?;
            return Ok(self.snapshot.join(file));
        }
        let is_pickled = |file: &String| file.starts_with("pytorch_model") && file.ends_with(".bin");
        if !has(SINGLE) && !has(INDEX) && files.iter().any(is_pickled) {
            return Err(SourceError::PickledWeights { repo: id.to_string() });
        }
        if !has(SINGLE) && !has(INDEX) {
            return self.single_gguf(id, files);
        }
        for file in ["config.json", "tokenizer.json"] {
            if !has(file) {
                return Err(SourceError::MissingFile { repo: id.to_string(), file });
            }
        }
        for file in SMALL_FILES.iter().filter(|file| has(file)) {
            self.file(file)?;
        }
        self.file(if has(INDEX) { INDEX } else { SINGLE })?;
        let shards =
            weight_files(&self.snapshot).ok_or_else(|| SourceError::BadIndex { repo: id.to_string() })?;
        self.files(&shards)?;
        Ok(self.snapshot.clone())
    }

    /// Several files at a time. After an error no further one is begun.
    fn files(&self, names: &[String]) -> Result<(), SourceError> {
        const CANNOT_PANIC: &str = "nothing panics while it holds the lock";
        // The names that are left, and the first error.
        let state = Mutex::new((names.iter(), None));
        let next = || {
            let (names, failed) = &mut *state.lock().expect(CANNOT_PANIC);
            if failed.is_some() { None } else { names.next() }
        };
        thread::scope(|scope| {
            for _ in 0..MAX_TRANSFERS.min(names.len()) {
                scope.spawn(|| {
                    while let Some(name) = next() {
                        if let Err(error) = self.file(name) {
                            state.lock().expect(CANNOT_PANIC).1.get_or_insert(error);
                        }
                    }
                });
            }
        });
        let (_, failed) = state.into_inner().expect(CANNOT_PANIC);
        failed.map_or(Ok(()), Err)
    }

    fn single_gguf(&self, id: &HubId, files: &[String]) -> Result<PathBuf, SourceError> {
        let mut ggufs: Vec<_> = files.iter().filter(|file| file.ends_with(".gguf")).cloned().collect();
        ggufs.sort();
        match ggufs.first() {
            Some(first) if gguf_files(first) == ggufs => {
                self.files(&ggufs)?;
                Ok(self.snapshot.join(first))
            }
            _ => Err(SourceError::NothingToLoad { repo: id.to_string(), ggufs }),
        }
    }

    /// One file, from the cache where it is there. A transfer that breaks off goes on where it stopped, and a
    /// file that came out wrong is fetched anew.
    pub(super) fn file(&self, name: &str) -> Result<PathBuf, SourceError> {
        let mut attempt = 1;
        loop {
            match self.attempt(name) {
                Err(error) if attempt < MAX_ATTEMPTS && !matches!(error, SourceError::HubDenied { .. }) => {
                    tracing::warn!(target: "quire::models", "attempt {attempt} of {MAX_ATTEMPTS}: {error}");
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn attempt(&self, name: &str) -> Result<PathBuf, SourceError> {
        let path = self.snapshot.join(name);
        if path.is_file() {
            return Ok(path);
        }
        let metadata = self.metadata(name)?;
        loop {
            match self.repo.download_with_progress(name, TransferBar::default()) {
                Ok(path) => return self.checked(path, &metadata),
                Err(ApiError::LockAcquisition(_)) if path.is_file() => return Ok(path),
                Err(ApiError::LockAcquisition(_)) => {
                    tracing::info!(target: "quire::models", "another process is fetching {name}: waiting");
                }
                Err(error) => {
                    if matches!(error, ApiError::InvalidResume) {
                        remove(&self.blobs.join(metadata.etag()).with_extension("part"))?;
                    }
                    return Err(self.denied(name, error));
                }
            }
        }
    }

    pub(super) fn metadata(&self, name: &str) -> Result<Metadata, SourceError> {
        self.api.metadata(&self.repo.url(name)).map_err(|error| self.denied(name, error))
    }

    fn denied(&self, name: &str, error: ApiError) -> SourceError {
        let url = self.repo.url(name);
        self.hub.explain(url.clone(), &self.name, &url, error)
    }

    /// A server may have ignored the range asked for, or a part file may stem from elsewhere: compares the size
    /// and, where the hub names it, the hash.
    fn checked(&self, path: PathBuf, metadata: &Metadata) -> Result<PathBuf, SourceError> {
        let Err(error) = self.check(&path, metadata) else { return Ok(path) };
        remove(&path)?;
        remove(&self.blobs.join(metadata.etag()))?;
        Err(error)
    }

    fn check(&self, path: &Path, metadata: &Metadata) -> Result<(), SourceError> {
        let what = path.display().to_string();
        let (given, announced) =
            (fs::metadata(path).map_err(SourceError::io(path))?.len(), metadata.size() as u64);
        if given != announced {
            return Err(self.hub.failed(&what, format!("{given} bytes came, {announced} were announced")));
        }
        if is_sha256(metadata.etag()) {
            return hash::expect(path, metadata.etag());
        }
        Ok(())
    }
}

/// The hub's ETag of a large file is its SHA-256; of a small one it is the 40 digits of a git object.
pub(super) fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(super) fn remove(path: &Path) -> Result<(), SourceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(SourceError::io(path)(error)),
        _ => Ok(()),
    }
}
