//! From a model on disk to an engine that runs: configuration, memory plan, weights, tokenizer.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use quire_executor::{
    LocalExecutor, MaxModelLen as PlannedLen, MemoryPlan, MemoryProbe, MemoryRequest, ModelSizes, PoolSize,
    WorkerConfig, process_resident_bytes,
};
use quire_kernels::{DType, Kernels};
use quire_models::check::{self, CheckOptions};
use quire_models::{
    Checkpoint, GenerationConfig, Loader, ModelRegistry, NamedTokens, Tokenizer, WeightSummary,
};
use quire_scheduler::{PolicyRegistry, SchedulerPolicy};

use crate::checked::{EosTokens, ParamLimits};
use crate::config::{DTypeChoice, EngineConfig, EngineOptions, ModelFacts};
use crate::text::ChatTemplate;
use crate::{AsyncLlm, ConfigError, EngineParts, Llm, Result, SamplingParams, report};

/// The most that a pool takes of a host's memory where nobody says how much.
const MAX_DEFAULT_POOL_BYTES: usize = 4 << 30;

/// What recorded steps may take of a device's memory where nobody says how much.
const DEFAULT_GRAPH_BYTES: usize = 512 << 20;

/// What the KV pool is measured by where nobody gives its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolDefault {
    /// What `max_num_seqs` sequences of `max_model_len` need, at most 4 GiB and half of the memory: right for a host,
    /// whose memory others need too.
    #[default]
    Sequences,
    /// What is left of `gpu_memory_utilization`: right for a device with memory of its own.
    Utilization,
}

/// Options, a backend, and the registries: what an engine is loaded with.
pub struct EngineBuilder<'a> {
    options: EngineOptions,
    kernels: Kernels,
    models: &'a ModelRegistry,
    policies: &'a PolicyRegistry,
    pool_default: PoolDefault,
    probe: MemoryProbe,
}

/// An engine before its weights are read: all that is decided, and checked to fit.
pub struct EnginePlan {
    config: EngineConfig,
    memory: MemoryPlan,
    weights: WeightSummary,
    checkpoint: Arc<Checkpoint>,
    kernels: Kernels,
    models: ModelRegistry,
    policy: Box<dyn SchedulerPolicy>,
    probe: MemoryProbe,
    texts: GivenTexts,
}

/// What the caller gives in place of the model's own: read, and refused, before any weight.
struct GivenTexts {
    tokenizer: Option<Tokenizer>,
    chat_template: Option<String>,
}

impl<'a> EngineBuilder<'a> {
    /// A builder with a host's defaults.
    pub fn new(
        options: EngineOptions,
        kernels: Kernels,
        models: &'a ModelRegistry,
        policies: &'a PolicyRegistry,
    ) -> Self {
        let probe: MemoryProbe = Arc::new(process_resident_bytes);
        Self { options, kernels, models, policies, pool_default: PoolDefault::default(), probe }
    }

    /// Sets what the KV pool is measured by where nobody gives its size.
    #[must_use]
    pub fn pool_default(mut self, pool_default: PoolDefault) -> Self {
        self.pool_default = pool_default;
        self
    }

    /// Sets what reads the bytes in use, for the report.
    #[must_use]
    pub fn memory_probe(mut self, probe: MemoryProbe) -> Self {
        self.probe = probe;
        self
    }

    /// Opens the checkpoint, resolves the configuration and plans the memory. Reads no weights.
    ///
    /// # Errors
    ///
    /// What is wrong with the options or the model's files, or does not fit.
    pub fn plan(self) -> Result<EnginePlan> {
        let path = self.options.model_path().cloned().ok_or(ConfigError::NoModel)?;
        // The tokenizer is opened, and compared, when the weights are read: plans need none.
        let checked = CheckOptions {
            load: self.options.load_options()?,
            skip_tokenizer: true,
            ..CheckOptions::default()
        };
        let (checkpoint, weights) = check::load(&path, &checked, self.models)?;
        let facts = ModelFacts { max_model_len: checkpoint.config().max_context() };
        let options = match self.pool_default {
            PoolDefault::Sequences => self.options,
            PoolDefault::Utilization => {
                self.options.or(EngineOptions::of_device(self.kernels.device().info().total_bytes))
            }
        };
        let config = EngineConfig::resolve(options, facts)?;
        check_quantization(&config, &checkpoint)?;
        check_max_logprobs(&config, checkpoint.config().vocab_size)?;
        check_generation(&config, &checkpoint)?;
        let texts = GivenTexts::read(&config)?;
        let policy = self.policies.build(&config.scheduling_policy).map_err(ConfigError::from)?;
        let architecture = self.models.find(&checkpoint.config().architecture)?;
        check_dtypes(&weights, &self.kernels)?;
        let sizes = ModelSizes {
            architecture,
            config: checkpoint.config(),
            weight_bytes: weight_bytes(&weights, &self.kernels),
        };
        let activation = self.kernels.device().info().activation_dtype;
        let kv_dtype = kv_dtype(&config, &weights, activation);
        let request = memory_request(&config, kv_dtype, self.pool_default);
        let memory = MemoryPlan::new(&self.kernels, sizes, &request)?;
        warn_of_small_pool(&memory);
        Ok(EnginePlan {
            texts,
            config: config.fitted(memory.runner.limits.max_model_len),
            memory,
            weights,
            checkpoint: Arc::new(checkpoint),
            kernels: self.kernels,
            models: self.models.clone(),
            policy,
            probe: self.probe,
        })
    }

    /// Plans, loads and starts an engine for callers that wait.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan) and [`EnginePlan::load`].
    pub fn llm(self) -> Result<Llm> {
        Llm::start(self.plan()?.load()?)
    }

    /// Plans, loads and starts an engine for asynchronous callers.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan) and [`EnginePlan::load`].
    pub fn async_llm(self) -> Result<AsyncLlm> {
        AsyncLlm::start(self.plan()?.load()?)
    }
}

impl EnginePlan {
    /// The configuration in force.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The memory sum.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// What the weights are.
    pub fn weights(&self) -> &WeightSummary {
        &self.weights
    }

    /// The model's files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The backend.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Reads the weights, and the tokenizer beside them.
    ///
    /// # Errors
    ///
    /// What is wrong with the files; what the device lacks.
    pub fn load(self) -> Result<EngineParts> {
        report::log_plan(&self);
        let Self { config, memory, checkpoint, kernels, models, policy, probe, texts: given, .. } = self;
        let max_model_len = config.max_model_len();
        let source = Arc::clone(&checkpoint);
        let load = move |kernels: &Kernels| {
            let architecture = models.find(&source.config().architecture)?;
            architecture.build(&Loader::new(&source, kernels, max_model_len))
        };
        let worker = WorkerConfig { kernels, plan: memory, probe, load: Box::new(load) };
        // What is wrong with the texts is told before the device is given anything.
        let (tokenizer, chat_template) = load_texts(given, &config, &checkpoint)?;
        let executor = LocalExecutor::start(worker)?;
        let use_generation = config.generation_config == "auto";
        let generation = checkpoint.generation();
        Ok(EngineParts {
            architecture: checkpoint.config().architecture.clone(),
            eos: eos_tokens(&checkpoint, tokenizer.as_ref()),
            default_params: if use_generation {
                default_params(generation)
            } else {
                SamplingParams::default()
            },
            chat_template,
            tokenizer,
            policy,
            executor: Box::new(executor),
            config,
        })
    }
}

impl GivenTexts {
    fn read(config: &EngineConfig) -> Result<Self> {
        let refused = |error| crate::Error::Tokenizer(Arc::new(error));
        let tokenizer = config.tokenizer.as_deref().map(Tokenizer::open).transpose().map_err(refused)?;
        let chat_template = config.chat_template.as_deref().map(read_template).transpose()?;
        if let Some(template) = &chat_template {
            ChatTemplate::at_start(template, NamedTokens::default())?;
        }
        Ok(Self { tokenizer, chat_template })
    }
}

/// A backend need not have a kernel for each dtype that files have.
fn check_dtypes(weights: &WeightSummary, kernels: &Kernels) -> Result<(), quire_models::Error> {
    let linear = kernels.linear();
    let plain = weights.matrix_dtypes.iter().find(|dtype| !linear.supports(**dtype));
    let scaled = weights.scaled_dtypes.iter().find(|dtype| !linear.supports_scaled(**dtype));
    let unsupported = plain.map(|dtype| format!("weights in {dtype}"));
    let unsupported = unsupported.or_else(|| scaled.map(|dtype| format!("weights in {dtype} with scales")));
    unsupported.map_or(Ok(()), |what| {
        let backend = kernels.device().info().backend.clone();
        Err(quire_kernels::Error::Unsupported { backend, part: "linear", what }.into())
    })
}

/// Whoever names a quantization means it: the model must have it, or be dense where it can be made.
fn check_quantization(config: &EngineConfig, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
    let (asked, stored) = (config.quantization.as_deref(), checkpoint.quantization());
    match asked {
        Some(asked) if stored != Some(asked) && (asked != "fp8" || stored.is_some()) => {
            Err(ConfigError::Value {
                field: "quantization",
                given: asked.to_owned(),
                expected: match stored {
                    Some(stored) => format!("{stored}, which the model has"),
                    None => "fp8, or none: the model is not quantized".to_owned(),
                },
            })
        }
        _ => Ok(()),
    }
}

/// A pool that somebody made smaller than the longest sequence is used as it is.
fn warn_of_small_pool(memory: &MemoryPlan) {
    let (num_tokens, max_model_len) = (memory.num_pool_tokens(), memory.runner.limits.max_model_len);
    if num_tokens < max_model_len {
        tracing::warn!(
            target: "quire::engine",
            "num_gpu_blocks_override leaves room for {num_tokens} tokens, max_model_len is {max_model_len}: longer \
             outputs end as length, longer prompts are refused"
        );
    }
}

/// There are no more log-probabilities at a token than tokens.
fn check_max_logprobs(config: &EngineConfig, vocab_size: usize) -> Result<(), ConfigError> {
    if config.max_logprobs <= vocab_size {
        return Ok(());
    }
    Err(ConfigError::Value {
        field: "max_logprobs",
        given: config.max_logprobs.to_string(),
        expected: format!("0 to the size of the vocabulary, {vocab_size}"),
    })
}

/// What the weights take on the device.
fn weight_bytes(weights: &WeightSummary, kernels: &Kernels) -> usize {
    let packed = |(&dtype, &(_, num_bytes)): (&DType, &(usize, u64))| {
        kernels.linear().packed_bytes(dtype, usize::try_from(num_bytes).unwrap_or(usize::MAX))
    };
    weights.by_dtype.iter().map(packed).fold(0, usize::saturating_add)
}

/// The configuration's share in the memory plan.
fn memory_request(config: &EngineConfig, kv_dtype: DType, pool_default: PoolDefault) -> MemoryRequest {
    let pool = match (config.num_gpu_blocks_override, config.kv_cache_memory, pool_default) {
        (Some(num_blocks), ..) => PoolSize::Blocks(num_blocks),
        (None, Some(bytes), _) => PoolSize::Bytes(usize::try_from(bytes.0).unwrap_or(usize::MAX)),
        (None, None, PoolDefault::Utilization) => PoolSize::Utilization(config.gpu_memory_utilization),
        (None, None, PoolDefault::Sequences) => PoolSize::Sequences { max_bytes: MAX_DEFAULT_POOL_BYTES },
    };
    let max_model_len = config.max_model_len();
    MemoryRequest {
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_num_seqs: config.max_num_seqs,
        block_size: config.block_size,
        max_model_len: match config.is_fitted_to_memory() {
            true => PlannedLen::FitUpTo(max_model_len),
            false => PlannedLen::Exactly(max_model_len),
        },
        pool,
        swap_bytes: (config.swap_space * f64::from(1 << 30)) as usize,
        kv_dtype,
        max_logprobs: u32::try_from(config.max_logprobs).unwrap_or(u32::MAX),
        enforce_eager: config.enforce_eager,
        graph_bytes: graph_bytes(config, pool_default),
    }
}

/// Memory for recorded steps: what was asked for, or enough for all sizes of a large model on a device that has memory
/// of its own.
fn graph_bytes(config: &EngineConfig, pool_default: PoolDefault) -> Option<usize> {
    match (config.enforce_eager, config.graph_memory, pool_default) {
        (true, ..) => Some(0),
        (false, Some(bytes), _) => Some(usize::try_from(bytes.0).unwrap_or(usize::MAX)),
        (false, None, PoolDefault::Utilization) => Some(DEFAULT_GRAPH_BYTES),
        (false, None, PoolDefault::Sequences) => None,
    }
}

/// Keys and values are kept in what a half-precision device computes in; elsewhere in what most of the weights are kept
/// in, or in float16 where those are quantized.
fn kv_dtype(config: &EngineConfig, weights: &WeightSummary, activation: DType) -> DType {
    if let DTypeChoice::DType(dtype) = config.kv_cache_dtype {
        return dtype;
    }
    if activation != DType::F32 {
        return activation;
    }
    let most = weights.by_dtype.iter().max_by_key(|(_, (_, num_bytes))| *num_bytes);
    match most.map(|(dtype, _)| *dtype) {
        Some(dtype @ (DType::F32 | DType::BF16)) => dtype,
        _ => DType::F16,
    }
}

/// Tokenizer and chat template. A model of made-up weights may come without a tokenizer.
fn load_texts(
    given: GivenTexts,
    config: &EngineConfig,
    checkpoint: &Checkpoint,
) -> Result<(Option<Tokenizer>, Option<String>)> {
    let tokenizer = match given.tokenizer.map_or_else(|| check::tokenizer(checkpoint), Ok) {
        Ok(tokenizer) => Some(tokenizer),
        Err(error) if config.has_dummy_weights() => {
            tracing::warn!(target: "quire::engine", "no tokenizer: prompts must be token ids ({error})");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let template = match given.chat_template {
        Some(given) => Some(given),
        None => checkpoint.chat_templates()?.default_template().map(str::to_owned),
    };
    Ok((tokenizer, template))
}

/// A template given as a file, or by itself.
fn read_template(given: &str) -> Result<String, ConfigError> {
    let is_template = given.contains('{') || given.contains('\n');
    if is_template && !Path::new(given).exists() {
        return Ok(given.to_owned());
    }
    std::fs::read_to_string(given)
        .map_err(|error| ConfigError::Template { message: format!("{given} cannot be read: {error}") })
}

fn eos_tokens(checkpoint: &Checkpoint, tokenizer: Option<&Tokenizer>) -> EosTokens {
    let config = checkpoint.config();
    let is_known = |id: &u32| (*id as usize) < config.vocab_size;
    let of_tokenizer = tokenizer.map(Tokenizer::eos_token_ids).into_iter().flatten();
    let silent: BTreeSet<u32> = of_tokenizer.chain(&config.eos_token_ids).copied().filter(is_known).collect();
    let told = checkpoint.generation().eos_token_ids.iter().copied();
    EosTokens { told: told.filter(is_known).filter(|id| !silent.contains(id)).collect(), silent }
}

/// What no request could be sampled with is told with the file that says so.
fn check_generation(config: &EngineConfig, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
    if config.generation_config != "auto" {
        return Ok(());
    }
    let limits = ParamLimits {
        vocab_size: checkpoint.config().vocab_size,
        max_logprobs: config.max_logprobs,
        eos: EosTokens::default(),
    };
    let checked = default_params(checkpoint.generation()).check(&limits);
    checked.map(drop).map_err(|error| ConfigError::Generation {
        file: checkpoint.path().join("generation_config.json").display().to_string(),
        message: error.to_string(),
    })
}

/// How the model's makers would have it sampled.
fn default_params(generation: &GenerationConfig) -> SamplingParams {
    let plain = SamplingParams::default();
    SamplingParams {
        temperature: generation.temperature.unwrap_or(plain.temperature),
        top_p: generation.top_p.unwrap_or(plain.top_p),
        top_k: generation.top_k.and_then(|k| i64::try_from(k).ok()).unwrap_or(plain.top_k),
        min_p: generation.min_p.unwrap_or(plain.min_p),
        repetition_penalty: generation.repetition_penalty.unwrap_or(plain.repetition_penalty),
        max_tokens: generation.max_new_tokens.map(|max| max as u64).or(plain.max_tokens),
        ..plain
    }
}
