//! The command line as a value, to which a program can add parts of its own.

use std::ffi::OsString;
use std::process::ExitCode;

use quire_executor::{LogitsProcessor, LogitsProcessors};
use quire_kernels::Kernels;
use quire_models::{Architecture, ModelRegistry};
use quire_scheduler::{PolicyRegistry, SchedulerPolicy};

use crate::backend::{BackendOptions, BackendRegistry};
use crate::cli;

/// The command `quire`, with the policies, backends and models it knows.
///
/// ```
/// use quire::scheduler::{Rank, SchedulerPolicy, SequenceView};
///
/// /// The shortest prompt first.
/// struct ShortestPrompt;
///
/// impl SchedulerPolicy for ShortestPrompt {
///     fn name(&self) -> &str {
///         "shortest-prompt"
///     }
///     fn rank(&self, seq: &SequenceView<'_>) -> Rank {
///         Rank(i64::from(seq.num_prompt_tokens()), 0)
///     }
/// }
///
/// let app = quire::App::new().policy("shortest-prompt", || ShortestPrompt);
/// // As if somebody had typed `quire inspect --help`; a program calls `app.run()`.
/// let _exit_code = app.run_with(["quire", "inspect", "--help"]);
/// ```
#[derive(Debug, Default)]
pub struct App {
    pub(crate) policies: PolicyRegistry,
    pub(crate) backends: BackendRegistry,
    pub(crate) models: ModelRegistry,
    pub(crate) processors: LogitsProcessors,
}

impl App {
    /// The command with what Quire ships.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a scheduling policy, for `--scheduling-policy NAME`; one of the same name is replaced.
    #[must_use]
    pub fn policy<P: SchedulerPolicy + 'static>(
        mut self,
        name: impl Into<String>,
        constructor: impl Fn() -> P + Send + Sync + 'static,
    ) -> Self {
        self.policies.register(name, constructor);
        self
    }

    /// Adds a backend, for `--device NAME`; one of the same name is replaced.
    #[must_use]
    pub fn backend<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        mut self,
        name: impl Into<String>,
        constructor: impl Fn(&BackendOptions) -> Result<Kernels, E> + Send + Sync + 'static,
    ) -> Self {
        self.backends.register(name, constructor);
        self
    }

    /// Adds a model architecture, by its name under `architectures` in `config.json`; one of the same name is
    /// replaced.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>, architecture: impl Architecture + 'static) -> Self {
        self.models.register(name, architecture);
        self
    }

    /// Adds a logits processor, for requests that ask for it under `logits_processors` and for `--logits-processor`; one
    /// of the same name is replaced.
    #[must_use]
    pub fn logits_processor<P: LogitsProcessor + 'static>(
        mut self,
        name: impl Into<String>,
        constructor: impl Fn() -> P + Send + Sync + 'static,
    ) -> Self {
        self.processors = self.processors.with(name, constructor);
        self
    }

    /// Runs the command line of this process: 0 where all went well, 1 where the run failed, 2 where the command line
    /// or its input is wrong. Nothing but results goes to standard output.
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os())
    }

    /// Runs a command line; its first word is the name of the program.
    pub fn run_with<T: Into<OsString> + Clone>(self, words: impl IntoIterator<Item = T>) -> ExitCode {
        cli::run(&self, words)
    }
}
