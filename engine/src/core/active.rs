//! The requests inside the engine: what each has given so far.

use std::collections::BTreeMap;

use quire_executor::RowSampling;
use quire_scheduler::{FinishedSequence, SeqId, Time};

use super::inbox::{RequestKey, WaitingSlot};
use crate::checked::CheckedParams;
use crate::clock::ms_between;
use crate::output::{
    CompletionOutput, Delta, FinishReason, RequestEvent, RequestMetrics, RequestOutput, StopReason,
    TokenLogprob, TokenLogprobs,
};
use crate::request::RequestId;
use crate::text::{Detokenizer, StopOutcome, StopStrings, TextDecoder};
use crate::{Error, EventSender};

/// Where a request's events go. One that is dropped before an end was sent must tell its listener so: the engine's
/// thread may be gone before it has seen a request.
pub(crate) trait EventSink: Send {
    /// Takes an event. Whoever listened may be gone; that is no error.
    fn send(&mut self, event: RequestEvent);

    /// Whether pieces are wanted, and not the end alone.
    fn wants_deltas(&self) -> bool {
        true
    }
}

impl EventSink for EventSender {
    fn send(&mut self, event: RequestEvent) {
        Self::send(self, event);
    }
}

/// All requests of the engine, by sequence. With `n` = 1 a request is one sequence.
#[derive(Default)]
pub(super) struct Requests {
    by_seq: BTreeMap<SeqId, ActiveRequest>,
    by_key: BTreeMap<RequestKey, SeqId>,
}

impl Requests {
    pub(super) fn insert(&mut self, seq: SeqId, request: ActiveRequest) {
        self.by_key.insert(request.key, seq);
        self.by_seq.insert(seq, request);
    }

    pub(super) fn get(&self, seq: SeqId) -> Option<&ActiveRequest> {
        self.by_seq.get(&seq)
    }

    pub(super) fn get_mut(&mut self, seq: SeqId) -> Option<&mut ActiveRequest> {
        self.by_seq.get_mut(&seq)
    }

    pub(super) fn seq_of(&self, key: RequestKey) -> Option<SeqId> {
        self.by_key.get(&key).copied()
    }

    /// The sequences of the requests that their clients call by that name. O(requests).
    pub(super) fn named(&self, id: &RequestId) -> Vec<SeqId> {
        self.by_seq.iter().filter(|(_, request)| request.id == *id).map(|(seq, _)| *seq).collect()
    }

    pub(super) fn remove(&mut self, seq: SeqId) -> Option<ActiveRequest> {
        let request = self.by_seq.remove(&seq)?;
        self.by_key.remove(&request.key);
        Some(request)
    }

    /// Takes all of them out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = ActiveRequest> + use<> {
        self.by_key.clear();
        std::mem::take(&mut self.by_seq).into_values()
    }
}

/// One request: how its tokens become text, and what has become of them. The tokens themselves lie in the scheduler.
pub(super) struct ActiveRequest {
    pub(super) id: RequestId,
    pub(super) key: RequestKey,
    pub(super) num_prompt_tokens: u32,
    pub(super) sampling: RowSampling,
    pub(super) arrival: Time,
    /// Its place among those that wait, given back when it first runs.
    pub(super) waiting: Option<WaitingSlot>,
    pub(super) sink: Box<dyn EventSink>,
    prompt: Option<String>,
    params: CheckedParams,
    detokenizer: Box<dyn Detokenizer>,
    stop: StopStrings,
    /// Whether pieces are wanted.
    is_streamed: bool,
    num_tokens: u32,
    text: String,
    /// What has not been sent.
    unsent: Delta,
    logprobs: Option<Vec<TokenLogprobs>>,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    first_token: Option<Time>,
    last_token: Time,
    stop_reason: Option<StopReason>,
    /// A stop string was met: nothing follows in the text.
    text_is_cut: bool,
    failure: Option<Error>,
}

/// What is needed to put a request among the active ones.
pub(super) struct NewRequest {
    pub(super) id: RequestId,
    pub(super) key: RequestKey,
    pub(super) num_prompt_tokens: u32,
    pub(super) arrival: Time,
    pub(super) prompt: Option<String>,
    pub(super) params: CheckedParams,
    pub(super) sampling: RowSampling,
    pub(super) detokenizer: Box<dyn Detokenizer>,
    pub(super) sink: Box<dyn EventSink>,
    pub(super) waiting: WaitingSlot,
}

impl ActiveRequest {
    pub(super) fn new(new: NewRequest) -> Self {
        let params = new.params;
        let num_prompt_tokens = new.num_prompt_tokens as usize;
        Self {
            stop: StopStrings::new(params.stop().to_vec(), params.include_stop_str_in_output()),
            logprobs: params.logprobs().map(|_| Vec::new()),
            prompt_logprobs: params.prompt_logprobs().map(|_| vec![None; num_prompt_tokens]),
            unsent: Delta { logprobs: params.logprobs().map(|_| Vec::new()), ..Delta::default() },
            id: new.id,
            key: new.key,
            num_prompt_tokens: new.num_prompt_tokens,
            sampling: new.sampling,
            arrival: new.arrival,
            waiting: Some(new.waiting),
            is_streamed: new.sink.wants_deltas(),
            sink: new.sink,
            prompt: new.prompt,
            params,
            detokenizer: new.detokenizer,
            num_tokens: 0,
            text: String::new(),
            first_token: None,
            last_token: new.arrival,
            stop_reason: None,
            text_is_cut: false,
            failure: None,
        }
    }

    /// Takes the next token. Says that the output ends with it, if it does; that it is long enough is for the
    /// scheduler to say. The order of tests: end and stop tokens, then stop strings; none before `min_tokens`.
    pub(super) fn take_token(
        &mut self,
        token_id: u32,
        logprobs: Option<&quire_executor::TokenLogprobs>,
        decoder: &TextDecoder,
        now: Time,
    ) -> Option<quire_scheduler::FinishReason> {
        self.num_tokens += 1;
        self.first_token.get_or_insert(now);
        self.last_token = now;
        let logprobs = logprobs.map(|logprobs| with_text(logprobs, decoder));
        if self.is_streamed {
            self.unsent.token_ids.push(token_id);
            self.unsent.logprobs.iter_mut().zip(&logprobs).for_each(|(unsent, one)| unsent.push(one.clone()));
        }
        self.logprobs.iter_mut().zip(logprobs).for_each(|(all, one)| all.push(one));
        let may_stop = self.num_tokens >= self.params.min_tokens();
        if may_stop && let Some(reason) = self.params.ends_with(token_id) {
            if self.params.include_stop_str_in_output() {
                let piece = self.detokenizer.push(token_id);
                self.take_text(&piece, false);
            }
            self.stop_reason = reason;
            return Some(quire_scheduler::FinishReason::Stop);
        }
        let piece = self.detokenizer.push(token_id);
        self.take_text(&piece, may_stop)
    }

    /// Takes log-probabilities of the prompt, from a row that began at `start`. What is computed again after a
    /// preemption is written again to the same places.
    pub(super) fn take_prompt_logprobs(
        &mut self,
        start: u32,
        logprobs: &[quire_executor::TokenLogprobs],
        decoder: &TextDecoder,
    ) {
        let Some(entries) = &mut self.prompt_logprobs else { return };
        let places = entries.iter_mut().skip(start as usize + 1);
        places.zip(logprobs).for_each(|(entry, logprobs)| *entry = Some(with_text(logprobs, decoder)));
    }

    /// Notes that what serves this request has failed.
    pub(super) fn fail(&mut self, error: Error) {
        self.failure = Some(error);
    }

    /// What it failed at, if it did.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether its last token was its first.
    pub(super) fn is_at_first_token(&self) -> bool {
        self.num_tokens == 1
    }

    /// Sends what can be shown. Tokens without text wait for some, so that the two stay in step.
    pub(super) fn emit(&mut self) {
        let has_tokens = self.detokenizer.is_silent() && !self.unsent.token_ids.is_empty();
        if has_tokens || !self.unsent.text.is_empty() {
            let delta = self.take_unsent();
            self.sink.send(RequestEvent::Delta(delta));
        }
    }

    /// Sends the end.
    pub(super) fn finish(
        mut self,
        finished: FinishedSequence,
        reason: FinishReason,
        now: Time,
    ) -> RequestMetrics {
        if !self.text_is_cut {
            let rest = self.stop.flush() + &self.detokenizer.flush();
            self.append(&rest);
        }
        let metrics = self.metrics(&finished, now);
        if !self.unsent.token_ids.is_empty() || !self.unsent.text.is_empty() {
            let delta = self.take_unsent();
            self.sink.send(RequestEvent::Delta(delta));
        }
        let mut prompt_token_ids = finished.tokens;
        let token_ids = prompt_token_ids.split_off(finished.num_prompt_tokens as usize);
        let completion = CompletionOutput {
            index: 0,
            text: self.text,
            token_ids,
            cumulative_logprob: self
                .logprobs
                .as_ref()
                .map(|all| all.iter().map(|one| f64::from(one.token.logprob)).sum()),
            logprobs: self.logprobs,
            finish_reason: reason,
            stop_reason: self.stop_reason,
        };
        let output = RequestOutput {
            request_id: self.id,
            prompt: self.prompt,
            prompt_token_ids,
            prompt_logprobs: self.prompt_logprobs,
            outputs: vec![completion],
            num_cached_tokens: finished.num_cached_tokens,
            metrics,
        };
        self.sink.send(RequestEvent::Finished(Box::new(output)));
        metrics
    }

    fn take_text(&mut self, piece: &str, may_stop: bool) -> Option<quire_scheduler::FinishReason> {
        match self.stop.push(piece, may_stop) {
            StopOutcome::Text(text) => {
                self.append(&text);
                None
            }
            StopOutcome::Stopped { text, index } => {
                self.append(&text);
                self.text_is_cut = true;
                self.stop_reason = Some(StopReason::Text(self.stop.get(index).to_owned()));
                Some(quire_scheduler::FinishReason::Stop)
            }
        }
    }

    fn append(&mut self, text: &str) {
        self.text.push_str(text);
        if self.is_streamed {
            self.unsent.text.push_str(text);
        }
    }

    fn take_unsent(&mut self) -> Delta {
        let logprobs = self.logprobs.as_ref().map(|_| Vec::new());
        std::mem::replace(&mut self.unsent, Delta { logprobs, ..Delta::default() })
    }

    fn metrics(&self, finished: &FinishedSequence, now: Time) -> RequestMetrics {
        let gaps = self.num_tokens.saturating_sub(1);
        let decoding = self.first_token.filter(|_| gaps > 0).map(|first| ms_between(first, self.last_token));
        RequestMetrics {
            queue_ms: ms_between(self.arrival, finished.first_admitted.unwrap_or(now)),
            ttft_ms: self.first_token.map(|first| ms_between(self.arrival, first)),
            tpot_ms: decoding.map(|ms| ms / f64::from(gaps)),
            e2e_ms: ms_between(self.arrival, now),
            num_preemptions: finished.num_preemptions,
        }
    }
}

fn with_text(logprobs: &quire_executor::TokenLogprobs, decoder: &TextDecoder) -> TokenLogprobs {
    let token = |token_id, logprob| TokenLogprob { token_id, token: decoder.token_text(token_id), logprob };
    TokenLogprobs {
        token: token(logprobs.token_id, logprobs.logprob),
        rank: logprobs.rank,
        top: logprobs.top.iter().map(|&(token_id, logprob)| token(token_id, logprob)).collect(),
    }
}
