//! From options to a running engine.

use std::sync::Arc;

use quire_engine::{EngineBuilder, EngineClient, EngineOptions, PoolDefault};
use quire_kernels::Kernels;
use quire_models::ModelRegistry;
use quire_scheduler::PolicyRegistry;

use crate::env::Env;
use crate::error::Result;
use crate::model_source::ModelSource;

/// What an engine is built from beside its options.
pub(crate) struct Parts<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) policies: &'a PolicyRegistry,
    pub(crate) models: &'a ModelRegistry,
}

/// An engine that is not loaded yet.
pub(crate) fn builder<'a>(options: EngineOptions, parts: &Parts<'a>) -> EngineBuilder<'a> {
    let kernels = parts.kernels.clone();
    // A device with memory of its own is there for the cache; that of the host is shared with everybody.
    let pool_default = match kernels.device().info().backend.as_str() {
        "cuda" => PoolDefault::Utilization,
        _ => PoolDefault::Sequences,
    };
    EngineBuilder::new(options, kernels, parts.models, parts.policies).pool_default(pool_default)
}

/// A running engine.
pub(crate) fn engine(options: EngineOptions, parts: &Parts<'_>) -> Result<Arc<dyn EngineClient>> {
    Ok(Arc::new(builder(options, parts).async_llm()?))
}

/// `given`, completed by the environment and by the files of the model, which are fetched where they are not here.
pub(crate) fn complete(given: EngineOptions, model: &ModelSource, env: &Env) -> Result<EngineOptions> {
    let from_env = EngineOptions::from_environment(env.vars()).map_err(quire_engine::Error::from)?;
    let model = model.fetch_in(env)?;
    Ok(given.or(from_env).or(EngineOptions::new(model.path).served_model_name(model.name)))
}
