//! Which model, on which device, with which settings: what all commands have in common.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use quire_engine::{ConfigError, EngineClient, EngineOptions, ParamLimits, Source};
use tokio::runtime::{Builder, Runtime};

use super::Context;
use super::engine::EngineFlags;
use super::input;
use super::load::check_apart;
use super::source::SourceArgs;
use crate::app::App;
use crate::error::{Error, Result};
use crate::start::{self, Parts};
use crate::trace;

#[derive(Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Threads of the CPU backend; by default one a core.
    #[arg(long, value_name = "N", help_heading = "Engine", allow_negative_numbers = true, value_parser = num_threads)]
    threads: Option<usize>,
    /// Writes statistics of what every operation computes to DIR/tensors.jsonl, for `quire trace diff`. Slow.
    #[arg(long, value_name = "DIR", help_heading = "Engine")]
    trace_tensors: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
}

impl ModelArgs {
    /// Fetches the model where it is not here, and starts an engine on it.
    pub(crate) fn start(&self, context: &Context<'_>, seed: Option<u64>) -> Result<Arc<dyn EngineClient>> {
        let (options, parts) = self.resolve(context, seed)?;
        start::engine(options, &parts)
    }

    /// The settings, and what an engine is made of. Names that nobody knows are told before a model is fetched.
    pub(crate) fn resolve<'a>(
        &self,
        context: &Context<'a>,
        seed: Option<u64>,
    ) -> Result<(EngineOptions, Parts<'a>)> {
        let App { policies, backends, models, processors } = context.app;
        if let Some(policy) = self.engine.get("scheduling_policy") {
            policies.build(policy).map_err(ConfigError::from).map_err(quire_engine::Error::from)?;
        }
        backends.check(self.given()?.device_name())?;
        let options = self.options(context, seed)?;
        let kernels = start::backend(backends, &options, self.threads)?;
        let kernels = trace::kernels(kernels, self.trace_tensors.as_deref())?;
        Ok((options, Parts { kernels, policies, models, processors: processors.clone() }))
    }

    /// Names that the model is served under beside the first.
    pub(crate) fn other_names(&self) -> impl Iterator<Item = String> {
        self.engine.other_names().iter().cloned()
    }

    /// What requests may ask for, as far as it is known before a model is.
    pub(crate) fn known_limits(&self, context: &Context<'_>) -> Result<ParamLimits> {
        let limits = input::permissive_limits(self.given()?.logprobs_limit().of(usize::MAX));
        Ok(ParamLimits { processors: context.app.processors.clone(), ..limits })
    }

    /// The settings, with the files of the model.
    fn options(&self, context: &Context<'_>, seed: Option<u64>) -> Result<EngineOptions> {
        self.check_tokenizer()?;
        let mut given = self.given()?;
        if let Some(seed) = seed {
            given.set("seed", &seed.to_string(), Source::Flag).map_err(quire_engine::Error::from)?;
        }
        let source = self.source.model(self.engine.get("revision"))?;
        start::complete(given, &source, &self.source.env(&context.env))
    }

    /// What is read from the paths that were given: the model, and files that settings name.
    pub(super) fn paths(&self) -> Result<Vec<PathBuf>> {
        let named = self.engine.values().map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_file());
        Ok(std::iter::once(PathBuf::from(self.source.name()?)).chain(named).collect())
    }

    /// Fails where what --trace-tensors writes is one of `inputs`.
    pub(super) fn check_trace_tensors(&self, inputs: &[&Path]) -> Result<()> {
        let Some(folder) = &self.trace_tensors else { return Ok(()) };
        check_apart(&trace::path_in(folder), inputs.iter().copied())
    }

    fn given(&self) -> Result<EngineOptions> {
        let mut given = EngineOptions::default();
        self.engine.set(&mut given).map_err(quire_engine::Error::from)?;
        Ok(given)
    }

    /// A wrong path is told before a model is fetched or its weights are read.
    fn check_tokenizer(&self) -> Result<()> {
        let Some(given) = self.engine.get("tokenizer").filter(|given| *given != "none") else {
            return Ok(());
        };
        let given = Path::new(given);
        let path = if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() };
        fs::metadata(&path).map(drop).map_err(|source| Error::Read { path, source })
    }
}

/// A number of threads that a machine may have.
fn num_threads(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=4096).contains(number));
    number.ok_or("expected a whole number from 1 to 4096")
}

/// Runs what waits for the engine; the engine has threads of its own.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)
}
