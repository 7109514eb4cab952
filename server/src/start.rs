//! From options to a running engine.

use std::sync::Arc;

use quire_engine::{EngineBuilder, EngineClient, EngineOptions, EnginePlan, Llm, PoolDefault};
use quire_executor::LogitsProcessors;
use quire_kernels::{DType, Kernels};
use quire_kernels_cuda::KernelTuning;
use quire_models::{Checkpoint, ModelRegistry};
use quire_scheduler::PolicyRegistry;

use crate::backend::{BackendOptions, BackendRegistry};
use crate::env::Env;
use crate::error::Result;
use crate::model_source::ModelSource;
use crate::signal;

/// What an engine is built from beside its options.
pub(crate) struct Parts<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) policies: &'a PolicyRegistry,
    pub(crate) models: &'a ModelRegistry,
    pub(crate) processors: LogitsProcessors,
}

/// An engine that is not loaded yet.
pub(crate) fn builder<'a>(options: EngineOptions, parts: &Parts<'a>) -> EngineBuilder<'a> {
    let kernels = parts.kernels.clone();
    let device = Arc::clone(kernels.device());
    let builder = EngineBuilder::new(options, kernels, parts.models, parts.policies)
        .logits_processors(parts.processors.clone());
    match device.used_bytes() {
        // A device with memory of its own is there for the cache; that of the host is shared with everybody.
        Some(_) => {
            builder.pool_default(PoolDefault::Utilization).memory_probe(Arc::new(move || device.used_bytes()))
        }
        None => builder,
    }
}

/// The backend that `options` name, for their model.
pub(crate) fn backend(
    registry: &BackendRegistry,
    options: &EngineOptions,
    num_threads: Option<usize>,
) -> Result<Kernels> {
    // A model is opened only to see its dtype: not where nobody asks.
    let is_asked = registry.chooses_dtype(options.device_name());
    let backend = BackendOptions {
        num_threads,
        dtype: options.given_dtype().or_else(|| if is_asked { stored_dtype(options) } else { None }),
        deterministic: options.is_deterministic(),
        kernel_tuning: options
            .kernel_tuning_path()
            .map(|path| KernelTuning::read(path))
            .transpose()?
            .map(Arc::new),
        ..BackendOptions::default()
    };
    let kernels = registry.build(options.device_name(), &backend)?;
    let name = &kernels.device().info().backend;
    if backend.kernel_tuning.is_some() && name != "cuda" {
        tracing::warn!(target: "quire::kernels", "kernel_tuning is not used: it is for the backend cuda, this is {name}");
    }
    Ok(kernels)
}

/// What the model is stored in, where that is a half-precision type: wider ones are for the backend to choose. Where
/// the model cannot be read, loading it says why.
fn stored_dtype(options: &EngineOptions) -> Option<DType> {
    let checkpoint = Checkpoint::open(options.model_path()?, &options.load_options().ok()?).ok()?;
    checkpoint.config().dtype.filter(|dtype| matches!(dtype, DType::F16 | DType::BF16))
}

/// A running engine.
pub(crate) fn engine(options: EngineOptions, parts: &Parts<'_>) -> Result<Arc<dyn EngineClient>> {
    Ok(Arc::new(llm(options, parts)?.to_async()))
}

/// A running engine, for callers that wait.
pub(crate) fn llm(options: EngineOptions, parts: &Parts<'_>) -> Result<Llm> {
    load(builder(options, parts).plan()?)
}

/// The engine of a plan. At SIGUSR1 it writes what its scheduler did, at SIGUSR2 what its requests wait for.
pub(crate) fn load(plan: EnginePlan) -> Result<Llm> {
    let llm = Llm::start(plan.load()?)?;
    signal::write_recordings(llm.flight_recorder(), llm.config().recording_folder());
    signal::explain_waits(llm.explainer());
    Ok(llm)
}

/// `given`, completed by the environment and by the files of the model, which are fetched where they are not here.
pub(crate) fn complete(given: EngineOptions, model: &ModelSource, env: &Env) -> Result<EngineOptions> {
    let from_env = EngineOptions::from_environment(env.vars()).map_err(quire_engine::Error::from)?;
    let model = model.fetch_in(env)?;
    let own = EngineOptions::new(model.path).served_model_name(model.name);
    let options = given.or(from_env).or(own);
    // The commit is what a branch meant: that is what is recorded.
    Ok(if model.revision.is_some() { options.revision(model.revision) } else { options })
}
