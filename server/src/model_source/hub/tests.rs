//! Against a hub on loopback that behaves as it is told.

use std::time::Instant;

use super::*;
use crate::model_source::Denial;
use crate::model_source::download::{MAX_ATTEMPTS, remove};
use crate::model_source::stub::{Behaviour, COMMIT, REPO, Silent, StubHub};

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
    assert_eq!(case.fetch(&format!("{REPO}@{COMMIT}"), &[("HF_HUB_OFFLINE", "1")]).expect("cached"), folder);
    assert_eq!(case.stub.num_requests(), num_requests);
}

#[test]
fn an_interrupted_transfer_goes_on_where_it_stopped() {
    let case = Case::new(MODEL, Behaviour { num_breaks: 2, ..Behaviour::default() });
    case.check_whole(&case.fetch(REPO, &[]).expect("the third transfer is whole"));
    let resumed =
        case.stub.log().iter().filter(|line| line.ends_with("/cdn/model.safetensors bytes=2000-")).count();
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
        ("401 Unauthorized", "GatedRepo", &[][..], ["is gated: ask for access at", &page, "set HF_TOKEN"]),
        ("403 Forbidden", "GatedRepo", TOKEN, ["the token in use", "has no access", "ask for access at"]),
        ("401 Unauthorized", "RepoNotFound", &[], ["the name is wrong", "private", "HF_TOKEN"]),
        ("404 Not Found", "RepoNotFound", TOKEN, ["no repository of this name", "private", "token in use"]),
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
    let error = case.fetch(&named, &[("HF_HUB_OFFLINE", "1")]).expect_err("a file is missing").to_string();
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
    for (behaviour, says) in [(odd, "a redirect to `file:"), (round, "redirects"), (page, "lists no files")] {
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
    assert!(matches!(error, SourceError::HubDenied { status: 401, reason: Denial::Unsaid, .. }), "{error}");
}

#[test]
fn an_unreachable_hub_is_told_within_seconds() {
    let case = Case::new(MODEL, Behaviour::default());
    let started = std::time::Instant::now();
    let error = case.fetch(REPO, &[("HF_ENDPOINT", "http://127.0.0.1:9")]).expect_err("nobody listens");
    assert!(matches!(error, SourceError::HubFailed { .. }), "{error}");
    assert!(started.elapsed().as_secs() < 5);
}

#[test]
fn a_hub_may_be_silent_for_a_day_at_most() {
    let silence = |text| limits(&Env::of(&[("HF_HUB_DOWNLOAD_TIMEOUT", text)])).silence;
    assert_eq!(silence("2.5"), Duration::from_millis(2500));
    assert_eq!(silence("0"), Duration::from_millis(1));
    assert_eq!(silence("1e19"), Duration::from_secs(86_400));
    for nonsense in ["inf", "nan", "-1", "1e300", "soon"] {
        assert_eq!(silence(nonsense), Limits::default().silence, "{nonsense}");
    }
}
