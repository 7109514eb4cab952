//! The table of settings.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;

use quire_executor::LogprobsMode;
use quire_kernels::DType;
use quire_models::{LoadFormat, LoadOptions, OnlineQuantization, WeightDType};
use quire_scheduler::CapacityMode;

use super::value::SettingValue;
use super::{Bytes, ConfigError, DTypeChoice, MaxLogprobs, MaxModelLen, PreemptionMode, Setting, Source};

/// Writes options, values and everything that goes over all of them, from one list.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr;)*) => {
        /// What is asked for; the rest is left to defaults, to the model and to the memory there is.
        ///
        /// ```
        /// use quire_engine::{EngineOptions, Source};
        ///
        /// let mut options = EngineOptions::new("models/small").block_size(8);
        /// options.set("max_num_seqs", "16", Source::Flag)?;
        /// # Ok::<(), quire_engine::ConfigError>(())
        /// ```
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct EngineOptions {
            $($name: Option<Setting<$type>>,)*
        }

        impl EngineOptions {
            /// The names of all settings: those of vLLM where the meaning is the same.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, value: $type) -> Self {
                    self.$name = Some(Setting { value, source: Source::Caller });
                    self
                }
            )*

            /// Sets a value from its text form.
            ///
            /// # Errors
            ///
            /// [`ConfigError::Unknown`]; [`ConfigError::Value`] where the text is not of the setting's form.
            pub fn set(&mut self, name: &str, text: &str, source: Source) -> Result<(), ConfigError> {
                match name {
                    $(stringify!($name) => {
                        let value = parse::<$type>(stringify!($name), text)?;
                        self.$name = Some(Setting { value, source });
                    })*
                    _ => return Err(ConfigError::Unknown { given: name.to_owned() }),
                }
                Ok(())
            }

            /// These options, completed by `others` where they say nothing.
            #[must_use]
            pub fn or(self, others: Self) -> Self {
                Self { $($name: self.$name.or(others.$name),)* }
            }

            /// These options, as if `source` had given them.
            pub(super) fn with_source(self, source: Source) -> Self {
                Self { $($name: self.$name.map(|setting| Setting { source, ..setting }),)* }
            }

            /// What was given, with the defaults that depend on nothing.
            pub(super) fn with_defaults(self) -> EngineConfig {
                let Self { $($name,)* } = self;
                $(let $name = $name.unwrap_or_else(|| Setting { value: $default, source: Source::Default });)*
                EngineConfig {
                    sources: Sources { $($name: $name.source,)* },
                    values: EngineValues { $($name: $name.value,)* },
                }
            }
        }

        /// The values in force.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct EngineValues {
            $($(#[$doc])* pub $name: $type,)*
        }

        #[derive(Clone, Debug, PartialEq)]
        pub(super) struct Sources {
            $(pub(super) $name: Source,)*
        }

        impl EngineConfig {
            /// Every setting: name, value, source.
            pub fn lines(&self) -> Vec<(&'static str, String, Source)> {
                vec![$((stringify!($name), self.values.$name.show(), self.sources.$name),)*]
            }
        }
    };
}

settings! {
    /// The model: a folder or a file.
    model: PathBuf = PathBuf::new();
    /// The name that clients call it by; that of the folder or file where none is given.
    served_model_name: String = String::new();
    /// The commit of the hub's repository that the model's files are of, where they are of one.
    revision: Option<String> = None;
    /// Where the tokenizer is, if not beside the model.
    tokenizer: Option<PathBuf> = None;
    /// The chat template: a file, or the template itself; the model's own where none is given.
    chat_template: Option<String> = None;
    /// Where sampling defaults come from: `auto` (the model's `generation_config.json`) or `none`.
    generation_config: String = "auto".to_owned();
    /// Sampling defaults that go before those, as JSON: `{"temperature": 0.5}`.
    override_generation_config: Option<String> = None;
    /// Where weights come from.
    load_format: LoadFormat = LoadFormat::Auto;
    /// What weights are computed in.
    dtype: DTypeChoice = DTypeChoice::Auto;
    /// The quantization that the model is expected to have; none reads it from the model. `fp8` quantizes dense weights
    /// while they are read.
    quantization: Option<String> = None;
    /// The backend, by name; `auto` takes the best there is.
    device: String = "auto".to_owned();
    /// Devices that a layer is split over.
    tensor_parallel_size: usize = 1;
    /// Whether steps are never captured as graphs.
    enforce_eager: bool = false;
    /// Device memory for captured steps; none leaves it to the device.
    graph_memory: Option<Bytes> = None;
    /// Kernels that were measured to be faster on this device: a file that `quire tune-kernels` wrote.
    kernel_tuning: Option<PathBuf> = None;
    /// Whether a row's result must not depend on the batch, the chunking or the cache, bit for bit.
    deterministic: bool = false;
    /// Seed of whatever is random and has no seed of its own (random weights).
    seed: u64 = 0;
    /// Tokens of prompt and output together.
    max_model_len: MaxModelLen = MaxModelLen::Auto;
    /// Whether `max_model_len` may be more than the model was made for.
    allow_long_max_model_len: bool = false;
    /// Tokens a block of the KV cache holds.
    block_size: usize = 16;
    /// What keys and values are stored in.
    kv_cache_dtype: DTypeChoice = DTypeChoice::Auto;
    /// The share of the device's memory that may be used.
    gpu_memory_utilization: f64 = 0.9;
    /// Memory of the KV pool; none fits it to the memory there is.
    kv_cache_memory: Option<Bytes> = None;
    /// Blocks of the KV pool, whatever the memory says.
    num_gpu_blocks_override: Option<usize> = None;
    /// Host memory for swapped sequences, in GiB; 0 is none.
    swap_space: f64 = 0.0;
    /// What happens to a sequence that must give way.
    preemption_mode: PreemptionMode = PreemptionMode::Auto;
    /// Whether blocks of ended sequences serve others that begin alike.
    enable_prefix_caching: bool = true;
    /// KV cache that pinned beginnings may keep; it is set aside, and no sequence may count on it.
    max_pinned_bytes: Bytes = Bytes(0);
    /// Sequences that run at once.
    max_num_seqs: usize = 128;
    /// Tokens that a step computes.
    max_num_batched_tokens: usize = 2048;
    /// Whether a prompt may be computed over several steps.
    enable_chunked_prefill: bool = true;
    /// Tokens of one prompt that a step computes; none leaves it to the step's budget.
    max_prefill_chunk: Option<usize> = None;
    /// Tokens that a step computes of a prompt that is longer; 0 sets no limit. vLLM's name for `max_prefill_chunk`: the
    /// smaller of the two holds.
    long_prefill_token_threshold: usize = 0;
    /// Prompts that may be computed in part at the same time; none sets no limit.
    max_num_partial_prefills: Option<usize> = None;
    /// When a request may start: once there is room for what it has now, or for all that it may ever have.
    capacity_mode: CapacityMode = CapacityMode::MaxUtilization;
    /// The scheduling policy, by name.
    scheduling_policy: String = "fcfs".to_owned();
    /// Whether a step is planned while the one before it runs.
    async_scheduling: bool = true;
    /// Requests that may wait before others are refused.
    max_num_waiting: usize = 4096;
    /// The folder that recordings of the scheduler go to, at an internal error or at a signal; that for temporary files
    /// where none is given.
    recording_dir: Option<PathBuf> = None;
    /// Log-probabilities that a request may ask for at each token. Memory for as many of every token is set aside.
    max_logprobs: MaxLogprobs = MaxLogprobs::Tokens(20);
    /// What log-probabilities are of: the model's logits or what is drawn from, and whether the logits themselves are told.
    logprobs_mode: LogprobsMode = LogprobsMode::RawLogprobs;
}

/// The configuration in force: resolved once, validated, immutable. Its values are read as fields; it shows as one
/// line a setting, with the source.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    pub(super) values: EngineValues,
    pub(super) sources: Sources,
}

impl EngineOptions {
    /// Options for the model at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::default().model(path.into())
    }

    /// Reads the environment variables that name settings, from a list of all variables:
    /// `VLLM_ALLOW_LONG_MAX_MODEL_LEN` and `VLLM_CPU_KVCACHE_SPACE` (in GiB).
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`].
    pub fn from_environment(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        for (name, value) in variables {
            match name.as_str() {
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN" => {
                    options.set("allow_long_max_model_len", &value, Source::Environment)?;
                }
                "VLLM_CPU_KVCACHE_SPACE" if value != "0" => {
                    options.set("kv_cache_memory", &format!("{value}GiB"), Source::Environment)?;
                }
                _ => {}
            }
        }
        Ok(options)
    }

    /// How the model's files are to be read.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NotBuilt`] for a dtype that weights cannot be computed in.
    pub fn load_options(&self) -> Result<LoadOptions, ConfigError> {
        let values = self.clone().with_defaults().values;
        let dtype = match values.dtype {
            DTypeChoice::Auto => None,
            DTypeChoice::DType(DType::F32) => Some(WeightDType::Float32),
            DTypeChoice::DType(DType::F16) => Some(WeightDType::Float16),
            DTypeChoice::DType(DType::BF16) => Some(WeightDType::BFloat16),
            DTypeChoice::DType(other) => {
                let expected = <DTypeChoice as SettingValue>::expected_for("dtype");
                return Err(ConfigError::NotBuilt { field: "dtype", given: other.to_string(), expected });
            }
        };
        let quantize = (values.quantization.as_deref() == Some("fp8")).then_some(OnlineQuantization::Fp8);
        Ok(LoadOptions { load_format: values.load_format, dtype, quantize, seed: values.seed })
    }

    /// The dtype that weights are computed in, where one was asked for.
    pub fn given_dtype(&self) -> Option<DType> {
        match self.dtype.as_ref()?.value {
            DTypeChoice::Auto => None,
            DTypeChoice::DType(dtype) => Some(dtype),
        }
    }

    /// Whether rows must not depend on each other.
    pub fn is_deterministic(&self) -> bool {
        self.deterministic.as_ref().is_some_and(|deterministic| deterministic.value)
    }

    /// The file of tuned kernels asked for, if one was.
    pub fn kernel_tuning_path(&self) -> Option<&PathBuf> {
        self.kernel_tuning.as_ref().and_then(|path| path.value.as_ref())
    }

    /// The model asked for, if one was.
    pub fn model_path(&self) -> Option<&PathBuf> {
        self.model.as_ref().map(|model| &model.value)
    }

    /// Whether a tokenizer was given in place of the model's own.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.as_ref().is_some_and(|path| path.value.is_some())
    }

    /// Log-probabilities that a request may ask for: what was asked for, or the default.
    pub fn logprobs_limit(&self) -> MaxLogprobs {
        self.clone().with_defaults().max_logprobs
    }

    /// The backend asked for, by name; `auto` where none was.
    pub fn device_name(&self) -> &str {
        self.device.as_ref().map_or("auto", |device| &device.value)
    }
}

impl Deref for EngineConfig {
    type Target = EngineValues;

    fn deref(&self) -> &EngineValues {
        &self.values
    }
}

impl fmt::Display for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, value, source) in self.lines() {
            write!(f, "{separator}{name} = {value} ({source})")?;
            separator = "\n";
        }
        Ok(())
    }
}

fn parse<T: SettingValue>(field: &'static str, text: &str) -> Result<T, ConfigError> {
    let error = || ConfigError::Value {
        field,
        given: format!("{text:?}"),
        expected: T::expected_for(field).to_owned(),
    };
    T::parse(text).ok_or_else(error)
}
