//! The Hugging Face hub: files of a repository, kept in the cache that all its clients share.

use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::download::{Download, is_sha256};
use super::{Denial, HubId, SourceError, reach};
use crate::env::Env;

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// A hub and the folder its files are kept in.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    endpoint: String,
    cache: Cache,
    token: Option<String>,
    is_offline: bool,
    has_proxy: bool,
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
            cache,
        }
    }

    /// The same hub with files kept elsewhere.
    pub(super) fn with_cache(self, folder: PathBuf) -> Self {
        Self { cache: Cache::new(folder), ..self }
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
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
        let api = self.connect(&id.to_string())?;
        let branch = Repo::with_revision(id.repo().to_owned(), RepoType::Model, id.revision().to_owned());
        let info = api.repo(branch.clone()).info().map_err(|error| {
            let url = format!("{}/api/{}", self.endpoint, branch.api_url());
            self.explain(id.to_string(), id.repo(), &url, error)
        })?;
        // All files of one commit, even where the branch moves meanwhile.
        let files: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        let path = Download::new(self, api, id.repo(), &info.sha).model(id, &files)?;
        self.cache.repo(branch).create_ref(&info.sha).map_err(SourceError::io(self.cache.path()))?;
        Ok(path)
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
        let api = self.connect(&what)?;
        let download = Download::new(self, api, repo, commit);
        let metadata = download.metadata(file)?;
        if is_sha256(metadata.etag()) && metadata.etag() != sha256 {
            let (given, expected) = (metadata.etag().to_owned(), sha256.to_owned());
            return Err(SourceError::WrongHash { what, given, expected });
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
        let repo = Repo::with_revision(id.repo().to_owned(), RepoType::Model, id.revision().to_owned());
        let repo = self.cache.repo(repo);
        let by_commit = repo.pointer_path(id.revision());
        if by_commit.is_dir() {
            return Some(by_commit);
        }
        let refs = self.cache.path().join(Repo::model(id.repo().to_owned()).folder_name()).join("refs");
        Some(repo.pointer_path(fs::read_to_string(refs.join(id.revision())).ok()?.trim()))
    }

    fn connect(&self, what: &str) -> Result<Api, SourceError> {
        if !self.has_proxy {
            reach::check(&self.endpoint).map_err(|reason| self.failed(what, reason))?;
        }
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false);
        api.build().map_err(|error| self.failed(what, error.to_string()))
    }

    /// What a request for `url`, of the repository `repo`, failed of.
    pub(super) fn explain(&self, what: String, repo: &str, url: &str, error: ApiError) -> SourceError {
        let Some(status @ (401 | 403 | 404)) = status(&error) else {
            return self.failed(&what, error.to_string());
        };
        let (reason, words) = Denial::ask(url, self.token.as_deref());
        let (endpoint, repo, has_token) = (self.endpoint.clone(), repo.to_owned(), self.token.is_some());
        SourceError::HubDenied { endpoint, status, what, repo, reason, words, has_token }
    }

    pub(super) fn failed(&self, what: &str, reason: String) -> SourceError {
        SourceError::HubFailed { endpoint: self.endpoint.clone(), what: what.to_owned(), reason }
    }
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
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
    let stays_inside = |name: &String| !name.split('/').any(|part| part.is_empty() || part == "..");
    names.iter().all(stays_inside).then_some(names)
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
mod tests {
    use super::super::download::{MAX_ATTEMPTS, remove};
    use super::super::stub::{Behaviour, COMMIT, REPO, StubHub};
    use super::*;

    const WEIGHTS: &[u8] = &[7; 4000];
    const MODEL: &[(&str, &[u8])] =
        &[("config.json", b"{}"), ("tokenizer.json", b"{\"a\": 1}"), (SINGLE, WEIGHTS), ("README.md", b"x")];

    struct Case {
        stub: StubHub,
        home: tempfile::TempDir,
    }

    impl Case {
        fn new(files: &[(&str, &[u8])], behaviour: Behaviour) -> Self {
            Self {
                stub: StubHub::start(files, behaviour),
                home: tempfile::tempdir().expect("a folder for tests"),
            }
        }

        fn hub(&self, vars: &[(&str, &str)]) -> Hub {
            let home = self.home.path().to_str().expect("a plain path");
            Hub::new(&Env::of(
                &[&[("HF_HOME", home), ("HF_ENDPOINT", self.stub.url.as_str())], vars].concat(),
            ))
        }

        fn fetch(&self, id: &str, vars: &[(&str, &str)]) -> Result<PathBuf, SourceError> {
            self.hub(vars).model(&id.parse().expect("an id"))
        }

        fn check_whole(&self, folder: &Path) {
            assert_eq!(fs::read(folder.join(SINGLE)).expect("fetched"), WEIGHTS);
            assert!(folder.ends_with(Path::new("snapshots").join(COMMIT)), "{}", folder.display());
        }
    }

    #[test]
    fn a_model_is_fetched_once_and_then_found_without_the_hub() {
        let case = Case::new(MODEL, Behaviour::default());
        let folder = case.fetch(REPO, &[]).expect("the stub has it");
        case.check_whole(&folder);
        assert!(!folder.join("README.md").exists(), "only what a model needs is fetched");
        assert_eq!(commit_of(&folder).as_deref(), Some(COMMIT));
        assert_eq!(commit_of(&folder.join("a.gguf")).as_deref(), Some(COMMIT));
        let num_requests = case.stub.num_requests();
        assert_eq!(case.fetch(REPO, &[]).expect("cached"), folder);
        assert_eq!(
            case.fetch(&format!("{REPO}@{COMMIT}"), &[("HF_HUB_OFFLINE", "1")]).expect("cached"),
            folder
        );
        assert_eq!(case.stub.num_requests(), num_requests);
    }

    #[test]
    fn an_interrupted_transfer_goes_on_where_it_stopped() {
        let case = Case::new(MODEL, Behaviour { num_breaks: 2, ..Behaviour::default() });
        case.check_whole(&case.fetch(REPO, &[]).expect("the third transfer is whole"));
        let resumed = case
            .stub
            .log()
            .iter()
            .filter(|line| line.ends_with("/cdn/model.safetensors bytes=2000-"))
            .count();
        assert_eq!(resumed, 1, "{:?}", case.stub.log());
    }

    #[test]
    fn what_came_out_wrong_is_fetched_anew() {
        for behaviour in [
            Behaviour { num_corrupt: 1, ..Behaviour::default() },
            Behaviour { num_breaks: 1, ignores_ranges: true, ..Behaviour::default() },
        ] {
            let case = Case::new(MODEL, behaviour);
            case.check_whole(&case.fetch(REPO, &[]).expect("a later transfer is right"));
        }
    }

    #[test]
    fn an_interrupted_program_goes_on_where_it_stopped() {
        let case = Case::new(MODEL, Behaviour { num_breaks: MAX_ATTEMPTS, ..Behaviour::default() });
        let error = case.fetch(REPO, &[]).expect_err("all transfers break off");
        assert!(matches!(error, SourceError::HubFailed { .. }), "{error}");
        case.check_whole(&case.fetch(REPO, &[]).expect("the next one does not"));
        assert!(case.stub.log().last().expect("requests").ends_with("bytes=3750-"), "{:?}", case.stub.log());
    }

    #[test]
    fn all_shards_of_an_index_are_fetched() {
        let index =
            br#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
        let files: &[(&str, &[u8])] = &[
            ("config.json", b"{}"),
            ("tokenizer.json", b"{}"),
            (INDEX, index),
            ("one.safetensors", b"1"),
            ("two.safetensors", b"2"),
        ];
        let case = Case::new(files, Behaviour::default());
        let folder = case.fetch(REPO, &[]).expect("the stub has it");
        assert!(folder.join("one.safetensors").is_file() && folder.join("two.safetensors").is_file());
        remove(&folder.join("two.safetensors")).expect("there");
        let offline = case.fetch(REPO, &[("HF_HUB_OFFLINE", "1")]).expect_err("a shard is missing");
        assert!(matches!(offline, SourceError::Offline { .. }), "{offline}");
        assert!(offline.to_string().contains("is not whole, two.safetensors is not there"), "{offline}");
    }

    #[test]
    fn shards_are_fetched_side_by_side_each_going_on_where_it_stopped() {
        let index = br#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
        let files: &[(&str, &[u8])] = &[
            ("config.json", b"{}"),
            ("tokenizer.json", b"{}"),
            (INDEX, index),
            ("one.safetensors", WEIGHTS),
            ("two.safetensors", &[8; 4000]),
        ];
        // Both first transfers have begun before either gets a byte, and both break off.
        let behaviour = Behaviour { num_together: 2, num_breaks: 2, ..Behaviour::default() };
        let case = Case::new(files, behaviour);
        let folder = case.fetch(REPO, &[]).expect("the second transfers are whole");
        for (name, byte) in [("one.safetensors", 7), ("two.safetensors", 8)] {
            assert_eq!(fs::read(folder.join(name)).expect("fetched"), [byte; 4000]);
            let resumed = format!("/cdn/{name} bytes=2000-");
            assert!(case.stub.log().iter().any(|line| line.ends_with(&resumed)), "{:?}", case.stub.log());
        }
    }

    #[test]
    fn code_of_a_repository_is_never_fetched() {
        let mut files = MODEL.to_vec();
        files.push(("modeling_tiny.py", b"import os"));
        files.push(("setup.sh", b"rm"));
        let case = Case::new(&files, Behaviour::default());
        let folder = case.fetch(REPO, &[]).expect("the stub has it");
        case.check_whole(&folder);
        for name in ["modeling_tiny.py", "setup.sh"] {
            assert!(!folder.join(name).exists());
            assert!(!case.stub.log().iter().any(|line| line.contains(name)), "{:?}", case.stub.log());
        }
    }

    #[test]
    fn weights_that_are_python_objects_are_refused_with_the_way_to_convert() {
        let files: &[(&str, &[u8])] =
            &[("config.json", b"{}"), ("tokenizer.json", b"{}"), ("pytorch_model.bin", b"PK")];
        let case = Case::new(files, Behaviour::default());
        let error = case.fetch(REPO, &[]).expect_err("nothing that is read").to_string();
        assert!(error.contains("pytorch_model.bin") && error.contains("safe_serialization"), "{error}");
        assert!(!case.stub.log().iter().any(|line| line.contains("/resolve/")), "{:?}", case.stub.log());
    }

    #[test]
    fn refusals_say_what_to_do() {
        let case = Case::new(MODEL, Behaviour { token: Some("secret"), ..Behaviour::default() });
        let denied = case.fetch(REPO, &[]).expect_err("no token").to_string();
        assert!(denied.contains("answered 401") && denied.contains("set HF_TOKEN"), "{denied}");
        let denied = case.fetch(REPO, &[("HF_TOKEN", "wrong")]).expect_err("a wrong token").to_string();
        assert!(denied.contains("the token in use"), "{denied}");
        case.check_whole(&case.fetch(REPO, &[("HF_TOKEN", "secret")]).expect("the right token"));
        let absent = case.fetch("org/other", &[("HF_TOKEN", "secret")]).expect_err("not there").to_string();
        assert!(absent.contains("answered 404 for org/other"), "{absent}");
    }

    #[test]
    fn each_kind_of_refusal_is_told_apart() {
        const TOKEN: &[(&str, &str)] = &[("HF_TOKEN", "mine")];
        let page = format!("/{REPO}");
        for (status, code, vars, says) in [
            (
                "401 Unauthorized",
                "GatedRepo",
                &[][..],
                ["is gated: ask for access at", &page, "set HF_TOKEN"],
            ),
            ("403 Forbidden", "GatedRepo", TOKEN, ["the token in use", "has no access", "ask for access at"]),
            ("401 Unauthorized", "RepoNotFound", &[], ["the name is wrong", "private", "HF_TOKEN"]),
            (
                "404 Not Found",
                "RepoNotFound",
                TOKEN,
                ["no repository of this name", "private", "token in use"],
            ),
            ("404 Not Found", "RevisionNotFound", &[], ["no such branch, tag or commit", &page, "/commits"]),
            ("404 Not Found", "EntryNotFound", &[], ["no such file", &page, "/tree/main"]),
            ("403 Forbidden", "DisabledRepo", &[], ["disabled", "403", REPO]),
            (
                "403 Forbidden",
                "SomethingNew",
                &[],
                ["does not exist there, or it is private or gated", "403", REPO],
            ),
        ] {
            let case = Case::new(MODEL, Behaviour { refusal: Some((status, code)), ..Behaviour::default() });
            let error = case.fetch(&format!("{REPO}@v9"), vars).expect_err("refused").to_string();
            for part in says.into_iter().chain(["the hub says: words of the hub"]) {
                assert!(error.contains(part), "{code}: `{part}` is not in: {error}");
            }
            assert!(!error.contains("mine"), "a token is nothing for messages: {error}");
        }
    }

    #[test]
    fn a_repository_of_ggufs_is_asked_which() {
        let case = Case::new(&[("a.gguf", b"GGUF")], Behaviour::default());
        assert!(case.fetch(REPO, &[]).expect("the only one").ends_with("a.gguf"));
        let case = Case::new(&[("a.gguf", b"GGUF"), ("b.gguf", b"GGUF")], Behaviour::default());
        let error = case.fetch(REPO, &[]).expect_err("two").to_string();
        assert!(error.contains("name one of a.gguf, b.gguf as ORG/NAME/a.gguf"), "{error}");
        let named = format!("{REPO}/b.gguf");
        assert!(case.fetch(&named, &[]).expect("named").ends_with("b.gguf"));
        assert!(case.fetch(&named, &[("HF_HUB_OFFLINE", "1")]).expect("cached").ends_with("b.gguf"));
    }

    #[test]
    fn a_repository_without_a_needed_file_is_named() {
        let case = Case::new(&[("config.json", b"{}"), (SINGLE, WEIGHTS)], Behaviour::default());
        let error = case.fetch(REPO, &[]).expect_err("no tokenizer").to_string();
        assert_eq!(error, format!("{REPO} has no tokenizer.json"));
    }

    #[test]
    fn all_files_of_a_split_gguf_are_fetched() {
        let [first, second] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        let case = Case::new(&[(first, b"GGUF 1"), (second, b"GGUF 2")], Behaviour::default());
        let path = case.fetch(REPO, &[]).expect("it is one model");
        assert!(path.ends_with(first) && path.with_file_name(second).is_file(), "{}", path.display());
        assert_eq!(case.fetch(REPO, &[("HF_HUB_OFFLINE", "1")]).expect("cached"), path);

        let case =
            Case::new(&[(first, b"GGUF 1"), (second, b"GGUF 2"), ("n.gguf", b"GGUF")], Behaviour::default());
        assert!(matches!(case.fetch(REPO, &[]), Err(SourceError::NothingToLoad { .. })));
        let named = format!("{REPO}/{first}");
        let path = case.fetch(&named, &[]).expect("named");
        assert!(path.with_file_name(second).is_file() && !path.with_file_name("n.gguf").exists());
        fs::remove_file(path.with_file_name(second)).expect("there");
        let error =
            case.fetch(&named, &[("HF_HUB_OFFLINE", "1")]).expect_err("a file is missing").to_string();
        assert!(error.contains(second), "{error}");
    }

    #[test]
    fn offline_with_nothing_cached_is_an_error_that_names_the_cache() {
        let case = Case::new(MODEL, Behaviour::default());
        let error = case.fetch(REPO, &[("HF_HUB_OFFLINE", "1")]).expect_err("nothing cached").to_string();
        assert!(error.starts_with("offline (--offline or HF_HUB_OFFLINE) and org/tiny is not in"), "{error}");
        assert_eq!(case.stub.num_requests(), 0);
    }

    #[test]
    fn an_unreachable_hub_is_told_within_seconds() {
        let case = Case::new(MODEL, Behaviour::default());
        let started = std::time::Instant::now();
        let error = case.fetch(REPO, &[("HF_ENDPOINT", "http://127.0.0.1:9")]).expect_err("nobody listens");
        assert!(matches!(error, SourceError::HubFailed { .. }), "{error}");
        assert!(started.elapsed().as_secs() < 5);
    }
}
