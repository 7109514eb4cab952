//! The Hugging Face hub: files of a repository, kept in the cache that all its clients share.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::{Cache, Repo};
use serde::Deserialize;

use super::attempts::retried;
use super::client::{Ask, Client, Limits};
use super::download::Download;
use super::names::{is_commit, is_file_name, is_sha256};
use super::{AnswerFault, HubId, SourceError, reach};
use crate::env::Env;

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Attempts to learn what a repository holds: a hub that is silent twice is down.
const MAX_ATTEMPTS: u32 = 2;

/// A hub and the folder its files are kept in.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    endpoint: String,
    cache: Cache,
    token: Option<String>,
    is_offline: bool,
    has_proxy: bool,
    limits: Limits,
}

/// A repository at a commit, as the hub lists it.
struct Listing {
    commit: String,
    files: Vec<String>,
}

impl Hub {
    pub(super) fn new(env: &Env) -> Self {
        let cache = match (env.get("HF_HUB_CACHE"), env.get("HF_HOME"), env.get("HOME")) {
            (Some(folder), ..) => Cache::new(folder.into()),
            (None, Some(home), _) => Cache::new(Path::new(home).join("hub")),
            (None, None, home) => Cache::new(Path::new(home.unwrap_or(".")).join(".cache/huggingface/hub")),
        };
        let endpoint = env.get("HF_ENDPOINT").unwrap_or("https://huggingface.co");
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: env.get("HF_TOKEN").map(str::to_owned).or_else(|| cache.token()),
            is_offline: env.is_on("HF_HUB_OFFLINE"),
            has_proxy: ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"]
                .iter()
                .any(|name| env.get(name).is_some()),
            limits: limits(env),
            cache,
        }
    }

    /// The same hub with files kept elsewhere.
    pub(super) fn with_cache(self, folder: PathBuf) -> Self {
        Self { cache: Cache::new(folder), ..self }
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What the cache holds of a repository.
    pub(super) fn repo_folder(&self, repo: &str) -> PathBuf {
        self.cache.path().join(Repo::model(repo.to_owned()).folder_name())
    }

    pub(super) fn is_offline(&self) -> bool {
        self.is_offline
    }

    /// The folder of a repository's files, or its `.gguf` file: from the cache where it is whole, else fetched.
    pub(super) fn model(&self, id: &HubId) -> Result<PathBuf, SourceError> {
        if let Some(path) = self.cached(id) {
            return Ok(path);
        }
        if self.is_offline {
            let (what, cache) = (id.to_string(), self.cache.path().clone());
            return Err(SourceError::Offline { what, missing: self.missing(id), cache });
        }
        let client = self.connect(&id.to_string())?;
        // All files of one commit, even where the branch moves meanwhile.
        let Listing { commit, files } = retried(&self.limits, MAX_ATTEMPTS, || self.listing(&client, id))?;
        let path = Download::new(self, client, id.repo(), &commit).model(id, &files)?;
        self.remember(id, &commit).map_err(SourceError::io(self.cache.path()))?;
        Ok(path)
    }

    /// Asks for the commit that a revision stands for, and its files.
    fn listing(&self, client: &Client, id: &HubId) -> Result<Listing, SourceError> {
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let (what, repo, revision) = (id.to_string(), id.repo(), id.revision().replace('/', "%2F"));
        let url = format!("{}/api/models/{repo}/revision/{revision}", self.endpoint);
        let bytes = client.text(Ask { what: &what, repo, url: &url, range: None, head_only: false })?;
        let answer: Answer = serde_json::from_slice(&bytes)
            .map_err(|error| client.wrong(&what, AnswerFault::Listing { reason: error.to_string() }))?;
        if !is_commit(&answer.sha) {
            let given = answer.sha.escape_debug().take(100).collect();
            return Err(client.wrong(&what, AnswerFault::Commit { given }));
        }
        let names = answer.siblings.into_iter().map(|sibling| sibling.rfilename);
        let (files, strange): (Vec<_>, Vec<_>) = names.partition(|name| is_file_name(name));
        for name in strange.iter().take(5) {
            tracing::warn!(target: "quire::models", "{what} lists {name:?}, which is no name of a file: left out");
        }
        Ok(Listing { commit: answer.sha, files })
    }

    /// Notes the commit that a branch or tag stands for.
    fn remember(&self, id: &HubId, commit: &str) -> std::io::Result<()> {
        let path = self.repo_folder(id.repo()).join("refs").join(id.revision());
        fs::create_dir_all(path.parent().expect("a revision is in a folder"))?;
        fs::write(path, commit)
    }

    /// One file at a commit whose content is known: a hub that says that it has another content is not asked
    /// for it.
    pub(super) fn pinned_file(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        sha256: &str,
    ) -> Result<PathBuf, SourceError> {
        let what = format!("{repo}/{file}@{commit}");
        let download = Download::new(self, self.connect(&what)?, repo, commit);
        let given = download.metadata(file)?.etag.filter(|etag| is_sha256(etag));
        if let Some(given) = given.filter(|given| !given.eq_ignore_ascii_case(sha256)) {
            return Err(SourceError::WrongHash { what, given, expected: sha256.to_owned() });
        }
        download.file(file)
    }

    /// What the cache holds of a model, if that is all of it.
    fn cached(&self, id: &HubId) -> Option<PathBuf> {
        let folder = self.snapshot(id)?;
        if let Some(file) = id.file() {
            let is_whole = gguf_files(file).iter().all(|file| folder.join(file).is_file());
            return is_whole.then(|| folder.join(file));
        }
        if !folder.join("config.json").is_file() {
            return single_gguf(&folder);
        }
        weight_files(&folder)?.iter().all(|file| folder.join(file).is_file()).then_some(folder)
    }

    /// The first file that keeps what is cached of a model from being all of it.
    fn missing(&self, id: &HubId) -> Option<String> {
        let folder = self.snapshot(id).filter(|folder| folder.is_dir())?;
        let files = match id.file() {
            Some(file) => gguf_files(file),
            None => std::iter::once("config.json".to_owned()).chain(weight_files(&folder)?).collect(),
        };
        files.into_iter().find(|file| !folder.join(file).is_file())
    }

    /// The folder of a revision's files in the cache, as far as the revision is known there.
    fn snapshot(&self, id: &HubId) -> Option<PathBuf> {
        let folder = self.repo_folder(id.repo());
        let by_commit = folder.join("snapshots").join(id.revision());
        if by_commit.is_dir() {
            return Some(by_commit);
        }
        let commit = fs::read_to_string(folder.join("refs").join(id.revision())).ok()?;
        Some(commit.trim())
            .filter(|commit| is_commit(commit))
            .map(|commit| folder.join("snapshots").join(commit))
    }

    fn connect(&self, what: &str) -> Result<Client, SourceError> {
        let client = Client::new(&self.endpoint, self.token.as_deref(), self.limits);
        if !self.has_proxy {
            reach::check(&self.endpoint).map_err(|reason| client.failed(what, reason))?;
        }
        Ok(client)
    }
}

/// `HF_HUB_DOWNLOAD_TIMEOUT` is in seconds, as the hub's own client has it.
fn limits(env: &Env) -> Limits {
    let mut limits = Limits::default();
    let seconds = env.get("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok());
    if let Some(seconds) = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        // Times are added to it, and a clock has an end.
        limits.silence = seconds.clamp(Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
    }
    limits
}

/// The commit that a file or folder of the cache is of: its place is `snapshots/COMMIT`.
pub(super) fn commit_of(path: &Path) -> Option<String> {
    let mut parts = path.iter().skip_while(|part| *part != "snapshots").skip(1);
    Some(parts.next()?.to_str()?.to_owned())
}

/// The weight files of a folder: those that its index names, or the single one. `None` for an index that does
/// not say.
pub(super) fn weight_files(folder: &Path) -> Option<Vec<String>> {
    let Ok(index) = fs::read(folder.join(INDEX)) else { return Some(vec![SINGLE.to_owned()]) };
    let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
    let shards = index.get("weight_map")?.as_object()?.values();
    let mut names: Vec<_> = shards.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    names.iter().all(|name| is_file_name(name)).then_some(names)
}

/// The files of the model that a `.gguf` file is one of.
pub(super) fn gguf_files(file: &str) -> Vec<String> {
    let files = quire_models::gguf::files_of(Path::new(file)).into_iter();
    files.map(|file| file.to_string_lossy().into_owned()).collect()
}

/// The only model of a folder of `.gguf` files, in one file or several.
fn single_gguf(folder: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ggufs: Vec<String> = names.filter(|name| name.ends_with(".gguf")).collect();
    ggufs.sort();
    let first = ggufs.first()?;
    (gguf_files(first) == ggufs).then(|| folder.join(first))
}

#[cfg(test)]
mod tests;
