//! An engine that runs: the frontend, and the handle of the thread.

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use quire_executor::{Executor, LogitsProcessors, MemoryReport};
use quire_kvcache::{HashKey, KvCacheConfig, KvCacheManager, KvGroup};
use quire_models::Tokenizer;
use quire_scheduler::record::FlightRecorder;
use quire_scheduler::{Fcfs, Preemption, Scheduler, SchedulerConfig, SchedulerPolicy};

use crate::background::Background;
use crate::checked::{EosTokens, ParamLimits};
use crate::client::ModelInfo;
use crate::clock::Clock;
use crate::core::{CoreParts, EngineCore, Inbox, Place, SharedStats, StepOrder};
use crate::frontend::{Frontend, Prepared};
use crate::recording::save_recording;
use crate::renderer::PromptRenderer;
use crate::seeds::{Seeds, random_u64};
use crate::structured::GrammarCompiler;
use crate::template_places::TemplatePlaces;
use crate::{
    ConfigError, EngineConfig, EngineStats, Error, EventSink, PreemptionMode, PreparedRequest, Request,
    RequestHandle, RequestStream, Result, SamplingParams,
};

/// How long the end of the thread is waited for: one that hangs in a device must not hang the program.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// What an engine is made of, for those who assemble one themselves: with an executor of their own, for instance.
pub struct EngineParts {
    /// The configuration, with the length fitted to the executor's pool.
    pub config: EngineConfig,
    /// The model's architecture, to be told.
    pub architecture: String,
    /// The tokenizer; without one there are tokens only.
    pub tokenizer: Option<Tokenizer>,
    /// The source of the chat template.
    pub chat_template: Option<String>,
    /// Tokens that end a text.
    pub eos: EosTokens,
    /// What parameters are where a request does not give them.
    pub default_params: SamplingParams,
    /// How long a grammar may take to compile; 0.8 s, so that its error is there within a second, or more where the
    /// processor has other things to do.
    pub grammar_time_limit: Duration,
    /// Who runs when.
    pub policy: Box<dyn SchedulerPolicy>,
    /// What requests may have their logits edited by: the same that the executor has.
    pub processors: LogitsProcessors,
    /// What computes.
    pub executor: Box<dyn Executor>,
}

impl EngineParts {
    /// Parts without text: prompts are token ids, served in the order of their arrival.
    pub fn new(config: EngineConfig, executor: Box<dyn Executor>) -> Self {
        Self {
            config,
            architecture: "unknown".to_owned(),
            tokenizer: None,
            chat_template: None,
            eos: EosTokens::default(),
            default_params: SamplingParams::default(),
            grammar_time_limit: GrammarCompiler::TIME_LIMIT,
            policy: Box::new(Fcfs),
            processors: LogitsProcessors::new(),
            executor,
        }
    }
}

/// A running engine. Dropping it ends it; what is open then fails with [`Error::Stopped`].
pub(crate) struct Engine {
    pub(crate) frontend: Frontend,
    pub(crate) inbox: Inbox,
    pub(crate) model: ModelInfo,
    pub(crate) config: EngineConfig,
    pub(crate) memory: Option<MemoryReport>,
    pub(crate) recorder: FlightRecorder,
    pub(crate) background: Background,
    pub(crate) template_places: TemplatePlaces,
    stats: SharedStats,
    /// Disconnected when the thread has ended.
    ended: parking_lot::Mutex<mpsc::Receiver<()>>,
}

impl Engine {
    /// Puts the parts together and starts the thread.
    pub(crate) fn start(parts: EngineParts) -> Result<Self> {
        let scheduler = scheduler(&parts.config, parts.policy, parts.executor.as_ref())?;
        let (cache, max_model_len) = (scheduler.cache(), scheduler.effective_config().max_model_len as usize);
        let config = parts.config.fitted(max_model_len);
        let (vocab_size, memory) = (parts.executor.capacity().vocab_size, parts.executor.memory().cloned());
        let renderer = PromptRenderer::new(parts.tokenizer, parts.chat_template, vocab_size)?;
        let decoder = renderer.decoder().clone();
        let time_limit = parts.grammar_time_limit;
        let grammars = GrammarCompiler::with_time_limit(decoder.shared_tokenizer(), vocab_size, time_limit);
        let clock = Clock::start();
        let model = ModelInfo {
            name: config.served_model_name.clone(),
            path: config.model.display().to_string(),
            architecture: parts.architecture,
            max_model_len,
            vocab_size,
            eos_token_ids: parts.eos.all().into_iter().collect(),
            has_chat_template: renderer.has_chat_template(),
            default_params: parts.default_params,
        };
        let frontend = Frontend {
            grammars: grammars.clone(),
            renderer,
            limits: param_limits(&config, vocab_size, parts.processors, parts.eos),
            max_model_len,
            capacity: cache.capacity(),
            hasher: cache.hasher(),
            seeds: config.given_seed().map_or_else(Seeds::random, Seeds::from),
            clock,
        };
        let (core, inbox, stats) = EngineCore::new(CoreParts {
            scheduler,
            executor: parts.executor,
            order: if config.async_scheduling { StepOrder::Overlapped } else { StepOrder::Plain },
            decoder,
            grammars,
            clock,
            max_num_waiting: config.max_num_waiting,
        });
        let recorder = core.recorder();
        let ended = parking_lot::Mutex::new(spawn(core, config.recording_folder())?);
        let (background, template_places) = (Background::default(), TemplatePlaces::new());
        Ok(Self {
            frontend,
            inbox,
            model,
            config,
            memory,
            recorder,
            background,
            template_places,
            stats,
            ended,
        })
    }

    /// Checks, prepares and queues a request. The caller waits for template and tokenizer.
    pub(crate) fn submit(&self, request: Request) -> Result<RequestStream> {
        let place = self.inbox.reserve(request.num_seqs())?;
        let prepared = self.frontend.prepare(request)?;
        let (sender, events) = RequestStream::events();
        Ok(RequestStream::new(events, queue(&self.inbox, place, prepared, Box::new(sender))))
    }

    /// Checks and prepares a request, to be queued later. The caller waits for the form of its output as well.
    pub(crate) fn prepare(&self, request: Request) -> Result<PreparedRequest> {
        let place = self.inbox.reserve(request.num_seqs())?;
        let mut prepared = self.frontend.prepare(request)?.with_grammar()?;
        let (prompt, inbox) = (std::mem::take(&mut prepared.sequence.prompt), self.inbox.clone());
        Ok(PreparedRequest::new(prompt, move |prompt, sink| {
            inbox.status().check()?;
            prepared.sequence.prompt = prompt;
            Ok(queue(&inbox, place, prepared, sink))
        }))
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.stats.lock().clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inbox.stop();
        if self.ended.lock().recv_timeout(SHUTDOWN_PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(target: "quire::engine", "the engine's thread still waits for the device and is left behind");
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("model", &self.model.name).finish_non_exhaustive()
    }
}

/// Queues a request.
fn queue(inbox: &Inbox, place: Place, prepared: Prepared, sink: Box<dyn EventSink>) -> RequestHandle {
    let (key, aborting) = (inbox.next_key(), inbox.clone());
    inbox.submit_as(key, place, prepared, sink);
    RequestHandle::new(move || aborting.abort(key))
}

/// Runs the core on a thread of its own. A panic there, a bug, ends the engine and all its requests, not the program.
fn spawn(core: EngineCore, recordings: PathBuf) -> Result<mpsc::Receiver<()>> {
    let (alive, ended) = mpsc::channel();
    let (status, recorder) = (core.status().clone(), core.recorder());
    let run = move || {
        let _alive: mpsc::Sender<()> = alive;
        let ran = crate::frontend::guarded("the engine's thread", || {
            if core.run().is_err() {
                save_recording(&recorder, &recordings);
            }
            Ok(())
        });
        if let Err(error) = ran {
            save_recording(&recorder, &recordings);
            status.stop(Error::stopped(error.to_string()));
        }
    };
    let spawned = std::thread::Builder::new().name("quire-engine".to_owned()).spawn(run);
    spawned.map(|_| ended).map_err(|error| Error::stopped(format!("its thread cannot be started: {error}")))
}

/// What parameters are checked against.
fn param_limits(
    config: &EngineConfig,
    vocab_size: usize,
    processors: LogitsProcessors,
    eos: EosTokens,
) -> ParamLimits {
    ParamLimits {
        vocab_size,
        max_logprobs: config.max_logprobs.of(vocab_size),
        logprobs_mode: config.logprobs_mode,
        processors,
        eos,
    }
}

/// The scheduler over the executor's pool. Limits of the executor go before those of the configuration.
fn scheduler(
    config: &EngineConfig,
    policy: Box<dyn SchedulerPolicy>,
    executor: &dyn Executor,
) -> Result<Scheduler, ConfigError> {
    let capacity = executor.capacity();
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let cache = KvCacheConfig {
        enable_prefix_caching: config.enable_prefix_caching,
        num_swap_blocks: narrow(capacity.num_swap_blocks),
        max_pinned_bytes: config.max_pinned_bytes.0,
        hash_key: HashKey(random_u64(), random_u64()),
        groups: vec![KvGroup { block_bytes: capacity.block_bytes as u64, ..KvGroup::default() }],
        ..KvCacheConfig::new(narrow(capacity.num_blocks), narrow(capacity.block_size))
    };
    let limits = SchedulerConfig {
        max_num_batched_tokens: narrow(config.max_num_batched_tokens.min(capacity.max_num_batched_tokens)),
        max_num_seqs: narrow(config.max_num_seqs.min(capacity.max_num_seqs)),
        max_model_len: narrow(config.max_model_len().min(capacity.max_model_len)),
        enable_chunked_prefill: config.enable_chunked_prefill,
        max_prefill_chunk: config.prefill_chunk_limit().map(narrow),
        max_num_partial_prefills: config.max_num_partial_prefills.map(narrow),
        capacity_mode: config.capacity_mode,
        preemption: match config.preemption_mode {
            PreemptionMode::Auto => Preemption::Auto,
            PreemptionMode::Recompute => Preemption::Recompute,
            PreemptionMode::Swap => Preemption::Swap,
        },
    };
    Ok(Scheduler::new(limits, policy, KvCacheManager::new(cache)?)?)
}

#[cfg(test)]
mod tests {
    use quire_executor::testing::ScriptedExecutor;

    use super::*;
    use crate::text::Detokenizer;
    use crate::{EngineOptions, ModelFacts, RequestEvent};

    struct Panicking(usize);

    impl Detokenizer for Panicking {
        fn push(&mut self, _token_id: u32, text: &mut String) {
            self.0 += 1;
            assert!(self.0 < 3, "the third token is too much");
            text.push('x');
        }

        fn flush(&mut self, _text: &mut String) {}
    }

    fn engine(overlapped: bool) -> Engine {
        let capacity = ScriptedExecutor::small_capacity(64, 4);
        let options = EngineOptions::new("scripted").async_scheduling(overlapped);
        let config = EngineConfig::resolve(options, ModelFacts { max_model_len: 256 }).unwrap();
        let executor = ScriptedExecutor::new(capacity, |prompt, position| prompt[0] + position as u32);
        Engine::start(EngineParts::new(config, Box::new(executor))).unwrap()
    }

    #[test]
    fn br_42_a_panic_in_one_request_is_its_error_alone() {
        for overlapped in [false, true] {
            let engine = engine(overlapped);
            let streams = [10, 20, 30].map(|id| {
                let request = Request::new(vec![id], SamplingParams::greedy(8));
                let mut prepared = engine.frontend.prepare(request).unwrap();
                if id == 20 {
                    prepared.detokenizer = Box::new(Panicking(0));
                }
                let (sender, stream) = RequestStream::channel(|| ());
                engine.inbox.submit(engine.inbox.reserve(1).unwrap(), prepared, Box::new(sender));
                stream
            });
            let last =
                |mut stream: RequestStream| std::iter::from_fn(|| stream.blocking_next()).last().unwrap();
            let [first, second, third] = streams.map(last);
            for (event, id) in [(first, 10), (third, 30)] {
                let RequestEvent::Finished(output) = event else { panic!("{event:?}") };
                assert_eq!(output.outputs[0].token_ids, (id + 1..id + 9).collect::<Vec<u32>>());
            }
            let RequestEvent::Failed(Error::Panicked { message, .. }) = second else { panic!("{second:?}") };
            assert_eq!(message, "the third token is too much");
            assert!(engine.submit(Request::new(vec![1], SamplingParams::greedy(1))).is_ok());
        }
    }

    #[test]
    fn without_a_tokenizer_each_token_comes_at_once() {
        let engine = engine(true);
        let mut stream = engine.submit(Request::new(vec![10], SamplingParams::greedy(6))).unwrap();
        let deltas: Vec<Vec<u32>> = std::iter::from_fn(|| stream.blocking_next())
            .filter_map(|event| match event {
                RequestEvent::Delta(delta) => Some(delta.token_ids),
                _ => None,
            })
            .collect();
        assert_eq!(deltas, (11..17).map(|id| vec![id]).collect::<Vec<_>>());
    }

    #[test]
    fn a_device_that_hangs_does_not_hang_the_end() {
        let capacity = ScriptedExecutor::small_capacity(64, 4);
        let executor = ScriptedExecutor::new(capacity, |_, _| 5);
        let control = executor.control();
        let config =
            EngineConfig::resolve(EngineOptions::new("x"), ModelFacts { max_model_len: 256 }).unwrap();
        let engine = Engine::start(EngineParts::new(config, Box::new(executor))).unwrap();
        control.hold();
        let mut stream = engine.submit(Request::new(vec![1], SamplingParams::greedy(8))).unwrap();
        drop(engine);
        control.go_on();
        let last = std::iter::from_fn(|| stream.blocking_next()).last().unwrap();
        assert!(matches!(last, RequestEvent::Failed(Error::Stopped { .. })), "{last:?}");
    }
}
