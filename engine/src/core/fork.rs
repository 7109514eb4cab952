//! Several outputs of one request: its prompt is computed once, by its first sequence, of which the others are forked
//! with its first token. They share its blocks, a partial last one too, until they write.

use quire_scheduler::{FinishedSequence, NewSequence, SeqId};

use super::active::{ActiveRequest, Unforked};
use super::engine_core::EngineCore;

impl EngineCore {
    /// Makes the other sequences of a request whose first has just got its first token. Gives back what that sequence
    /// has left if it has ended with this token.
    pub(super) fn fork(&mut self, first: SeqId) -> Option<FinishedSequence> {
        let Unforked { num, like, held_end } = self.requests.get_mut(first)?.take_unforked()?;
        let num_prompt_tokens = self.requests.get(first)?.num_prompt_tokens;
        let prompt = self.scheduler.view().tokens(first)[..num_prompt_tokens as usize].to_vec();
        let mut num_left = num;
        let num_forks = num.min(self.scheduler.view().num_free_seats());
        if num_forks > 0
            && let Ok(children) = self.scheduler.fork_many(first, num_prompt_tokens, num_forks)
        {
            num_left -= num_forks;
            children.into_iter().for_each(|child| self.join(first, child, &prompt));
        }
        self.add_alike(first, &like, &prompt, num_left);
        let reason = held_end?;
        let finished = self.scheduler.abort(first)?;
        Some(FinishedSequence { reason, ..finished })
    }

    /// Queues the other sequences of a request whose first has ended before they could be forked: for them, the prompt is
    /// in the prefix cache at best.
    pub(super) fn add_unforked(&mut self, first: &FinishedSequence) {
        let request = self.requests.get_mut(first.id).filter(|request| request.failure().is_none());
        let unforked = request.and_then(ActiveRequest::take_unforked);
        let Some(Unforked { num, like, .. }) = unforked else { return };
        let prompt = first.tokens[..first.num_prompt_tokens as usize].to_vec();
        self.add_alike(first.id, &like, &prompt, num);
    }

    /// Sequences for which there is no room beside those that run: they wait like others.
    fn add_alike(&mut self, first: SeqId, like: &NewSequence, prompt: &[u32], num: u32) {
        for _ in 0..num {
            let new = NewSequence { prompt: prompt.to_vec(), ..like.clone() };
            match self.scheduler.add_sibling(new) {
                Ok(seq) => self.join(first, seq, prompt),
                // Its first sequence had the same prompt, so this is a bug; it ends the request, not the engine.
                Err(error) => {
                    if let Some(request) = self.requests.get_mut(first) {
                        request.fail(quire_scheduler::Error::from(error).into());
                    }
                }
            }
        }
    }

    fn join(&mut self, first: SeqId, seq: SeqId, prompt: &[u32]) {
        let Some(request) = self.requests.get(first) else { return };
        let detokenizer = self.decoder.detokenizer(prompt, request.params.text_options());
        let key = request.key;
        self.requests.branch(key, seq, detokenizer);
    }
}
