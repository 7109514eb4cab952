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
        limits.silence = seconds.max(Duration::from_millis(1));
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
mod tests {
    use std::time::Instant;

    use super::super::Denial;
    use super::super::download::{MAX_ATTEMPTS, remove};
    use super::super::stub::{Behaviour, COMMIT, REPO, Silent, StubHub};
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
            let mut hub = Hub::new(&Env::of(
                &[&[("HF_HOME", home), ("HF_ENDPOINT", self.stub.url.as_str())], vars].concat(),
            ));
            hub.limits.pause = Duration::from_millis(1);
            hub
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
        let case = Case::new(MODEL, Behaviour { num_breaks: MAX_ATTEMPTS as usize, ..Behaviour::default() });
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

    /// The files under a folder, links included.
    fn files_under(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let below = |path: PathBuf| if path.is_dir() { files_under(&path) } else { vec![path] };
        entries.flat_map(|entry| below(entry.path())).collect()
    }

    #[test]
    fn nothing_that_a_hub_says_leads_out_of_the_cache() {
        const FAR: &str = "../../../../../pwned";
        for behaviour in [
            Behaviour { etag: Some(FAR), ..Behaviour::default() },
            Behaviour { etag: Some("/pwned"), ..Behaviour::default() },
            Behaviour { commit: Some(FAR), ..Behaviour::default() },
            Behaviour {
                listed: &[
                    "../../../../../pwned",
                    "/pwned.json",
                    "additional_chat_templates/../../../../../../pwned.jinja",
                ],
                ..Behaviour::default()
            },
        ] {
            let shown = format!("{:?} {:?} {:?}", behaviour.etag, behaviour.commit, behaviour.listed);
            let is_refused = behaviour.commit.is_some();
            let case = Case::new(MODEL, behaviour);
            // The cache lies deep enough below the folder that is looked at.
            let home = case.home.path().join("a/b/c/d/e/f");
            let fetched = case.fetch(REPO, &[("HF_HOME", home.to_str().expect("plain"))]);
            match &fetched {
                Ok(folder) => case.check_whole(folder),
                Err(error) => assert!(matches!(error, SourceError::HubAnswer { .. }), "{shown}: {error}"),
            }
            assert_eq!(fetched.is_err(), is_refused, "{shown}");
            let cache = home.join("hub");
            let outside: Vec<_> =
                files_under(case.home.path()).into_iter().filter(|path| !path.starts_with(&cache)).collect();
            assert_eq!(outside, Vec::<PathBuf>::new(), "{shown}");
            assert!(!case.stub.log().iter().any(|line| line.contains("pwned")), "{:?}", case.stub.log());
        }
    }

    #[test]
    fn an_index_does_not_name_files_elsewhere() {
        let index = br#"{"weight_map": {"a": "sub/../../../x.safetensors"}}"#;
        let files: &[(&str, &[u8])] = &[("config.json", b"{}"), ("tokenizer.json", b"{}"), (INDEX, index)];
        let error = Case::new(files, Behaviour::default()).fetch(REPO, &[]).expect_err("no name of a file");
        assert!(matches!(error, SourceError::BadIndex { .. }), "{error}");
    }

    #[test]
    fn a_reference_of_the_cache_that_is_no_commit_leads_nowhere() {
        let case = Case::new(MODEL, Behaviour::default());
        let hub = case.hub(&[("HF_HUB_OFFLINE", "1")]);
        let folder = hub.repo_folder(REPO);
        fs::create_dir_all(folder.join("refs")).expect("writable");
        fs::create_dir_all(folder.join("snapshots")).expect("writable");
        fs::write(folder.join("config.json"), "{}").expect("writable");
        fs::write(folder.join(SINGLE), "").expect("writable");
        fs::write(folder.join("refs/main"), "..").expect("writable");
        let error = hub.model(&REPO.parse().expect("an id")).expect_err("no commit");
        assert!(matches!(error, SourceError::Offline { .. }), "{error}");
    }

    #[test]
    fn a_hub_that_falls_silent_is_given_up() {
        for silent in [Silent::Listing, Silent::Head, Silent::Body] {
            let case = Case::new(MODEL, Behaviour { silent: Some(silent), ..Behaviour::default() });
            let started = Instant::now();
            let error = case.fetch(REPO, &[("HF_HUB_DOWNLOAD_TIMEOUT", "0.1")]).expect_err("silence");
            assert!(matches!(error, SourceError::HubSilent { .. }), "{silent:?}: {error}");
            assert!(error.to_string().contains("HF_HUB_DOWNLOAD_TIMEOUT"), "{error}");
            assert!(started.elapsed() < Duration::from_secs(8), "{silent:?}: {:?}", started.elapsed());
        }
    }

    #[test]
    fn a_mirror_without_ranges_or_etags_serves() {
        for (num_breaks, etag) in [(0, None), (1, None), (0, Some("")), (1, Some("W/strange"))] {
            let behaviour = Behaviour { ignores_ranges: true, num_breaks, etag, ..Behaviour::default() };
            let case = Case::new(MODEL, behaviour);
            let folder = case.fetch(REPO, &[]).expect("the files are there");
            case.check_whole(&folder);
            assert_eq!(fs::read(folder.join("tokenizer.json")).expect("fetched"), b"{\"a\": 1}");
        }
    }

    #[test]
    fn what_fails_on_the_side_of_the_hub_is_tried_again_and_then_explained() {
        const WAIT: &[(&str, &str)] = &[("Retry-After", "0")];
        const LONG: &[(&str, &str)] = &[("Retry-After", "7200")];
        for (failing, says) in [
            ((1, "429 Too Many Requests", WAIT), None),
            ((1, "503 Service Unavailable", &[][..]), None),
            ((99, "429 Too Many Requests", WAIT), Some(["too many requests", "HF_TOKEN", "in 0 s"])),
            ((99, "429 Too Many Requests", LONG), Some(["429", "in 7200 s", REPO])),
            ((99, "500 Internal Server Error", &[]), Some(["500", "its side", "try again later"])),
            ((99, "418 I'm a teapot", &[]), Some(["418", REPO, "cannot fetch"])),
        ] {
            let case = Case::new(MODEL, Behaviour { failing: Some(failing), ..Behaviour::default() });
            match (case.fetch(REPO, &[]), says) {
                (Ok(folder), None) => case.check_whole(&folder),
                (Err(error), Some(says)) => {
                    let error = error.to_string();
                    assert!(says.iter().all(|part| error.contains(part)), "{says:?} is not in: {error}");
                    assert!(case.stub.num_requests() <= 2, "{:?}", case.stub.log());
                }
                (outcome, _) => panic!("{failing:?}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn an_answer_of_no_hub_is_said_to_be_that() {
        let odd = Behaviour { location: Some("file:///etc/passwd"), ..Behaviour::default() };
        let round = Behaviour { location: Some("/org/tiny/config.json"), ..Behaviour::default() };
        let page = Behaviour { failing: Some((9, "200 OK", &[])), ..Behaviour::default() };
        for (behaviour, says) in
            [(odd, "a redirect to `file:"), (round, "redirects"), (page, "lists no files")]
        {
            let error = Case::new(MODEL, behaviour).fetch(REPO, &[]).expect_err("no hub").to_string();
            assert!(error.contains(says) && error.contains("HF_ENDPOINT"), "`{says}` is not in: {error}");
        }
    }

    #[test]
    fn a_token_does_not_follow_a_redirect_to_another_host() {
        let elsewhere = StubHub::start(MODEL, Behaviour { token: Some("secret"), ..Behaviour::default() });
        let location = format!("{}/org/tiny/config.json", elsewhere.url).leak();
        let case = Case::new(MODEL, Behaviour { location: Some(location), ..Behaviour::default() });
        let error = case.fetch(REPO, &[("HF_TOKEN", "secret")]).expect_err("it asks for the token");
        assert!(
            matches!(error, SourceError::HubDenied { status: 401, reason: Denial::Unsaid, .. }),
            "{error}"
        );
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
