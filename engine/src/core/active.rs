//! A request inside the engine: what its sequences have given so far.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_executor::{RowMask, RowSampling};
use quire_scheduler::{FinishReason as SeqFinish, FinishedSequence, NewSequence, SeqId, Time};

use super::beams::BeamGroup;
use super::branch::{Branch, EndedBranch, NewBranch, with_text};
use super::branches::Branches;
use super::inbox::RequestKey;
use super::places::Place;
use crate::checked::CheckedParams;
use crate::clock::ms_between;
use crate::output::{FinishReason, RequestEvent, RequestMetrics, RequestOutput, TokenLogprobs};
use crate::request::RequestId;
use crate::structured::Grammar;
use crate::text::{Detokenizer, TextDecoder};
use crate::{Error, EventSink, OutputKind};

/// One request: its outputs, those that are being generated and those that have ended.
pub(super) struct ActiveRequest {
    pub(super) id: RequestId,
    pub(super) key: RequestKey,
    pub(super) num_prompt_tokens: u32,
    pub(super) arrival: Time,
    /// Its place among those that wait, given back when it first runs.
    pub(super) place: Option<Place>,
    pub(super) sink: Box<dyn EventSink>,
    pub(super) params: Arc<CheckedParams>,
    /// The sequences that are still to be made of its first one.
    unforked: Option<Unforked>,
    /// Nothing is generated: what its sequence samples means nothing.
    pub(super) prompt_alone: bool,
    /// The form of its outputs.
    grammar: Option<Grammar>,
    /// Whether what its sequences may choose hangs on their last tokens: asked for each row of each step.
    pub(super) is_gated: bool,
    sampling: RowSampling,
    prompt: Option<String>,
    prompt_token_ids: Vec<u32>,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// Whether they have been sent, or there are none.
    prompt_is_told: bool,
    output_kind: OutputKind,
    branches: Branches,
    /// A beam search has beams in place of branches.
    pub(super) beams: Option<Box<BeamGroup>>,
    num_branched: u32,
    ended: Vec<EndedBranch>,
    num_cached_tokens: u32,
    num_preemptions: u32,
    first_admitted: Option<Time>,
    failure: Option<Error>,
}

/// Sequences that a request does not have yet: they are forked from one of its sequences when that has computed the prompt.
pub(super) struct Unforked {
    pub(super) num: u32,
    /// What they would be if they had come by themselves, without the prompt.
    pub(super) like: NewSequence,
    /// The sequence that they are forked of.
    pub(super) first: SeqId,
    /// The first sequence has ended with its first token, and stays until the others have been made of it.
    pub(super) held_end: Option<SeqFinish>,
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
    pub(super) place: Place,
    /// Sequences beside the first, and what they would be by themselves.
    pub(super) unforked: Option<(u32, NewSequence)>,
    pub(super) prompt_alone: bool,
    pub(super) beams: Option<Box<BeamGroup>>,
}

impl ActiveRequest {
    pub(super) fn new(seq: SeqId, new: NewRequest) -> Self {
        let params = Arc::new(new.params);
        let output_kind = if new.sink.wants_deltas() { params.output_kind() } else { OutputKind::FinalOnly };
        let first = Branch::new(NewBranch {
            index: 0,
            params: Arc::clone(&params),
            detokenizer: new.detokenizer,
            grammar: None,
            output_kind,
        });
        let num_prompt_tokens = new.num_prompt_tokens as usize;
        let mut branches = Branches::default();
        if new.beams.is_none() {
            branches.push(seq, first);
        }
        Self {
            prompt_logprobs: params.prompt_logprobs().map(|_| vec![None; num_prompt_tokens]),
            prompt_is_told: params.prompt_logprobs().is_none(),
            is_gated: !params.bad_sequences().is_empty(),
            id: new.id,
            key: new.key,
            num_prompt_tokens: new.num_prompt_tokens,
            arrival: new.arrival,
            place: Some(new.place),
            sink: new.sink,
            params,
            unforked: new.unforked.map(|(num, like)| Unforked { num, like, first: seq, held_end: None }),
            prompt_alone: new.prompt_alone,
            grammar: None,
            sampling: new.sampling,
            prompt: new.prompt,
            prompt_token_ids: Vec::new(),
            output_kind,
            branches,
            beams: new.beams,
            num_branched: 1,
            ended: Vec::new(),
            num_cached_tokens: 0,
            num_preemptions: 0,
            first_admitted: None,
            failure: None,
        }
    }

    /// Another output is generated by that sequence.
    pub(super) fn branch(&mut self, seq: SeqId, detokenizer: Box<dyn Detokenizer>) {
        let branch = Branch::new(NewBranch {
            index: self.num_branched,
            params: Arc::clone(&self.params),
            detokenizer,
            grammar: self.grammar.as_ref().map(Grammar::start),
            output_kind: self.output_kind,
        });
        self.num_branched += 1;
        self.branches.push(seq, branch);
    }

    /// How the device chooses the tokens of one of its sequences: each draws numbers of its own. The log-probabilities of
    /// the prompt come with the first.
    pub(super) fn sampling(&self, seq: SeqId) -> RowSampling {
        let index = self.branches.get(seq).map_or(0, |branch| branch.index);
        let prompt_logprobs = self.sampling.prompt_logprobs.filter(|_| index == 0);
        RowSampling { sequence_index: index, prompt_logprobs, ..self.sampling.clone() }
    }

    /// Takes the next token of a sequence: see [`Branch::take_token`].
    pub(super) fn take_token(
        &mut self,
        seq: SeqId,
        token_id: u32,
        logprobs: Option<&quire_executor::TokenLogprobs>,
        decoder: &TextDecoder,
        now: Time,
    ) -> Option<SeqFinish> {
        if self.prompt_alone {
            return Some(SeqFinish::Length);
        }
        if let Some(beams) = &mut self.beams {
            beams.take_candidates(seq, logprobs.map_or(&[][..], |logprobs| &logprobs.top), now);
            return None;
        }
        let taken = self.branches.get_mut(seq)?.take_token(token_id, logprobs, decoder, now);
        let end = taken.unwrap_or_else(|error| {
            self.fail(error.into());
            Some(SeqFinish::Error)
        });
        match &mut self.unforked {
            // It is needed for a moment more: see `fork.rs`.
            Some(unforked) if unforked.first == seq => {
                unforked.held_end = end;
                None
            }
            _ => end,
        }
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

    /// Gives its outputs their form, before any has a token.
    pub(super) fn set_grammar(&mut self, grammar: Grammar) {
        self.branches.iter_mut().for_each(|branch| branch.set_grammar(grammar.start()));
        self.grammar = Some(grammar);
        self.is_gated = true;
    }

    /// What a sequence may choose after `output`; `None` is everything.
    ///
    /// # Errors
    ///
    /// What the request fails at.
    pub(super) fn mask(&mut self, seq: SeqId, output: &[u32]) -> crate::Result<Option<RowMask>> {
        let forbidden = self.params.bad_sequences().forbidden_after(output);
        let grammar = self.branches.get_mut(seq).and_then(Branch::grammar);
        Ok(match grammar {
            Some(grammar) => {
                let (mut mask, may_end) = grammar.next()?;
                let is_too_short = output.len() < self.params.min_tokens() as usize;
                let stops = self.params.stop_token_ids().filter(|&id| is_too_short && mask.allows(id));
                let held_back: Vec<u32> = stops.collect();
                held_back.iter().for_each(|&id| mask.forbid(id));
                // A text that has come to its end has no other way on, however short it is.
                if may_end && (!is_too_short || mask.is_empty()) {
                    let ends = self.params.end_token_ids().filter(|id| !held_back.contains(id));
                    ends.for_each(|id| mask.allow(id));
                }
                forbidden.into_iter().for_each(|id| mask.forbid(id));
                Some(RowMask::Only(mask))
            }
            None => (!forbidden.is_empty()).then_some(RowMask::AllBut(forbidden)),
        })
    }

    /// Notes that what serves this request has failed.
    pub(super) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// What it failed at, if it did.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether the last token of a sequence was the request's first.
    pub(super) fn is_at_first_token(&self, seq: SeqId) -> bool {
        if let Some(beams) = &self.beams {
            return beams.is_at_first_token();
        }
        self.branches.get(seq).is_some_and(|branch| branch.index == 0 && branch.is_at_first_token())
    }

    /// Time between the last two tokens of a sequence.
    pub(super) fn last_gap(&self, seq: SeqId) -> Option<Duration> {
        self.branches.get(seq)?.last_gap()
    }

    /// Whether other sequences may have to be made of one that has just got a token.
    pub(super) fn grows(&self) -> bool {
        self.unforked.is_some() || self.beams.is_some()
    }

    /// The sequences that it has not got yet, and will not get.
    pub(super) fn drop_unforked(&mut self) {
        self.unforked = None;
    }

    /// The sequences that are to be made of `first`, now.
    pub(super) fn take_unforked_of(&mut self, first: SeqId) -> Option<Unforked> {
        self.unforked.take_if(|unforked| unforked.first == first)
    }

    /// Leaves sequences to be made later.
    pub(super) fn leave_unforked(&mut self, unforked: Unforked) {
        self.unforked = Some(unforked).filter(|unforked| unforked.num > 0);
    }

    /// Sends what can be shown of one output, after a step that was committed at that moment.
    pub(super) fn emit(&mut self, seq: SeqId, moment: Instant) {
        if let Some(event) = self.branches.get_mut(seq).and_then(Branch::take_shown) {
            self.send_piece(event, moment);
        }
    }

    /// Sends a piece of an output. What is known of the prompt comes before the first.
    fn send_piece(&mut self, event: RequestEvent, moment: Instant) {
        if !std::mem::replace(&mut self.prompt_is_told, true)
            && let Some(prompt) = self.prompt_logprobs.clone()
        {
            self.sink.send_at(RequestEvent::PromptLogprobs(prompt), moment);
        }
        self.sink.send_at(event, moment);
    }

    /// Sends the end, when all outputs have ended.
    pub(super) fn finish(mut self, now: Time) -> RequestMetrics {
        let metrics = self.metrics(now);
        self.ended.sort_by_key(|ended| ended.output.index);
        let output = RequestOutput {
            request_id: self.id,
            prompt: self.prompt,
            prompt_token_ids: self.prompt_token_ids,
            prompt_logprobs: self.prompt_logprobs,
            outputs: self.ended.into_iter().map(|ended| ended.output).collect(),
            num_cached_tokens: self.num_cached_tokens,
            metrics,
        };
        self.sink.send(RequestEvent::Finished(Box::new(output)));
        metrics
    }

    /// Why its last output ended; none for those of a search.
    pub(super) fn last_reason(&self) -> Option<FinishReason> {
        let last = self.ended.last().filter(|_| self.beams.is_none());
        last.map(|ended| ended.output.finish_reason)
    }

    /// Tokens of all outputs that have ended.
    pub(super) fn num_output_tokens(&self) -> usize {
        self.ended.iter().map(|ended| ended.output.token_ids.len()).sum()
    }

    /// Its sequences that have not ended, each with its place among them.
    pub(super) fn seqs(&self) -> impl Iterator<Item = (SeqId, u32)> + '_ {
        let branches = self.branches.iter().map(|(seq, branch)| (seq, branch.index));
        branches.chain(self.beams.iter().flat_map(|beams| beams.seqs()))
    }

    pub(super) fn is_complete(&self) -> bool {
        self.seqs().next().is_none()
    }

    /// A beam's sequence has ended: with the last one, so has the search.
    fn end_beam(&mut self, finished: &FinishedSequence) {
        let Some(beams) = &mut self.beams else { return };
        beams.leave(finished.id);
        self.num_preemptions += finished.num_preemptions;
        if self.first_admitted.is_none() {
            (self.first_admitted, self.num_cached_tokens) =
                (finished.first_admitted, finished.num_cached_tokens);
        }
        if beams.seqs().next().is_none() {
            self.ended = beams.end(&self.params);
            self.prompt_token_ids = beams.take_prompt();
        }
    }

    pub(super) fn end(&mut self, finished: FinishedSequence, reason: FinishReason, moment: Instant) {
        self.end_beam(&finished);
        let Some(branch) = self.branches.remove(finished.id) else { return };
        self.num_preemptions += finished.num_preemptions;
        if branch.index == 0 {
            self.num_cached_tokens = finished.num_cached_tokens;
            self.first_admitted = finished.first_admitted;
            self.prompt_token_ids = finished.tokens[..finished.num_prompt_tokens as usize].to_vec();
        }
        let (last, ended) = branch.end(finished, reason);
        if let Some(event) = last.filter(|_| self.failure.is_none()) {
            self.send_piece(event, moment);
        }
        self.ended.push(ended);
    }

    pub(super) fn metrics(&self, now: Time) -> RequestMetrics {
        let first_token = self.ended.iter().filter_map(|ended| ended.first_token).min();
        let num_gaps: u32 = self.ended.iter().map(|ended| ended.num_gaps).sum();
        let decoding_ms: f64 = self.ended.iter().map(|ended| ended.decoding_ms).sum();
        RequestMetrics {
            queue_ms: ms_between(self.arrival, self.first_admitted.unwrap_or(now)),
            ttft_ms: first_token.map(|first| ms_between(self.arrival, first)),
            tpot_ms: (num_gaps > 0).then(|| decoding_ms / f64::from(num_gaps)),
            e2e_ms: ms_between(self.arrival, now),
            num_preemptions: self.num_preemptions,
        }
    }
}
