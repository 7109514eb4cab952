//! The engine for programs that wait for their results.

use std::num::NonZero;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use quire_kvcache::{PinError, PinId};
use quire_scheduler::record::FlightRecorder;

use crate::client::ModelInfo;
use crate::core::{Inbox, RequestKey};
use crate::engine::{Engine, EngineParts};
use crate::frontend::{Arrival, Prepared};
use crate::progress::Progress;
use crate::text_length::TextLimit;
use crate::{
    AsyncLlm, BeamSearchParams, ChatMessage, EngineConfig, EngineStats, Error, EventSink, Explainer, Prompt,
    RenderedPrompt, Request, RequestEvent, RequestOutput, RequestStream, Result, SamplingParams,
};

/// Requests that are worth a second thread for their preparation.
const PREPARED_PER_THREAD: usize = 64;

/// An engine in this process. Cheap to clone; the last one dropped ends the engine.
#[derive(Clone, Debug)]
pub struct Llm {
    engine: Arc<Engine>,
}

impl Llm {
    /// Starts an engine from its parts.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the parts do not fit together.
    pub fn start(parts: EngineParts) -> Result<Self> {
        Ok(Self { engine: Arc::new(Engine::start(parts)?) })
    }

    /// Continues all prompts, with the same parameters. Results come in the order of prompts.
    ///
    /// # Errors
    ///
    /// The first error, with the place of its prompt. What is wrong with a request is found before any is queued.
    pub fn generate<P: Into<Prompt>>(
        &self,
        prompts: impl IntoIterator<Item = P>,
        params: &SamplingParams,
    ) -> Result<Vec<RequestOutput>> {
        self.generate_with(prompts.into_iter().map(|prompt| (prompt, params.clone())))
    }

    /// Continues each prompt with parameters of its own. Results come in the order of prompts.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn generate_with<P: Into<Prompt>>(
        &self,
        prompts: impl IntoIterator<Item = (P, SamplingParams)>,
    ) -> Result<Vec<RequestOutput>> {
        let requests = prompts.into_iter().map(|(prompt, params)| Request::new(prompt, params)).collect();
        let prepared = in_list(self.prepare(requests))?;
        in_list(self.run(prepared.into_iter().map(Ok).collect()))
    }

    /// Answers conversations. Results come in their order.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn chat(
        &self,
        conversations: impl IntoIterator<Item = Vec<ChatMessage>>,
        params: &SamplingParams,
    ) -> Result<Vec<RequestOutput>> {
        self.generate(conversations, params)
    }

    /// Searches for the most probable continuations of all prompts: each gives its `beam_width` best, the best first.
    /// Results come in the order of prompts.
    ///
    /// ```
    /// # use quire_engine::{BeamSearchParams, EngineConfig, EngineOptions, EngineParts, Llm, ModelFacts};
    /// # use quire_executor::testing::ScriptedExecutor;
    /// # let capacity = ScriptedExecutor::small_capacity(64, 16);
    /// # let facts = ModelFacts { max_model_len: capacity.max_model_len };
    /// # let config = EngineConfig::resolve(EngineOptions::new("counting"), facts)?;
    /// # let executor = ScriptedExecutor::new(capacity, |_, position| position as u32);
    /// # let llm = Llm::start(EngineParts::new(config, Box::new(executor)))?;
    /// let results = llm.beam_search([vec![70, 71, 72]], &BeamSearchParams::new(2, 4))?;
    /// let best = &results[0].outputs[0];
    /// assert_eq!(best.token_ids.len(), 4);
    /// assert!(best.cumulative_logprob >= results[0].outputs[1].cumulative_logprob);
    /// # Ok::<(), quire_engine::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn beam_search<P: Into<Prompt>>(
        &self,
        prompts: impl IntoIterator<Item = P>,
        params: &BeamSearchParams,
    ) -> Result<Vec<RequestOutput>> {
        let requests = prompts.into_iter().map(|prompt| Request::beam_search(prompt, params.clone()));
        let prepared = in_list(self.prepare(requests.collect()))?;
        in_list(self.run(prepared.into_iter().map(Ok).collect()))
    }

    /// Runs requests, each to its own end: an error is that of its request alone. Results come in the order of
    /// requests.
    pub fn generate_each(&self, requests: Vec<Request>) -> Vec<Result<RequestOutput>> {
        let prepared = self.prepare(requests);
        self.run(prepared)
    }

    /// Starts a request; its events are to be read with [`RequestStream::blocking_next`].
    ///
    /// # Errors
    ///
    /// What is wrong with the request; [`Error::Overloaded`]; [`Error::Stopped`].
    pub fn stream(&self, request: Request) -> Result<RequestStream> {
        self.engine.submit(request)
    }

    /// The tokens of a prompt, as a request with it would have them.
    ///
    /// # Errors
    ///
    /// What is wrong with the prompt.
    pub fn tokenize(&self, prompt: impl Into<Prompt>) -> Result<Vec<u32>> {
        self.engine.frontend.tokenize(prompt.into(), TextLimit::None)
    }

    /// A prompt as the model would read it: a conversation written out, a text as tokens.
    ///
    /// # Errors
    ///
    /// What is wrong with the prompt.
    pub fn render(&self, prompt: impl Into<Prompt>) -> Result<RenderedPrompt> {
        self.engine.frontend.render(prompt.into())
    }

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    ///
    /// [`Error::TokenId`].
    pub fn detokenize(&self, token_ids: &[u32]) -> Result<String> {
        self.engine.frontend.detokenize(token_ids)
    }

    /// What is served.
    pub fn model(&self) -> &ModelInfo {
        &self.engine.model
    }

    /// The configuration in force.
    pub fn config(&self) -> &EngineConfig {
        &self.engine.config
    }

    /// Counters and gauges, as of the last step.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// What the scheduler was asked and has decided, for a replay.
    pub fn flight_recorder(&self) -> FlightRecorder {
        self.engine.recorder.clone()
    }

    /// Keeps the full blocks at the beginning of `prompt` in the prefix cache, until they are unpinned: a system prompt that
    /// every request begins with, say. What the cache does not have is computed first. Such a beginning serves requests
    /// without tenant and cache salt. `max_pinned_bytes` says how much may be kept; 0, the default, is nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Pin`]; what is wrong with the prompt; what computing it failed at.
    pub fn pin_prefix(&self, prompt: impl Into<Prompt>) -> Result<PinId> {
        let (tokens, hashes) = self.engine.frontend.beginning(prompt.into())?;
        match self.engine.inbox.pin(tokens.clone(), hashes.clone()) {
            Err(Error::Pin(PinError::NotCached { num_tokens, .. })) if num_tokens > 0 => {
                self.generate([tokens.clone()], &SamplingParams::greedy(1))?;
                self.engine.inbox.pin(tokens, hashes)
            }
            pinned => pinned,
        }
    }

    /// Lets a pinned beginning go: it stays in the cache until its turn comes. False if there is no such pin.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    pub fn unpin_prefix(&self, pin: PinId) -> Result<bool> {
        self.engine.inbox.unpin(pin)
    }

    /// What asks this engine what its requests wait for, without keeping it running.
    pub fn explainer(&self) -> Explainer {
        Explainer(self.engine.inbox.clone())
    }

    /// The same engine, for asynchronous callers.
    pub fn to_async(&self) -> AsyncLlm {
        AsyncLlm::of(Arc::clone(&self.engine))
    }

    pub(crate) fn of(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Checks, tokenizes and compiles grammars, on several threads where there is much to do.
    fn prepare(&self, requests: Vec<Request>) -> Vec<Result<Prepared>> {
        let prepared = self.prepare_all(requests).into_iter();
        prepared.map(|prepared| prepared.and_then(Prepared::with_grammar)).collect()
    }

    fn prepare_all(&self, requests: Vec<Request>) -> Vec<Result<Prepared>> {
        let frontend = &self.engine.frontend;
        let requests: Vec<_> = frontend.arrivals(requests.len()).into_iter().zip(requests).collect();
        let prepare_all = |requests: Vec<(Arrival, Request)>| -> Vec<Result<Prepared>> {
            requests.into_iter().map(|(arrival, request)| frontend.prepare_as(arrival, request)).collect()
        };
        let num_threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let num_each = requests.len().div_ceil(num_threads).max(PREPARED_PER_THREAD);
        if requests.len() <= num_each {
            return prepare_all(requests);
        }
        let mut requests = requests.into_iter();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            loop {
                let part: Vec<_> = requests.by_ref().take(num_each).collect();
                if part.is_empty() {
                    break;
                }
                threads.push(scope.spawn(|| prepare_all(part)));
            }
            threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught inside")).collect()
        })
    }

    /// Runs what is prepared. As many requests are queued as may wait; the others follow as those end.
    fn run(&self, prepared: Vec<Result<Prepared>>) -> Vec<Result<RequestOutput>> {
        let (events, ends) = mpsc::channel();
        let mut progress = Progress::start(prepared.len());
        let mut results: Vec<Option<Result<RequestOutput>>> = Vec::new();
        results.resize_with(prepared.len(), || None);
        let mut open =
            OpenRequests { inbox: &self.engine.inbox, keys: vec![None; prepared.len()], num_open: 0 };
        let mut prepared = prepared.into_iter().enumerate().peekable();
        // What is queued at first is seen at once: the same batch is scheduled alike, every time.
        let mut hold = Some(self.engine.inbox.hold());
        loop {
            while let Some((_, next)) = prepared.peek() {
                let place = self.engine.inbox.reserve(next.as_ref().map_or(1, Prepared::num_seqs));
                if matches!(place, Err(Error::Overloaded { .. })) && open.num_open > 0 {
                    break;
                }
                let Some((index, prepared)) = prepared.next() else { break };
                match place.and_then(|place| Ok((place, prepared?))) {
                    Ok((place, prepared)) => {
                        let sink = IndexedSink { index, events: events.clone(), has_ended: false };
                        open.insert(index, self.engine.inbox.submit(place, prepared, Box::new(sink)));
                    }
                    Err(error) => results[index] = Some(Err(error)),
                }
            }
            drop(hold.take());
            if open.num_open == 0 {
                break;
            }
            let (index, result) = ends.recv().expect("this function holds a sender itself");
            open.remove(index);
            let result = result.unwrap_or_else(|| Err(self.engine.inbox.stopped()));
            progress.note(&result);
            results[index] = Some(result);
        }
        results.into_iter().map(|result| result.expect("all requests have ended")).collect()
    }
}

/// What has been queued and not ended. Given up if the caller does not wait for it, as in a panic.
struct OpenRequests<'a> {
    inbox: &'a Inbox,
    keys: Vec<Option<RequestKey>>,
    num_open: usize,
}

impl OpenRequests<'_> {
    fn insert(&mut self, index: usize, key: RequestKey) {
        self.keys[index] = Some(key);
        self.num_open += 1;
    }

    fn remove(&mut self, index: usize) {
        self.keys[index] = None;
        self.num_open -= 1;
    }
}

impl Drop for OpenRequests<'_> {
    fn drop(&mut self) {
        self.keys.iter().flatten().for_each(|&key| self.inbox.abort(key));
    }
}

/// Hands on the end of a request, with its place in the list: `None` if the engine has ended without one.
struct IndexedSink {
    index: usize,
    events: mpsc::Sender<(usize, Option<Result<RequestOutput>>)>,
    has_ended: bool,
}

impl IndexedSink {
    fn end(&mut self, result: Option<Result<RequestOutput>>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            // Nobody listens any more where the caller has panicked.
            let _ = self.events.send((self.index, result));
        }
    }
}

impl EventSink for IndexedSink {
    fn send_at(&mut self, event: RequestEvent, _moment: Instant) {
        match event {
            RequestEvent::PromptLogprobs(_) | RequestEvent::Delta(_) | RequestEvent::SoFar(_) => {}
            RequestEvent::Finished(output) => self.end(Some(Ok(*output))),
            RequestEvent::Failed(error) => self.end(Some(Err(error))),
        }
    }

    fn wants_deltas(&self) -> bool {
        false
    }
}

impl Drop for IndexedSink {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// All results, or the first error with its place.
fn in_list<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let placed = |(index, result): (usize, Result<T>)| {
        result.map_err(|source| Error::InList { index, source: Box::new(source) })
    };
    results.into_iter().enumerate().map(placed).collect()
}

#[cfg(test)]
mod tests {
    use quire_executor::testing::ScriptedExecutor;

    use super::*;
    use crate::{EngineConfig, EngineOptions, ModelFacts};

    /// More than one thread prepares.
    const NUM_REQUESTS: usize = 3 * PREPARED_PER_THREAD;

    fn llm(seed: u64) -> Llm {
        let options = EngineOptions::new("scripted").seed(seed);
        let config = EngineConfig::resolve(options, ModelFacts { max_model_len: 256 }).unwrap();
        let executor = ScriptedExecutor::new(ScriptedExecutor::small_capacity(64, 4), |_, _| 7);
        Llm::start(EngineParts::new(config, Box::new(executor))).unwrap()
    }

    fn requests() -> Vec<Request> {
        let request =
            |id| Request::new(vec![id as u32], SamplingParams { seed: None, ..SamplingParams::default() });
        (0..NUM_REQUESTS).map(request).collect()
    }

    #[test]
    fn a_long_list_has_the_same_seeds_each_time_whichever_thread_prepares() {
        let seeds = || -> Vec<u64> {
            let prepared = llm(11).prepare(requests());
            prepared.into_iter().map(|prepared| prepared.unwrap().sampling.seed).collect()
        };
        let first = seeds();
        assert!((1..5).all(|_| seeds() == first));
        assert!(first.iter().collect::<std::collections::HashSet<_>>().len() == NUM_REQUESTS);
    }

    #[test]
    fn a_long_list_arrives_as_one_so_that_its_order_is_that_of_the_list() {
        let prepared = llm(11).prepare(requests());
        let mut arrivals = prepared.into_iter().map(|prepared| prepared.unwrap().sequence.arrival);
        let first = arrivals.next().unwrap();
        assert!(arrivals.all(|arrival| arrival == first));
    }
}
