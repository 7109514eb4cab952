//! Which model a command is about, and where it may come from.

use clap::Args;

use crate::env::Env;
use crate::error::{Error, Result};
use crate::model_source::{KnownModel, ModelSource};

#[derive(Args)]
pub(crate) struct SourceArgs {
    /// A folder, a .gguf file, a Hugging Face id (ORG/NAME, ORG/NAME/FILE.gguf, each with an optional @REVISION) or
    /// smollm2-135m, which is also the default.
    #[arg(value_name = "MODEL")]
    argument: Option<String>,
    /// The same as MODEL.
    #[arg(long = "model", value_name = "MODEL", hide = true)]
    flag: Option<String>,
    /// Asks no hub: a model is taken from the cache, or what is missing of it is told. As HF_HUB_OFFLINE=1.
    #[arg(long)]
    offline: bool,
}

impl SourceArgs {
    /// The model, at a revision if one is given.
    pub(crate) fn model(&self, revision: Option<&str>) -> Result<ModelSource> {
        let source = ModelSource::parse(self.name()?)?;
        match revision {
            Some(revision) => Ok(source.at_revision(revision)?),
            None => Ok(source),
        }
    }

    /// The environment that the model is fetched in.
    pub(crate) fn env(&self, env: &Env) -> Env {
        if self.offline { env.with("HF_HUB_OFFLINE", "1") } else { env.clone() }
    }

    /// What was given, or the model that stands where nothing was.
    pub(crate) fn name(&self) -> Result<&str> {
        match (&self.argument, &self.flag) {
            (Some(argument), Some(flag)) => {
                Err(Error::TwoModels { argument: argument.clone(), flag: flag.clone() })
            }
            (argument, flag) => {
                let name = argument.as_deref().or(flag.as_deref());
                Ok(name.unwrap_or(KnownModel::default_model().alias))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::model_source::stub::{Behaviour, REPO, StubHub};
    use crate::model_source::{ResolvedModel, SourceError};

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        source: SourceArgs,
    }

    fn fetch(line: &str, env: &Env) -> Result<ResolvedModel, SourceError> {
        let words = std::iter::once("quire").chain(line.split_whitespace());
        let source = Only::try_parse_from(words).expect("all are flags").source;
        source.model(None).expect("an id").fetch_in(&source.env(env))
    }

    #[test]
    fn offline_asks_nobody_and_takes_what_is_cached() {
        let files: [(&str, &[u8]); 3] =
            [("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model.safetensors", b"weights")];
        let stub = StubHub::start(&files, Behaviour::default());
        let home = tempfile::tempdir().expect("a folder for tests");
        let home = home.path().to_str().expect("a plain path");
        let env = Env::of(&[("HF_HOME", home), ("HF_ENDPOINT", &stub.url)]);

        let offline = format!("{REPO} --offline");
        let error = fetch(&offline, &env).expect_err("nothing is cached");
        assert!(matches!(error, SourceError::Offline { .. }), "{error}");
        assert_eq!(stub.num_requests(), 0);

        let fetched = fetch(REPO, &env).expect("the stub has it");
        let num_requests = stub.num_requests();
        assert_eq!(fetch(&offline, &env).expect("cached"), fetched);
        assert_eq!(stub.num_requests(), num_requests);
    }
}
