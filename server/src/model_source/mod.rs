//! From a MODEL argument to files on this machine.
//!
//! MODEL is a folder, a `.gguf` file, a short name ([`KNOWN_MODELS`]) or a Hugging Face id (`org/name`,
//! `org/name/file.gguf`, each with an optional `@revision`), tried in this order. What has to be fetched is
//! fetched once and found again without the network.

mod attempts;
mod client;
mod denial;
mod download;
mod error;
mod fetch;
mod hash;
mod hub;
mod hub_id;
mod known;
mod names;
mod pip;
mod progress;
mod reach;
#[cfg(test)]
pub(crate) mod stub;
mod transfer;

use std::path::{Path, PathBuf};

pub use self::denial::Denial;
pub use self::error::{AnswerFault, Lines, SourceError};
pub use self::hub_id::{HubId, HubIdError};
pub use self::known::{KNOWN_MODELS, KnownModel};

use self::fetch::Fetcher;
use self::hub::Hub;
use crate::cache;
use crate::env::Env;

/// What a MODEL argument means, before anything is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSource {
    /// A folder or a file on this machine.
    Local(PathBuf),
    /// A model with a short name.
    Known(&'static KnownModel),
    /// A repository of the hub, or one file of it.
    Hub(HubId),
}

/// Files on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedModel {
    /// A folder with `config.json`, or a `.gguf` file.
    pub path: PathBuf,
    /// The model's name for people: the argument, without the path of a folder.
    pub name: String,
    /// The commit of the hub's repository that the files are of.
    pub revision: Option<String>,
}

impl ModelSource {
    /// Reads a MODEL argument; looks at the file system, not at the network.
    ///
    /// # Errors
    ///
    /// [`SourceError::Unknown`] with what was tried.
    pub fn parse(argument: &str) -> Result<Self, SourceError> {
        let path = Path::new(argument);
        // What a file is, and what there is to do where it is no model, is told when it is opened.
        if path.is_dir() || path.is_file() {
            return Ok(Self::Local(path.to_owned()));
        }
        if let Some(known) = KnownModel::find(argument) {
            return Ok(Self::Known(known));
        }
        match argument.parse() {
            Ok(id) => Ok(Self::Hub(id)),
            Err(why) => {
                let mut tried = tried_locally(argument);
                tried.0.push(format!("not a Hugging Face id: {why}"));
                Err(SourceError::Unknown { given: argument.to_owned(), tried })
            }
        }
    }

    /// The same at a revision of the hub.
    ///
    /// # Errors
    ///
    /// [`SourceError::Revision`] for what is not of the hub, and for what is no revision.
    pub fn at_revision(self, revision: &str) -> Result<Self, SourceError> {
        let refuse = |name: String| SourceError::Revision { name, given: revision.to_owned() };
        match self {
            Self::Hub(id) => {
                let name = id.to_string();
                id.at_revision(revision).map(Self::Hub).map_err(|_| refuse(name))
            }
            other => Err(refuse(other.name())),
        }
    }

    /// The model's name for people.
    pub fn name(&self) -> String {
        match self {
            Self::Local(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into()),
            Self::Known(known) => known.alias.to_owned(),
            Self::Hub(id) => id.to_string(),
        }
    }

    /// Brings the files to this machine, where they are not here yet. Settings come from the environment of the
    /// process: `QUIRE_CACHE`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    ///
    /// Any [`SourceError`].
    pub fn fetch(&self) -> Result<ResolvedModel, SourceError> {
        self.fetch_in(&Env::of_process())
    }

    pub(crate) fn fetch_in(&self, env: &Env) -> Result<ResolvedModel, SourceError> {
        let path = match self {
            Self::Local(path) => path.clone(),
            Self::Known(known) => {
                let folder = cache::folder(env).ok_or(SourceError::NoCacheFolder)?.join("models");
                Fetcher::new(folder, env).ensure(known)?
            }
            Self::Hub(id) => Hub::new(env).model(id).map_err(|error| explain(id, error))?,
        };
        let revision = if matches!(self, Self::Hub(_)) { hub::commit_of(&path) } else { None };
        Ok(ResolvedModel { path, name: self.name(), revision })
    }
}

/// An `org/name` that the hub does not know may have been meant as a path: say all that was tried.
fn explain(id: &HubId, error: SourceError) -> SourceError {
    if !matches!(error, SourceError::HubDenied { reason, .. } if reason.leaves_the_name_open()) {
        return error;
    }
    let given = id.to_string();
    let mut tried = tried_locally(&given);
    tried.0.push(error.to_string());
    SourceError::Unknown { given, tried }
}

fn tried_locally(argument: &str) -> Lines {
    let aliases: Vec<_> = KNOWN_MODELS.iter().map(|model| model.alias).collect();
    Lines(vec![
        format!("no folder or .gguf file at {argument}"),
        format!("not a short name (known: {})", aliases.join(", ")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_wins_over_a_hub_id_of_the_same_spelling() {
        let source = ModelSource::parse("src/model_source").expect("a folder of this crate");
        assert_eq!(source, ModelSource::Local("src/model_source".into()));
        assert_eq!(source.name(), "model_source");
    }

    #[test]
    fn a_short_name_and_a_hub_id_are_told_apart() {
        let known = ModelSource::parse("smollm2-135m").expect("a known model");
        assert_eq!(known, ModelSource::Known(KnownModel::default_model()));
        let hub = ModelSource::parse("org/name@v1").expect("an id");
        assert_eq!(hub.name(), "org/name@v1");
    }

    #[test]
    fn a_revision_is_for_models_of_the_hub() {
        let hub = ModelSource::parse("org/name").expect("an id").at_revision("v1").expect("a revision");
        assert_eq!(hub, ModelSource::parse("org/name@v1").expect("an id"));
        for (name, revision) in [("org/name", "../v1"), ("smollm2-135m", "v1"), ("src/model_source", "v1")] {
            let error =
                ModelSource::parse(name).expect("a model").at_revision(revision).expect_err("refused");
            assert!(error.to_string().contains(revision), "{error}");
        }
    }

    #[test]
    fn a_wrong_argument_lists_what_was_tried() {
        let error = ModelSource::parse("smolm2").expect_err("no such model").to_string();
        for part in ["no model `smolm2`", "no folder or .gguf file", "known: smollm2-135m", "ORG/NAME"] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }

    #[test]
    fn a_file_of_any_name_is_left_to_those_who_open_it() {
        assert_eq!(ModelSource::parse("Cargo.toml").unwrap(), ModelSource::Local("Cargo.toml".into()));
    }
}
