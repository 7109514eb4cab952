//! Beam search on sequences that share their blocks: each beam is a sequence that samples one token and stands still. When
//! all have, the search says which texts go on. A beam's first successor takes its place, with another last token; the
//! others are forked from it, so that nothing is computed twice and all beams run in one step a token.
//!
//! A beam that gave way to others is behind. Until it has caught up, those that have sampled give up their blocks, so
//! that no search holds what it waits for; they come back like requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use quire_scheduler::record::RecordedScheduler;
use quire_scheduler::{FinishReason as SeqFinish, FinishedSequence, NewSequence, SeqId, Time};

use super::branch::EndedBranch;
use super::engine_core::EngineCore;
use super::inbox::RequestKey;
use crate::FinishReason;
use crate::beam::{BeamSearch, CheckedBeams, Found, Successor};
use crate::checked::CheckedParams;
use crate::clock::ms_between;
use crate::output::CompletionOutput;
use crate::text::TextDecoder;

/// The beams of one request.
pub(super) struct BeamGroup {
    search: BeamSearch,
    /// Which beam each sequence computes. A beam that gave up its blocks has none.
    beams: BTreeMap<SeqId, usize>,
    prompt: Vec<u32>,
    /// What a beam would be if it came by itself, without its tokens.
    like: NewSequence,
    decoder: TextDecoder,
    /// When the first and the last token were sampled.
    sampled: Option<(Time, Time)>,
}

/// What is needed to start a search.
pub(super) struct NewBeams {
    pub(super) params: CheckedBeams,
    pub(super) prompt: Vec<u32>,
    pub(super) like: NewSequence,
    /// Tokens that there is room for.
    pub(super) max_tokens: u32,
}

impl BeamGroup {
    /// One beam, of the sequence of the prompt.
    pub(super) fn new(first: SeqId, new: NewBeams, decoder: TextDecoder) -> Self {
        let NewBeams { params, prompt, like, max_tokens } = new;
        let search = BeamSearch::new(params, prompt.len(), max_tokens as usize);
        Self { search, beams: [(first, 0)].into(), prompt, like, decoder, sampled: None }
    }

    /// The sequences that compute beams, with the places of these.
    pub(super) fn seqs(&self) -> impl Iterator<Item = (SeqId, u32)> + '_ {
        self.beams.iter().map(|(seq, beam)| (*seq, *beam as u32))
    }

    /// Whether nothing has been chosen yet.
    pub(super) fn is_at_first_token(&self) -> bool {
        self.search.depth() == 0
    }

    /// Takes what may follow the beam of a sequence.
    pub(super) fn take_candidates(&mut self, seq: SeqId, top: &[(u32, f32)], now: Time) {
        let Some(&beam) = self.beams.get(&seq) else { return };
        self.search.offer(beam, top);
        self.sampled = Some((self.sampled.map_or(now, |(first, _)| first), now));
    }

    /// A beam as a sequence that comes by itself.
    fn alone(&self, beam: usize) -> NewSequence {
        let prompt = [&self.prompt[..], self.search.token_ids(beam)].concat();
        let max_output_tokens = self.like.max_output_tokens - self.search.depth() as u32;
        NewSequence { prompt, max_output_tokens, ..self.like.clone() }
    }

    /// A sequence has ended.
    pub(super) fn leave(&mut self, seq: SeqId) {
        self.beams.remove(&seq);
    }

    /// The outputs: the best texts, or, where the search was given up, the best so far.
    pub(super) fn end(&mut self, params: &CheckedParams) -> Vec<EndedBranch> {
        let is_over = self.search.is_over();
        let best = self.search.take_best().into_iter().enumerate();
        let num_tokens = self.search.depth();
        best.map(|(index, found)| {
            let (first_token, decoding_ms) = match self.sampled {
                Some((first, last)) if index == 0 => (Some(first), ms_between(first, last)),
                _ => (None, 0.0),
            };
            let output = self.output(index as u32, found, is_over, params);
            let num_gaps = if index == 0 { num_tokens.saturating_sub(1) as u32 } else { 0 };
            EndedBranch { output, first_token, decoding_ms, num_gaps }
        })
        .collect()
    }

    /// The prompt, which is not needed any more.
    pub(super) fn take_prompt(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.prompt)
    }

    fn output(&self, index: u32, found: Found, is_over: bool, params: &CheckedParams) -> CompletionOutput {
        let is_shown = !found.is_ended || params.include_stop_str_in_output();
        let num_shown = found.token_ids.len() - usize::from(!is_shown);
        let mut detokenizer = self.decoder.detokenizer(&self.prompt, params.text_options());
        let mut text = String::new();
        found.token_ids[..num_shown].iter().for_each(|&id| detokenizer.push(id, &mut text));
        detokenizer.flush(&mut text);
        let end = found.token_ids.last().filter(|_| found.is_ended);
        CompletionOutput {
            index,
            text,
            finish_reason: match (is_over, found.is_ended) {
                (_, true) => FinishReason::Stop,
                (true, false) => FinishReason::Length,
                (false, false) => FinishReason::Abort,
            },
            stop_reason: end.and_then(|&end| params.ends_with(end)).flatten(),
            token_ids: found.token_ids,
            cumulative_logprob: Some(found.logprob),
            logprobs: None,
        }
    }
}

impl EngineCore {
    /// Goes on with the beams of a request, when all of them have sampled. A sequence that has, while others have not,
    /// gives up its place. Gives back what has ended.
    pub(super) fn advance_beams(&mut self, seq: SeqId) -> Vec<FinishedSequence> {
        let Some(request) = self.requests.get_mut(seq) else { return Vec::new() };
        let (key, params) = (request.key, Arc::clone(&request.params));
        let Some(group) = &mut request.beams else { return Vec::new() };
        // A sequence that got its place in this step has nothing to say yet.
        if !group.beams.get(&seq).is_some_and(|beam| group.search.has_candidates(*beam)) {
            return Vec::new();
        }
        if !group.search.is_ready() {
            group.leave(seq);
            return self.scheduler.abort(seq).into_iter().collect();
        }
        let successors = group.search.advance(|token_id| params.ends_with(token_id).is_some());
        if group.search.is_over() {
            let seqs: Vec<_> = group.beams.keys().copied().collect();
            let reason = if group.search.is_full() { SeqFinish::Length } else { SeqFinish::Stop };
            let ended = seqs.into_iter().filter_map(|seq| self.scheduler.abort(seq));
            return ended.map(|ended| FinishedSequence { reason, ..ended }).collect();
        }
        self.succeed(key, seq, &successors)
    }

    /// Gives every beam a sequence: that of the one it continues, a fork of it, or one of its own.
    fn succeed(&mut self, key: RequestKey, seq: SeqId, successors: &[Successor]) -> Vec<FinishedSequence> {
        let Some(mut group) = self.requests.get_mut(seq).and_then(|request| request.beams.take()) else {
            return Vec::new();
        };
        let mut succession = Succession::new(std::mem::take(&mut group.beams), successors);
        succession.run(&mut self.scheduler);
        let Succession { taken, homeless, mut ended, .. } = succession;
        group.beams = taken;
        let mut failure = None;
        for beam in homeless {
            match self.scheduler.add_sibling(group.alone(beam)) {
                Ok(seq) => drop(group.beams.insert(seq, beam)),
                // Its beginning had room and the limits are the same, so this is a bug; it ends the request alone.
                Err(error) => failure = Some(quire_scheduler::Error::from(error).into()),
            }
        }
        self.requests.set_beams(key, group);
        if let Some(error) = failure {
            self.fail([seq], &error);
            ended.clear();
        }
        ended
    }
}

/// Who computes which beam from now on.
struct Succession<'a> {
    old: BTreeMap<SeqId, usize>,
    successors: &'a [Successor],
    /// The beams that have a sequence.
    taken: BTreeMap<SeqId, usize>,
    /// The beams that have none.
    homeless: Vec<usize>,
    ended: Vec<FinishedSequence>,
}

impl<'a> Succession<'a> {
    fn new(old: BTreeMap<SeqId, usize>, successors: &'a [Successor]) -> Self {
        Self { old, successors, taken: BTreeMap::new(), homeless: Vec::new(), ended: Vec::new() }
    }

    /// What has no successor makes room first.
    fn run(&mut self, scheduler: &mut RecordedScheduler) {
        let old = std::mem::take(&mut self.old);
        let has_successor = |parent: usize| self.successors.iter().any(|next| next.parent == parent);
        let (parents, childless): (Vec<_>, Vec<_>) =
            old.into_iter().partition(|(_, parent)| has_successor(*parent));
        let aborted = childless.into_iter().filter_map(|(seq, _)| scheduler.abort(seq));
        self.ended.extend(aborted);
        let without_seq = |next: &Successor| parents.iter().all(|(_, parent)| *parent != next.parent);
        let homeless = self.successors.iter().enumerate().filter(|(_, next)| without_seq(next));
        self.homeless.extend(homeless.map(|(beam, _)| beam));
        parents.into_iter().for_each(|(seq, parent)| self.hand_over(scheduler, seq, parent));
    }

    /// The successors of one beam: the first takes its place when the others have been forked from it.
    fn hand_over(&mut self, scheduler: &mut RecordedScheduler, seq: SeqId, parent: usize) {
        let num_kept = scheduler.view().tokens(seq).len().saturating_sub(1) as u32;
        let successors = self.successors;
        let mut heirs = successors.iter().enumerate().filter(|(_, next)| next.parent == parent);
        let first = heirs.next();
        for (beam, next) in heirs {
            match scheduler.fork_with(seq, num_kept, next.token_id) {
                Ok(child) => drop(self.taken.insert(child, beam)),
                Err(_) => self.homeless.push(beam),
            }
        }
        let Some((beam, next)) = first else { return };
        match scheduler.replace_last(seq, next.token_id) {
            Ok(()) => drop(self.taken.insert(seq, beam)),
            Err(_) => {
                self.ended.extend(scheduler.abort(seq));
                self.homeless.push(beam);
            }
        }
    }
}
