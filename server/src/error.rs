//! What can go wrong between a command line and its result.

use std::io;
use std::path::PathBuf;

use quire_engine::ErrorKind;
use quire_scheduler::record::RecordingError;
use quire_scheduler::simulate::SimulateError;

use crate::backend::BackendError;
use crate::cli::bench::limits::BenchError;
use crate::cli::input::InputError;
use crate::logging::LogFilterError;
use crate::model_source::SourceError;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model is not there and cannot be fetched.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// There is no such backend, or it cannot be used here.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The engine refused its configuration, the model or a request, or failed.
    #[error(transparent)]
    Engine(#[from] quire_engine::Error),
    /// The log filter cannot be read.
    #[error(transparent)]
    LogFilter(#[from] LogFilterError),
    /// The input holds lines that are no requests.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A benchmark that would not measure what was asked for.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Two flags that say the same thing.
    #[error("the model is given twice: as {argument} and as --model {flag}")]
    TwoModels {
        /// The argument.
        argument: String,
        /// The flag.
        flag: String,
    },
    /// A conversation with a model that has no form for one.
    #[error("{model} has no chat template: use `quire generate`, or give --chat-template FILE")]
    NoChatTemplate {
        /// The model.
        model: String,
    },
    /// A variable of the environment that cannot be read.
    #[error("{name} is {given:?}: expected {expected}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A terminal that cannot be drawn on.
    #[error("cannot use the terminal")]
    Terminal(#[source] io::Error),
    /// A server that does not answer.
    #[error("the server does not answer: {reason}")]
    Server {
        /// Why.
        reason: String,
    },
    /// A file of flags that cannot be used.
    #[error("{}: {reason}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A flag of vLLM's that this version does not have.
    #[error("--{flag} is not built yet: start without it")]
    FlagNotBuilt {
        /// Its name.
        flag: &'static str,
    },
    /// A file of API keys that holds none.
    #[error("{}: there is no key in it: expected one a line", path.display())]
    NoKeys {
        /// The file.
        path: PathBuf,
    },
    /// A flag whose code is not in this build.
    #[error("{flag} is not in this build: build with --features {feature}")]
    NotCompiled {
        /// The flag.
        flag: &'static str,
        /// The feature that has it.
        feature: &'static str,
    },
    /// An address that traces cannot be sent to.
    #[error("--otlp-traces-endpoint is {given:?}: {reason}: expected http://HOST:PORT/v1/traces")]
    TracesEndpoint {
        /// The address.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate that connections cannot be secured with.
    #[error(transparent)]
    Certificate(#[from] crate::http::CertificateError),
    /// Settings for browsers that no header can be made of.
    #[error(transparent)]
    Cors(#[from] crate::http::CorsError),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Host and port.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// A model that cannot be loaded; what is wrong with it has been said.
    #[error("{} has {}", path.display(), counted(*num_problems, "problem"))]
    ModelProblems {
        /// The file or folder.
        path: PathBuf,
        /// How many.
        num_problems: usize,
    },
    /// Some requests of a list failed; their lines say why.
    #[error("{num_failed} of {num_requests} requests failed")]
    SomeFailed {
        /// Requests that failed.
        num_failed: usize,
        /// All of them.
        num_requests: usize,
    },
    /// Some requests of a simulated load could never run; the report says why.
    #[error("{num_refused} of {num_requests} requests could never run")]
    SomeRefused {
        /// Requests that were refused.
        num_refused: u64,
        /// All of them.
        num_requests: usize,
    },
    /// Swapping was asked for, and there is nowhere to swap to.
    #[error("swap is asked for without swap space: give {flag}")]
    NoSwapSpace {
        /// The flag that sets it aside.
        flag: &'static str,
    },
    /// A pool of less than a block.
    #[error(
        "the KV pool of the cost model, kv_pool_tokens = {num_tokens}, holds no block of {block_size} tokens: give \
         --blocks, or a smaller --block-size"
    )]
    NoBlock {
        /// Tokens of the pool.
        num_tokens: u64,
        /// Tokens of a block.
        block_size: u32,
    },
    /// Settings that serve in time were looked for, and there are none.
    #[error("no settings reach the goal, at any rate: give more time, or a faster machine")]
    GoalNotReached,
    /// No settings leave room for the longest request of a trace.
    #[error(
        "no settings that were tried leave a KV pool that holds the longest request, of {longest} tokens"
    )]
    PoolTooSmall {
        /// Its prompt and output.
        longest: u32,
    },
    /// Some turns of a conversation that nobody watched failed; what was wrong with each has been said.
    #[error("{num_failed} of {num_turns} turns failed")]
    TurnsFailed {
        /// Turns that failed.
        num_failed: usize,
        /// All of them.
        num_turns: usize,
    },
    /// A file of the command line that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// What a command writes would take the place of what it reads.
    #[error("{}: the output would take the place of a file that is read: give another", path.display())]
    OutputIsInput {
        /// The file.
        path: PathBuf,
    },
    /// A request of a trace that no engine with these limits would take.
    #[error("{}: request {request} can never run: {source}", path.display())]
    NeverRuns {
        /// The trace.
        path: PathBuf,
        /// The place of the request, from 0, in the order of arrivals.
        request: usize,
        /// Why.
        source: quire_scheduler::AddError,
    },
    /// A request of a trace that failed.
    #[error("{}: request {request}: {source}", path.display())]
    TraceRequest {
        /// The trace.
        path: PathBuf,
        /// The place of the request, from 0, in the order of arrivals.
        request: usize,
        /// What came of it.
        source: Box<quire_engine::Error>,
    },
    /// A run that was ended by a signal before its requests were.
    #[error("interrupted: {} holds what was recorded until then", path.display())]
    Interrupted {
        /// The recording.
        path: PathBuf,
    },
    /// A file of the command line that cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A picture that has no pixels.
    #[error("{}: the picture cannot be drawn: {reason}", path.display())]
    Draw {
        /// The file that was to be written.
        path: PathBuf,
        /// What the drawing library says.
        reason: String,
    },
    /// A file that holds no conversation.
    #[error("{}: not a list of messages, nor an object with messages: {source}", path.display())]
    Conversation {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A line of a trace that cannot be used.
    #[error("{}, line {line}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A trace of requests that cannot be used.
    #[error("{}: {source}", path.display())]
    LoadTrace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: quire_scheduler::trace::TraceError,
    },
    /// A cost model that cannot be used.
    #[error("{}: {source}", path.display())]
    CostModel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: quire_scheduler::cost::CostModelError,
    },
    /// A recording that cannot be read, or replayed.
    #[error("{}: {source}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: quire_scheduler::record::RecordingError,
    },
    /// A cost model cannot be fitted.
    #[error("{recordings}: {reason}{hint}")]
    Fit {
        /// The files.
        recordings: String,
        /// Why.
        reason: quire_scheduler::cost::FitError,
        /// What to do.
        hint: &'static str,
    },
    /// A run cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] quire_scheduler::simulate::SimulateError),
    /// A file that does not say what the shapes of a model are.
    #[error("{}: {reason}", path.display())]
    Shapes {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of tuned kernels.
    #[error(transparent)]
    Tuning(#[from] quire_kernels_cuda::TuningError),
    /// A kernel failed where no engine runs.
    #[error(transparent)]
    Kernels(#[from] quire_kernels::Error),
    /// Two traces without an operation that both begin with.
    #[error(
        "the traces have nothing in common, nothing was compared: they are of other models, other requests or other operations, or of none"
    )]
    TracesUnlike,
    /// Two traces that differ, as their report says.
    #[error(
        "the traces differ: {num_beyond} of {num_compared} outputs beyond the tolerance{}",
        if *has_parted { ", then the runs do different things" } else { "" }
    )]
    TracesDiffer {
        /// Outputs that differ by more.
        num_beyond: usize,
        /// All that both have.
        num_compared: usize,
        /// Whether the two stop doing the same before both end.
        has_parted: bool,
    },
    /// The terminal or the pipe that questions come from.
    #[error("standard input: {0}")]
    Stdin(io::Error),
    /// The terminal, pipe or file that results go to.
    #[error("standard output: {0}")]
    Stdout(io::Error),
    /// The threads that the command needs cannot be had.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl Error {
    /// Whether whoever read the results has gone: no reason to say anything.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the command line or its input is at fault, rather than the run.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => is_wrong_path(source),
            Self::Bench(error) => error.is_usage(),
            Self::Source(error) => matches!(error, SourceError::Unknown { .. }),
            // A plan that does not fit names the setting to change.
            Self::Engine(
                quire_engine::Error::Config(_)
                | quire_engine::Error::Memory(_)
                | quire_engine::Error::Tokenizer(_),
            ) => true,
            // No fault of the model: another kind of file was wanted.
            Self::Engine(quire_engine::Error::Model(error)) => {
                matches!(**error, quire_models::Error::DummyFile { .. })
            }
            Self::Engine(error) => matches!(error.kind(), ErrorKind::BadRequest | ErrorKind::NotBuilt),
            Self::TraceRequest { source, .. } => {
                matches!(source.kind(), ErrorKind::BadRequest | ErrorKind::NotBuilt)
            }
            Self::Recording { source, .. } => {
                !matches!(source, RecordingError::Diverged { .. } | RecordingError::Refused { .. })
            }
            Self::Backend(_)
            | Self::LogFilter(_)
            | Self::Input(_)
            | Self::Conversation { .. }
            | Self::Trace { .. }
            | Self::TwoModels { .. }
            | Self::LoadTrace { .. }
            | Self::CostModel { .. }
            | Self::Fit { .. }
            | Self::OutputIsInput { .. }
            | Self::NeverRuns { .. }
            | Self::NoSwapSpace { .. }
            | Self::NoBlock { .. }
            | Self::Simulate(
                SimulateError::Config(_)
                | SimulateError::Cache(_)
                | SimulateError::Trace(_)
                | SimulateError::TooLong { .. },
            )
            | Self::Shapes { .. }
            | Self::Tuning(_)
            | Self::NoChatTemplate { .. }
            | Self::Variable { .. }
            | Self::Certificate(_)
            | Self::ConfigFile { .. }
            | Self::FlagNotBuilt { .. }
            | Self::NoKeys { .. }
            | Self::NotCompiled { .. }
            | Self::TracesEndpoint { .. }
            | Self::Cors(_)
            | Self::Listen { .. } => true,
            _ => false,
        }
    }
}

/// Whether there is nothing at a path, or something else than expected; not whether it can be read.
fn is_wrong_path(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidData, IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory | AlreadyExists | InvalidData)
}

/// An error and what it came from, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors write their cause into their own text.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// A number of things, in words.
pub(crate) fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
