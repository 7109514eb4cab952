//! Compiles grammars, beside the engine's thread, each once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use parking_lot::Mutex;
use quire_models::Tokenizer;

use super::error::GrammarError;
use super::grammar::Grammar;
use super::params::StructuredOutputs;
use super::source::GrammarSource;
use super::special::SpecialTokens;
use super::thought::Thought;
use super::vocabulary::token_tree;
use crate::chat::{ReasoningFormat, ReasoningPlace};
use crate::frontend::guarded;

/// Compilations at a time.
const MAX_RUNNING: usize = 2;
/// Compilations past their time of which the end is not awaited; with more, no other is started.
const MAX_HANGING: usize = 4;
/// Grammars that are kept.
const MAX_KEPT: usize = 128;
/// What a compilation may need at worst, for each of the parts that [`GrammarSource::check_size`] lets through. It is
/// memory only as far as it is used.
const STACK_BYTES: usize = 256 << 20;

type Outcome = Result<Grammar, GrammarError>;
type Waiter = Box<dyn FnOnce(Outcome) + Send>;

/// Compiles grammars for one model, on threads of its own, each once. Cheap to clone.
///
/// An engine has one. By itself it serves those who choose tokens in their own way:
///
/// ```
/// use std::sync::Arc;
///
/// use quire_engine::{GrammarCompiler, StructuredOutputs};
/// use quire_models::{Tokenizer, testing::TinyTokenizer};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("tokenizer.json");
/// std::fs::write(&path, TinyTokenizer::json().to_string())?;
/// let tokenizer = Arc::new(Tokenizer::open(&path)?);
///
/// let compiler = GrammarCompiler::new(Some(Arc::clone(&tokenizer)), tokenizer.num_ids());
/// let form = StructuredOutputs { regex: Some("[ab]c?".to_owned()), ..Default::default() };
/// let mut state = compiler.compile(&form)?.start();
///
/// let [a, c] = [b'a', b'c'].map(TinyTokenizer::byte);
/// let end = TinyTokenizer::EOS;
/// let mask = state.mask([end])?;
/// assert!(mask.allows(a) && !mask.allows(c) && !mask.allows(end));
/// assert!(!state.take(a)?, "a c may follow");
/// let mask = state.mask([end])?;
/// assert!(!mask.allows(a) && mask.allows(c) && mask.allows(end));
/// assert!(state.take(c)?, "nothing may follow");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GrammarCompiler(Arc<Shared>);

struct Shared {
    tokenizer: Option<Arc<Tokenizer>>,
    vocab_size: usize,
    time_limit: Duration,
    /// Made with the first grammar.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    known: HashMap<Arc<GrammarSource>, Job>,
    queued: VecDeque<Arc<GrammarSource>>,
    /// Those that are done, the one asked for last at the end.
    kept: VecDeque<Arc<GrammarSource>>,
    num_running: usize,
    num_hanging: usize,
}

enum Job {
    Queued(Vec<Waiter>),
    /// The time counts from when the tree of tokens is there.
    Running {
        since: Option<Instant>,
        waiters: Vec<Waiter>,
    },
    Done(Outcome),
}

/// A grammar, ready or on its way.
#[derive(Clone)]
pub(crate) struct GrammarTicket {
    source: Arc<GrammarSource>,
    compiler: GrammarCompiler,
}

impl GrammarCompiler {
    /// How long a compilation may take where nothing else was said: its error is there within a second.
    pub const TIME_LIMIT: Duration = Duration::from_millis(800);

    /// For the tokens of a tokenizer; the model may have more ids than it.
    pub fn new(tokenizer: Option<Arc<Tokenizer>>, vocab_size: usize) -> Self {
        Self::with_time_limit(tokenizer, vocab_size, Self::TIME_LIMIT)
    }

    /// The same, with a limit on the time that a compilation may take in place of 0.8 s.
    pub fn with_time_limit(
        tokenizer: Option<Arc<Tokenizer>>,
        vocab_size: usize,
        time_limit: Duration,
    ) -> Self {
        let (factory, jobs) = (OnceLock::new(), Mutex::default());
        Self(Arc::new(Shared { tokenizer, vocab_size, time_limit, factory, jobs }))
    }

    /// Compiles a form, or finds it among those that are known; waits for that, a second at most. Its reasoning is that of a
    /// prompt which says nothing of it.
    ///
    /// # Errors
    ///
    /// [`Error::Param`](crate::Error::Param) and [`Error::Grammar`](crate::Error::Grammar): what is wrong with it.
    pub fn compile(&self, form: &StructuredOutputs) -> crate::Result<Grammar> {
        let thought =
            form.reasoning.map_or(Thought::None, |format| Thought::of(format, ReasoningPlace::Unsaid));
        Ok(self.ticket(Arc::new(form.check()?.after(thought)))?.wait()?)
    }

    /// Asks for a grammar. It is compiled from now on, unless it is known.
    ///
    /// # Errors
    ///
    /// What is wrong with it, as far as that is known at once.
    pub(crate) fn ticket(&self, source: Arc<GrammarSource>) -> Result<GrammarTicket, GrammarError> {
        source.check_size()?;
        if self.0.tokenizer.is_none() {
            return Err(GrammarError::NoTokenizer);
        }
        let ticket = GrammarTicket { source, compiler: self.clone() };
        self.0.jobs.lock().ask(&ticket.source)?;
        self.start_queued();
        Ok(ticket)
    }

    /// Fails the compilations that are past their time. Whoever waits calls it now and then.
    pub(crate) fn expire(&self) {
        let mut failed = Vec::new();
        let mut jobs = self.0.jobs.lock();
        let is_over = |job: &Job| match job {
            Job::Running { since: Some(since), .. } => since.elapsed() > self.0.time_limit,
            _ => false,
        };
        let over = jobs.known.iter().filter(|(_, job)| is_over(job)).map(|(source, _)| source.clone());
        for source in over.collect::<Vec<_>>() {
            let limit_ms = self.0.time_limit.as_millis() as u64;
            let error = GrammarError::TooSlow { field: source.field(), limit_ms };
            failed.extend(jobs.finish(&source, Err(error)));
            jobs.num_hanging += 1;
        }
        drop(jobs);
        failed.into_iter().for_each(|(waiter, outcome)| waiter(outcome));
        self.start_queued();
    }

    fn start_queued(&self) {
        loop {
            let next = self.0.jobs.lock().start_next();
            let Some(source) = next else { return };
            self.spawn(source);
        }
    }

    fn spawn(&self, source: Arc<GrammarSource>) {
        let (this, of_thread) = (self.clone(), source.clone());
        let compile = move || {
            let outcome = this.make(&of_thread);
            this.done(&of_thread, outcome);
        };
        let thread = std::thread::Builder::new().name("quire-grammar".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(compile) {
            self.done(&source, Err(source.invalid(format!("there is no thread to compile it: {error}"))));
        }
    }

    fn make(&self, source: &GrammarSource) -> Outcome {
        let factory = self.0.factory.get_or_init(|| self.make_factory()).as_ref().map_err(Clone::clone)?;
        if let Some(Job::Running { since, .. }) = self.0.jobs.lock().known.get_mut(source) {
            *since = Some(Instant::now());
        }
        let mut compiled = None;
        let ran = guarded("compiling a grammar", || {
            compiled = Some(self.try_compile(factory, source));
            Ok(())
        });
        let panicked = |error: crate::Error| Err(source.invalid(error.to_string()));
        ran.map_or_else(panicked, |()| compiled.unwrap_or(Err(source.invalid("nothing came of it"))))
    }

    fn try_compile(&self, factory: &ParserFactory, source: &GrammarSource) -> Outcome {
        let started = Instant::now();
        let special = self.special_tokens();
        let mut grammar = self.compile_form(factory, source, &special)?;
        if source.thought == Thought::Optional && source.may_begin_with_a_mark() {
            let alone = self.compile_form(factory, &source.after(Thought::None), &special)?;
            if may_begin_with_a_mark(factory.tok_env(), &alone) {
                grammar = self.compile_form(factory, &source.after(Thought::Marked), &special)?;
            }
        }
        let (field, num_bytes, ms) = (source.field(), source.text.len(), started.elapsed().as_millis());
        tracing::debug!(target: "quire::engine", field, num_bytes, ms, "compiled a grammar");
        Ok(grammar)
    }

    /// A schema that the compiler does not take is tried in other words; the reason is that of the words as given.
    fn compile_form(
        &self,
        factory: &ParserFactory,
        source: &GrammarSource,
        special: &SpecialTokens,
    ) -> Outcome {
        let compile = |grammar| self.compile_one(factory, source, grammar);
        let as_given = source.to_grammar(special).and_then(compile);
        as_given.or_else(|refusal| {
            let mut others = source.in_other_words(special).into_iter();
            others.find_map(|grammar| compile(grammar).ok()).ok_or(refusal)
        })
    }

    /// A grammar counts as compiled when it has shown what may come first.
    fn compile_one(
        &self,
        factory: &ParserFactory,
        source: &GrammarSource,
        grammar: TopLevelGrammar,
    ) -> Outcome {
        let matcher = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(source.invalid(error));
        }
        let grammar = Grammar::new(source.field(), self.0.vocab_size, matcher);
        grammar.start().mask([])?;
        Ok(grammar)
    }

    fn special_tokens(&self) -> SpecialTokens {
        self.0.tokenizer.as_deref().map(SpecialTokens::of).unwrap_or_default()
    }

    fn make_factory(&self) -> Result<ParserFactory, GrammarError> {
        let tokenizer = self.0.tokenizer.as_ref().ok_or(GrammarError::NoTokenizer)?;
        let tree = token_tree(tokenizer, self.0.vocab_size)?;
        let mut factory = ParserFactory::new_simple(&tree).map_err(|_| GrammarError::Tokenizer)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(factory)
    }

    fn done(&self, source: &Arc<GrammarSource>, outcome: Outcome) {
        let mut jobs = self.0.jobs.lock();
        let finished = match jobs.known.get(source) {
            Some(Job::Running { .. }) => jobs.finish(source, outcome),
            // It was given up.
            _ => {
                jobs.num_hanging -= 1;
                Vec::new()
            }
        };
        drop(jobs);
        finished.into_iter().for_each(|(waiter, outcome)| waiter(outcome));
        self.start_queued();
    }
}

impl Jobs {
    /// Queues a job, unless it is known.
    fn ask(&mut self, source: &Arc<GrammarSource>) -> Result<(), GrammarError> {
        match self.known.get(source) {
            Some(Job::Done(Err(error))) => Err(error.clone()),
            Some(Job::Done(Ok(_))) => {
                self.touch(source);
                Ok(())
            }
            Some(_) => Ok(()),
            None if self.num_hanging >= MAX_HANGING => Err(GrammarError::Stuck { given: self.num_hanging }),
            None => {
                self.queue(source, Vec::new());
                Ok(())
            }
        }
    }

    fn queue(&mut self, source: &Arc<GrammarSource>, waiters: Vec<Waiter>) {
        self.known.insert(Arc::clone(source), Job::Queued(waiters));
        self.queued.push_back(Arc::clone(source));
    }

    /// Marks the next job as running, where one may.
    fn start_next(&mut self) -> Option<Arc<GrammarSource>> {
        if self.num_running >= MAX_RUNNING {
            return None;
        }
        let source = self.queued.pop_front()?;
        let Some(Job::Queued(waiters)) = self.known.remove(&source) else {
            unreachable!("what is in the queue is queued")
        };
        self.known.insert(Arc::clone(&source), Job::Running { since: None, waiters });
        self.num_running += 1;
        Some(source)
    }

    /// Notes what became of a running job; who is to be told.
    fn finish(&mut self, source: &Arc<GrammarSource>, outcome: Outcome) -> Vec<(Waiter, Outcome)> {
        self.num_running -= 1;
        let before = self.known.insert(source.clone(), Job::Done(outcome.clone()));
        self.kept.push_back(source.clone());
        while self.kept.len() > MAX_KEPT {
            if let Some(oldest) = self.kept.pop_front() {
                self.known.remove(&oldest);
            }
        }
        let Some(Job::Running { waiters, .. }) = before else { return Vec::new() };
        waiters.into_iter().map(|waiter| (waiter, outcome.clone())).collect()
    }

    /// Notes that a grammar was asked for: it goes last.
    fn touch(&mut self, source: &Arc<GrammarSource>) {
        if let Some(place) = self.kept.iter().position(|kept| kept == source) {
            self.kept.remove(place);
            self.kept.push_back(source.clone());
        }
    }
}

impl GrammarTicket {
    /// Has `waiter` told what becomes of it, by another thread or at once.
    pub(crate) fn when_done(&self, waiter: impl FnOnce(Outcome) + Send + 'static) {
        let mut jobs = self.compiler.0.jobs.lock();
        match jobs.known.get_mut(&self.source) {
            Some(Job::Queued(waiters) | Job::Running { waiters, .. }) => waiters.push(Box::new(waiter)),
            Some(Job::Done(outcome)) => {
                let outcome = outcome.clone();
                drop(jobs);
                waiter(outcome);
            }
            // It was done and forgotten since.
            None => {
                jobs.queue(&self.source, vec![Box::new(waiter)]);
                drop(jobs);
                self.compiler.start_queued();
            }
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    ///
    /// What is wrong with the grammar.
    pub(crate) fn wait(&self) -> Outcome {
        let (sender, receiver) = mpsc::channel();
        self.when_done(move |outcome| drop(sender.send(outcome)));
        loop {
            match receiver.recv_timeout(self.compiler.0.time_limit / 40) {
                Ok(outcome) => return outcome,
                Err(mpsc::RecvTimeoutError::Timeout) => self.compiler.expire(),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(self.source.invalid("it was given up"));
                }
            }
        }
    }
}

/// Whether a text of a grammar may begin as reasoning does, to who reads it.
fn may_begin_with_a_mark(tree: &TokEnv, grammar: &Grammar) -> bool {
    ["", " ", "\n", "\n\n"].into_iter().any(|before| {
        let text = [before, ReasoningFormat::OPEN].concat();
        grammar.start().admits(&tree.tok_trie().greedy_tokenize(text.as_bytes()))
    })
}

/// Bounds on what a grammar may take: to compile it, about 20 ms; for a mask, a few.
fn limits() -> ParserLimits {
    ParserLimits {
        step_lexer_fuel: 100_000,
        step_max_items: 20_000,
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").field("vocab_size", &self.0.vocab_size).finish_non_exhaustive()
    }
}
