use std::ops::Deref;

use quire_engine::EngineOptions;
use quire_executor::LogitsProcessors;
use quire_models::ModelRegistry;
use quire_scheduler::PolicyRegistry;

use crate::backend::BackendRegistry;
use crate::env::Env;
use crate::error::Result;
use crate::model_source::ModelSource;
use crate::start::{self, Parts};

/// An engine with the backends, models and policies that Quire ships; what it can do is in [`quire_engine::Llm`].
///
/// Cheap to clone; the last one dropped ends the engine.
#[derive(Clone, Debug)]
pub struct Llm(quire_engine::Llm);

impl Llm {
    /// Loads a model: a folder, a `.gguf` file, a short name ([`KNOWN_MODELS`](crate::KNOWN_MODELS)) or a Hugging Face
    /// id. What has to be fetched is fetched once.
    ///
    /// # Errors
    ///
    /// What is wrong with the argument, the files, or the memory there is.
    pub fn load(model: &str) -> Result<Self> {
        Self::load_with(model, EngineOptions::default())
    }

    /// As [`load`](Self::load), with settings.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), and what is wrong with the settings.
    pub fn load_with(model: &str, options: EngineOptions) -> Result<Self> {
        let env = Env::of_process();
        let backends = BackendRegistry::default();
        backends.check(options.device_name())?;
        let options = start::complete(options, &ModelSource::parse(model)?, &env)?;
        let kernels = start::backend(&backends, &options, None)?;
        let (policies, models) = (PolicyRegistry::default(), ModelRegistry::default());
        let parts =
            Parts { kernels, policies: &policies, models: &models, processors: LogitsProcessors::new() };
        Ok(Self(start::builder(options, &parts).llm()?))
    }
}

impl Deref for Llm {
    type Target = quire_engine::Llm;

    fn deref(&self) -> &quire_engine::Llm {
        &self.0
    }
}
