use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use super::attempts::retried;
use super::client::{Ask, Client};
use super::hub::{Hub, INDEX, SINGLE, gguf_files, weight_files};
use super::names::{self, is_sha256};
use super::{HubId, SourceError, hash, transfer};

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
/// A folder of further chat templates.
const TEMPLATES: &str = "additional_chat_templates/";
pub(super) const MAX_ATTEMPTS: u32 = 4;
/// Weight files on their way at the same time: enough to fill a line that each alone does not.
const MAX_TRANSFERS: usize = 4;

/// Files of one commit on their way into the cache.
pub(super) struct Download {
    client: Client,
    /// `ORG/NAME`.
    repo: String,
    commit: String,
    /// Where the hub has the commit's files.
    url: String,
    /// The commit's files in the cache: links to their contents.
    snapshot: PathBuf,
    blobs: PathBuf,
}

/// What the hub says of a file before it sends it.
pub(super) struct Metadata {
    /// Without quotes.
    pub(super) etag: Option<String>,
    num_bytes: Option<u64>,
}

impl Download {
    /// `commit` is the id of one.
    pub(super) fn new(hub: &Hub, client: Client, repo: &str, commit: &str) -> Self {
        let folder = hub.repo_folder(repo);
        Self {
            client,
            repo: repo.to_owned(),
            commit: commit.to_owned(),
            url: format!("{}/{repo}/resolve/{commit}", hub.endpoint()),
            snapshot: folder.join("snapshots").join(commit),
            blobs: folder.join("blobs"),
        }
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
        let is_template = |file: &&String| file.starts_with(TEMPLATES) && file.ends_with(".jinja");
        let small = SMALL_FILES.iter().copied().filter(|file| has(file));
        for file in small.chain(files.iter().filter(is_template).map(String::as_str)) {
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
        retried(self.client.limits(), MAX_ATTEMPTS, || self.attempt(name))
    }

    fn attempt(&self, name: &str) -> Result<PathBuf, SourceError> {
        let path = self.snapshot.join(name);
        if path.is_file() {
            return Ok(path);
        }
        let metadata = self.metadata(name)?;
        let blob = self.blobs.join(names::of_blob(metadata.etag.as_deref(), &self.commit, name));
        fs::create_dir_all(&self.blobs).map_err(SourceError::io(&self.blobs))?;
        let _lock = lock(&blob, name)?;
        if !blob.is_file() {
            self.transfer(name, &metadata, &blob)?;
        }
        link(&blob, &path, name)?;
        Ok(path)
    }

    /// What the hub says of a file, which it does not send.
    pub(super) fn metadata(&self, name: &str) -> Result<Metadata, SourceError> {
        let (what, url) = (self.what(name), self.url_of(name));
        let ask = Ask { range: Some("bytes=0-0"), head_only: true, ..self.ask(&what, &url) };
        let head = self.client.get(ask)?.head;
        let header = |name: &str| head.get(name).and_then(|value| value.to_str().ok());
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let etag = etag.filter(|etag| !etag.is_empty());
        Ok(Metadata { etag, num_bytes: header("x-linked-size").and_then(|size| size.parse().ok()) })
    }

    /// A content gets its name only after its hash was checked, where the hub names one.
    fn transfer(&self, name: &str, metadata: &Metadata, blob: &Path) -> Result<(), SourceError> {
        let part = beside(blob, "part");
        let (what, url) = (self.what(name), self.url_of(name));
        transfer::fetch(&self.client, self.ask(&what, &url), metadata.num_bytes, &part)?;
        if let Some(sha256) = metadata.etag.as_ref().filter(|etag| is_sha256(etag)) {
            hash::expect(&part, &sha256.to_ascii_lowercase()).inspect_err(|_| {
                let _ = remove(&part);
            })?;
        }
        fs::rename(&part, blob).map_err(SourceError::io(blob))
    }

    fn ask<'b>(&'b self, what: &'b str, url: &'b str) -> Ask<'b> {
        Ask { what, repo: &self.repo, url, range: None, head_only: false }
    }

    fn what(&self, name: &str) -> String {
        format!("{}/{name}@{}", self.repo, self.commit)
    }

    fn url_of(&self, name: &str) -> String {
        format!("{}/{}", self.url, names::in_url(name))
    }
}

/// One process at a time fetches a content: the others wait for it.
fn lock(blob: &Path, name: &str) -> Result<File, SourceError> {
    let path = beside(blob, "lock");
    let file = File::create(&path).map_err(SourceError::io(&path))?;
    if file.try_lock().is_err() {
        tracing::info!(target: "quire::models", "another process is fetching {name}: waiting");
        file.lock().map_err(SourceError::io(&path))?;
    }
    Ok(file)
}

fn beside(blob: &Path, end: &str) -> PathBuf {
    let mut name = blob.to_owned().into_os_string();
    name.push(format!(".{end}"));
    name.into()
}

/// Gives a content its name among the files of a commit, by a link that holds wherever the cache is moved.
fn link(blob: &Path, path: &Path, name: &str) -> Result<(), SourceError> {
    let folder = path.parent().expect("a file of a commit is in a folder");
    fs::create_dir_all(folder).map_err(SourceError::io(folder))?;
    let up = "../".repeat(2 + name.matches('/').count());
    let content = blob.file_name().expect("a content has a name").to_string_lossy();
    let target = format!("{up}blobs/{content}");
    if path.is_symlink() {
        remove(path)?;
    }
    match std::os::unix::fs::symlink(target, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(SourceError::io(path)(error)),
        _ => Ok(()),
    }
}

pub(super) fn remove(path: &Path) -> Result<(), SourceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SourceError::io(path)(error)),
        _ => Ok(()),
    }
}
