//! One output of a request: how its tokens become text, and what has become of them.

use std::sync::Arc;
use std::time::Duration;

use quire_scheduler::{FinishReason as SeqFinish, FinishedSequence, Time};

use crate::OutputKind;
use crate::checked::CheckedParams;
use crate::clock::ms_between;
use crate::output::{
    CompletionOutput, Delta, FinishReason, RequestEvent, StopReason, TokenLogprob, TokenLogprobs,
};
use crate::structured::{GrammarError, GrammarState};
use crate::text::{Detokenizer, StopStrings, TextDecoder};

/// An output that is being generated. Its tokens lie in the scheduler.
pub(super) struct Branch {
    /// Its place among the request's outputs.
    pub(super) index: u32,
    params: Arc<CheckedParams>,
    detokenizer: Box<dyn Detokenizer>,
    /// Where it is in its form.
    grammar: Option<GrammarState>,
    stop: StopStrings,
    /// What is to be shown before the end.
    output_kind: OutputKind,
    num_tokens: u32,
    text: String,
    /// The text of the newest token.
    piece: String,
    /// What has not been sent.
    unsent: Delta,
    /// All that was sent, where it is sent again.
    sent: Delta,
    logprobs: Option<Vec<TokenLogprobs>>,
    first_token: Option<Time>,
    last_token: Time,
    /// Between its last two tokens.
    last_gap: Option<Duration>,
    stop_reason: Option<StopReason>,
    /// A stop string was met: nothing follows in the text.
    text_is_cut: bool,
}

/// What an output is made of at its beginning.
pub(super) struct NewBranch {
    pub(super) index: u32,
    pub(super) params: Arc<CheckedParams>,
    pub(super) detokenizer: Box<dyn Detokenizer>,
    pub(super) grammar: Option<GrammarState>,
    pub(super) output_kind: OutputKind,
}

/// An output that has ended, and its share of the request's times.
pub(super) struct EndedBranch {
    pub(super) output: CompletionOutput,
    pub(super) first_token: Option<Time>,
    /// Time from its first token to its last, in milliseconds, and the gaps between tokens in it.
    pub(super) decoding_ms: f64,
    pub(super) num_gaps: u32,
}

impl Branch {
    pub(super) fn new(new: NewBranch) -> Self {
        let NewBranch { index, params, detokenizer, grammar, output_kind } = new;
        Self {
            index,
            grammar,
            stop: StopStrings::new(params.stop().to_vec(), params.include_stop_str_in_output()),
            logprobs: params.logprobs().map(|_| Vec::new()),
            unsent: empty_delta(index, &params),
            sent: empty_delta(index, &params),
            params,
            detokenizer,
            output_kind,
            num_tokens: 0,
            text: String::new(),
            piece: String::new(),
            first_token: None,
            last_token: Time::ZERO,
            last_gap: None,
            stop_reason: None,
            text_is_cut: false,
        }
    }

    /// Takes the next token. Says that the output ends with it, if it does. The order of tests: end and stop tokens, then
    /// stop strings, none of them before `min_tokens`, but where a form has nothing else; then the end of its form, and the
    /// length, of which the scheduler has more to say.
    ///
    /// # Errors
    ///
    /// Where the form does not admit the token.
    pub(super) fn take_token(
        &mut self,
        token_id: u32,
        logprobs: Option<&quire_executor::TokenLogprobs>,
        decoder: &TextDecoder,
        now: Time,
    ) -> Result<Option<SeqFinish>, GrammarError> {
        self.num_tokens += 1;
        self.last_gap = self.first_token.map(|_| now.since(self.last_token));
        self.first_token.get_or_insert(now);
        self.last_token = now;
        let logprobs = logprobs.map(|logprobs| with_text(logprobs, decoder));
        if self.output_kind != OutputKind::FinalOnly {
            self.unsent.token_ids.push(token_id);
            self.unsent.logprobs.iter_mut().zip(&logprobs).for_each(|(unsent, one)| unsent.push(one.clone()));
        }
        self.logprobs.iter_mut().zip(logprobs).for_each(|(all, one)| all.push(one));
        let is_full = self.params.max_tokens().is_some_and(|max| self.num_tokens >= max);
        Ok(self.take_ending(token_id)?.or(is_full.then_some(SeqFinish::Length)))
    }

    /// Gives it a form, from the beginning.
    pub(super) fn set_grammar(&mut self, grammar: GrammarState) {
        self.grammar = Some(grammar);
    }

    /// Where it is in its form.
    pub(super) fn grammar(&mut self) -> Option<&mut GrammarState> {
        self.grammar.as_mut()
    }

    /// Whether its last token was its first.
    pub(super) fn is_at_first_token(&self) -> bool {
        self.num_tokens == 1
    }

    /// Time between its last two tokens.
    pub(super) fn last_gap(&self) -> Option<Duration> {
        self.last_gap
    }

    /// What can be shown. Tokens without text wait for some, so that the two stay in step.
    pub(super) fn take_shown(&mut self) -> Option<RequestEvent> {
        let has_tokens = self.detokenizer.is_silent() && !self.unsent.token_ids.is_empty();
        if !has_tokens && self.unsent.text.is_empty() {
            return None;
        }
        self.take_unsent(None)
    }

    /// The end: what was left to be shown, and all there is once more.
    pub(super) fn end(
        mut self,
        finished: FinishedSequence,
        reason: FinishReason,
    ) -> (Option<RequestEvent>, EndedBranch) {
        let is_stopped = !self.text_is_cut && self.flush_text();
        let reason = if is_stopped && reason == FinishReason::Length { FinishReason::Stop } else { reason };
        let last = self.take_unsent(Some(reason));
        let mut token_ids = finished.tokens;
        token_ids.drain(..finished.num_prompt_tokens as usize);
        let num_gaps = self.num_tokens.saturating_sub(1);
        let logprobs = self.logprobs.as_ref();
        let output = CompletionOutput {
            index: self.index,
            text: self.text,
            token_ids,
            cumulative_logprob: logprobs.map(|all| all.iter().map(|one| f64::from(one.token.logprob)).sum()),
            logprobs: self.logprobs,
            finish_reason: reason,
            stop_reason: self.stop_reason,
        };
        let decoding_ms = self.first_token.map_or(0.0, |first| ms_between(first, self.last_token));
        (last, EndedBranch { output, first_token: self.first_token, decoding_ms, num_gaps })
    }

    fn take_ending(&mut self, token_id: u32) -> Result<Option<SeqFinish>, GrammarError> {
        let may_stop = self.num_tokens >= self.params.min_tokens();
        // Tokens that end an output are not to be among the first `min_tokens`.
        let may_end = self.num_tokens > self.params.min_tokens();
        if let Some(reason) = self.params.ends_with(token_id)
            && (may_end || self.is_behind_form(token_id))
            && !self.is_amid_form(token_id)
        {
            if self.params.include_stop_str_in_output() {
                self.take_text(token_id, false);
            }
            self.stop_reason = reason;
            return Ok(Some(SeqFinish::Stop));
        }
        let is_complete = self.grammar.as_mut().map_or(Ok(false), |grammar| grammar.take(token_id))?;
        let stopped = self.take_text(token_id, may_stop);
        Ok(stopped.or(is_complete.then_some(SeqFinish::Stop)))
    }

    /// Whether a token is no part of the form: then it was allowed because the form was complete, and nothing else could follow.
    fn is_behind_form(&mut self, token_id: u32) -> bool {
        self.grammar.as_mut().is_some_and(|grammar| !grammar.admits(&[token_id]))
    }

    /// Whether a token that ends texts elsewhere has its place within the form, which goes on behind it.
    fn is_amid_form(&self, token_id: u32) -> bool {
        !self.params.is_stop_token(token_id)
            && self.grammar.as_ref().is_some_and(|grammar| grammar.goes_on_after(token_id))
    }

    /// Takes the text of a token, and says whether a stop string ends it.
    fn take_text(&mut self, token_id: u32, may_stop: bool) -> Option<SeqFinish> {
        self.piece.clear();
        self.detokenizer.push(token_id, &mut self.piece);
        self.take_piece(may_stop).then_some(SeqFinish::Stop)
    }

    /// Takes the newest piece of text, and says whether a stop string ends it.
    fn take_piece(&mut self, may_stop: bool) -> bool {
        let num_old = self.text.len();
        let stopped = self.stop.push(&self.piece, may_stop, &mut self.text);
        self.note_text(num_old);
        let Some(index) = stopped else { return false };
        self.text_is_cut = true;
        self.stop_reason = Some(StopReason::Text(self.stop.get(index).to_owned()));
        true
    }

    /// A character that is not completed is text, and may complete a stop string; then true. Else what was held back is text after all.
    fn flush_text(&mut self) -> bool {
        self.piece.clear();
        self.detokenizer.flush(&mut self.piece);
        if self.take_piece(self.num_tokens >= self.params.min_tokens()) {
            return true;
        }
        let num_old = self.text.len();
        self.stop.flush(&mut self.text);
        self.note_text(num_old);
        false
    }

    /// The text from there on is new.
    fn note_text(&mut self, start: usize) {
        if self.output_kind != OutputKind::FinalOnly {
            self.unsent.text.push_str(&self.text[start..]);
        }
    }

    /// What has not been sent, as an event, with the reason for an end.
    fn take_unsent(&mut self, finish_reason: Option<FinishReason>) -> Option<RequestEvent> {
        let next = empty_delta(self.index, &self.params);
        let mut delta = std::mem::replace(&mut self.unsent, next);
        delta.finish_reason = finish_reason;
        delta.stop_reason = self.stop_reason.clone().filter(|_| finish_reason.is_some());
        match self.output_kind {
            OutputKind::FinalOnly => None,
            OutputKind::Delta => Some(RequestEvent::Delta(delta)),
            OutputKind::Cumulative => {
                self.sent.append(delta);
                Some(RequestEvent::SoFar(self.sent.clone()))
            }
        }
    }
}

/// The log-probabilities of the device, with the texts of their tokens.
pub(super) fn with_text(logprobs: &quire_executor::TokenLogprobs, decoder: &TextDecoder) -> TokenLogprobs {
    let token = |token_id, logprob| {
        let (token, bytes) = (decoder.token_text(token_id), decoder.broken_bytes(token_id));
        TokenLogprob { token_id, token, bytes, logprob }
    };
    TokenLogprobs {
        token: token(logprobs.token_id, logprobs.logprob),
        rank: logprobs.rank,
        top: logprobs.top.iter().map(|&(token_id, logprob)| token(token_id, logprob)).collect(),
    }
}

fn empty_delta(index: u32, params: &CheckedParams) -> Delta {
    Delta { index, logprobs: params.logprobs().map(|_| Vec::new()), ..Delta::default() }
}
