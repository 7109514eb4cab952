//! From a model on disk to an engine that runs: configuration, memory plan, weights, tokenizer.

mod checks;
mod generation;
mod kv_cache;
mod memory;
mod texts;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use quire_executor::{
    LocalExecutor, LogitsProcessors, MemoryPlan, MemoryProbe, ModelSizes, WorkerConfig,
    process_resident_bytes,
};
use quire_kernels::Kernels;
use quire_models::check::{self, CheckOptions, CheckTokenizer};
use quire_models::{Checkpoint, Loader, ModelRegistry, WeightSummary};
use quire_scheduler::{PolicyRegistry, SchedulerPolicy};

pub(crate) use self::generation::usable_defaults;
pub use self::memory::PoolDefault;

use self::checks::{check_dtypes, check_max_logprobs, check_quantization};
use self::generation::default_params;
use self::kv_cache::KvCacheChoice;
use self::memory::{check_extras, memory_request, warn_of_small_pool, weight_bytes};
use self::texts::{GivenTexts, LoadedTexts, eos_tokens};
use crate::config::{EngineConfig, EngineOptions, ModelFacts};
use crate::{
    AsyncLlm, ConfigError, EngineParts, Fingerprint, GrammarCompiler, Llm, PromptRenderer, Result, report,
};

/// Options, a backend, and the registries: what an engine is loaded with.
pub struct EngineBuilder<'a> {
    options: EngineOptions,
    kernels: Kernels,
    models: &'a ModelRegistry,
    policies: &'a PolicyRegistry,
    processors: LogitsProcessors,
    pool_default: PoolDefault,
    probe: MemoryProbe,
}

/// An engine before its weights are read: all that is decided, and checked to fit.
pub struct EnginePlan {
    config: EngineConfig,
    memory: MemoryPlan,
    weights: WeightSummary,
    kv_cache: KvCacheChoice,
    checkpoint: Arc<Checkpoint>,
    kernels: Kernels,
    models: ModelRegistry,
    policy: Box<dyn SchedulerPolicy>,
    processors: LogitsProcessors,
    probe: MemoryProbe,
    texts: GivenTexts,
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
        let (processors, pool_default) = (LogitsProcessors::new(), PoolDefault::default());
        Self { options, kernels, models, policies, processors, pool_default, probe }
    }

    /// Sets what the KV pool is measured by where nobody gives its size.
    #[must_use]
    pub fn pool_default(mut self, pool_default: PoolDefault) -> Self {
        self.pool_default = pool_default;
        self
    }

    /// Sets the code that requests may have their logits edited by, by name.
    ///
    /// ```
    /// use quire_engine::{EngineBuilder, EngineOptions, LogitsProcessorCall, SamplingParams};
    /// use quire_executor::{LogitsProcessor, LogitsProcessors, RowLogits};
    /// use quire_kernels::reference;
    /// use quire_models::{ModelRegistry, testing::TinyModel};
    /// use quire_scheduler::PolicyRegistry;
    ///
    /// /// Only tokens of an even number.
    /// struct Even;
    ///
    /// impl LogitsProcessor for Even {
    ///     fn process(&mut self, rows: &mut [RowLogits<'_>]) {
    ///         for row in rows {
    ///             row.logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    ///         }
    ///     }
    /// }
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # TinyModel::llama().write_folder(folder.path())?;
    /// let options = EngineOptions::new(folder.path()).num_gpu_blocks_override(Some(64)).seed(0);
    /// let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    /// let llm = EngineBuilder::new(options, reference::kernels(), &models, &policies)
    ///     .logits_processors(LogitsProcessors::new().with("even", || Even))
    ///     .llm()?;
    /// let params = SamplingParams {
    ///     logits_processors: vec![LogitsProcessorCall::new("even", ())],
    ///     ..SamplingParams::default()
    /// };
    /// let output = llm.generate(["Hello"], &params)?.remove(0);
    /// assert!(output.outputs[0].token_ids.iter().all(|id| id % 2 == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn logits_processors(mut self, processors: LogitsProcessors) -> Self {
        self.processors = processors;
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
        // A sound tokenizer is opened before the weights are read: plans need none.
        let tokenizer = match self.options.has_tokenizer() {
            true => CheckTokenizer::Never,
            false => CheckTokenizer::WithProblems,
        };
        let checked =
            CheckOptions { load: self.options.load_options()?, tokenizer, ..CheckOptions::default() };
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
        check_max_logprobs(&config, checkpoint.config().vocab_size, &self.kernels)?;
        let texts = GivenTexts::read(&config)?;
        let policy = self.policies.build(&config.scheduling_policy).map_err(ConfigError::from)?;
        let architecture = self.models.find(&checkpoint.config().architecture)?;
        architecture.check_kernels(checkpoint.config(), &self.kernels)?;
        check_dtypes(&weights, &self.kernels)?;
        let sizes = ModelSizes {
            architecture,
            config: checkpoint.config(),
            weight_bytes: weight_bytes(&weights, &self.kernels),
        };
        let kv_cache = KvCacheChoice::new(&config, &checkpoint, &weights, &self.kernels)?;
        let request = memory_request(&config, kv_cache.dtype, self.pool_default, sizes.config.vocab_size);
        let memory = MemoryPlan::new(&self.kernels, sizes, &request)?;
        check_extras(&config, &memory)?;
        warn_of_small_pool(&memory);
        Ok(EnginePlan {
            texts,
            config: config.fitted(memory.runner.limits.max_model_len),
            memory,
            weights,
            kv_cache,
            checkpoint: Arc::new(checkpoint),
            kernels: self.kernels,
            models: self.models.clone(),
            policy,
            processors: self.processors,
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

    /// What there is to say of the scales of the KV cache.
    pub(crate) fn kv_cache_note(&self) -> Option<&str> {
        self.kv_cache.note.as_deref()
    }

    /// The model's files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the outputs of this engine depend on, as a number.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self)
    }

    /// The chat template that is used in place of the model's own.
    pub(crate) fn given_template(&self) -> Option<&str> {
        self.texts.chat_template()
    }

    /// The backend.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// What writes prompts out for this model. Reads no weights.
    ///
    /// # Errors
    ///
    /// What is wrong with the tokenizer or the chat template.
    pub fn renderer(mut self) -> Result<PromptRenderer> {
        let vocab_size = self.checkpoint.config().vocab_size;
        let given = self.texts.take_tokenizer();
        let LoadedTexts { tokenizer, chat_template } =
            self.texts.load(given, &self.config, &self.checkpoint)?;
        PromptRenderer::new(tokenizer, chat_template, vocab_size)
    }

    /// Reads tokenizer and templates, then the weights: what is wrong with a file is told before the device is given
    /// anything.
    ///
    /// # Errors
    ///
    /// What is wrong with the files; what the device lacks.
    pub fn load(mut self) -> Result<EngineParts> {
        let texts = self.load_texts()?;
        self.load_weights(texts)
    }

    /// The texts, while the report is written: its fingerprint is over all files.
    fn load_texts(&mut self) -> Result<LoadedTexts> {
        let given = self.texts.take_tokenizer();
        let Self { config, checkpoint, texts, .. } = &*self;
        thread::scope(|scope| {
            let loading = scope.spawn(|| texts.load(given, config, checkpoint));
            report::log_plan(self);
            loading.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn load_weights(self, texts: LoadedTexts) -> Result<EngineParts> {
        let Self { config, memory, kv_cache, checkpoint, kernels, models, policy, processors, probe, .. } =
            self;
        let (max_model_len, source) = (config.max_model_len(), Arc::clone(&checkpoint));
        let load = move |kernels: &Kernels| {
            let architecture = models.find(&source.config().architecture)?;
            architecture.build(&Loader::new(&source, kernels, max_model_len))
        };
        let (kv_scales, device) = (kv_cache.scales, Arc::clone(kernels.device()));
        let worker = WorkerConfig {
            kernels,
            plan: memory,
            kv_scales,
            processors: processors.clone(),
            probe,
            load: Box::new(load),
        };
        // What the texts were made from need not be there beside the weights.
        checkpoint.release_pages();
        let executor = thread::scope(|scope| {
            scope.spawn(|| device.give_back_freed_memory());
            LocalExecutor::start(worker)
        })?;
        Ok(EngineParts {
            architecture: checkpoint.config().architecture.clone(),
            eos: eos_tokens(&checkpoint, texts.tokenizer.as_ref()),
            default_params: default_params(&config, &checkpoint)?,
            chat_template: texts.chat_template,
            tokenizer: texts.tokenizer,
            grammar_time_limit: GrammarCompiler::TIME_LIMIT,
            policy,
            processors,
            executor: Box::new(executor),
            config,
        })
    }
}
