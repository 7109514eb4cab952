//! Several outputs of one request: its prompt is computed once, by its first sequence, of which the others are forked
//! with its first token. They share its blocks, a partial last one too, until they write.
//!
//! Those for which there is no room then wait as one sequence, the next to be a first: when its turn has come, it computes what the
//! prefix cache does not have of the prompt, and as many others as there is room for by then are forked of it.

use quire_scheduler::{FinishedSequence, NewSequence, SeqId};

use super::active::Unforked;
use super::engine_core::EngineCore;

impl EngineCore {
    /// Makes the other sequences of a request whose first has just got its first token. Gives back what that sequence
    /// has left if it has ended with this token.
    pub(super) fn fork(&mut self, first: SeqId) -> Option<FinishedSequence> {
        // One that has failed ends with the step, or has ended with it.
        let request = self.requests.get_mut(first).filter(|request| request.failure().is_none())?;
        let num_prompt_tokens = request.num_prompt_tokens;
        let Unforked { num, like, held_end, .. } = request.take_unforked_of(first)?;
        let prompt = self.scheduler.view().tokens(first)[..num_prompt_tokens as usize].to_vec();
        let (mut num_forks, mut children) = (num.min(self.scheduler.view().num_free_seats()), Vec::new());
        while num_forks > 0 && children.is_empty() {
            match self.scheduler.fork_many(first, num_prompt_tokens, num_forks) {
                Ok(forks) => children = forks,
                // There may be room for fewer.
                Err(_) => num_forks /= 2,
            }
        }
        let num_left = num - children.len() as u32;
        children.into_iter().for_each(|child| self.join(first, child, &prompt));
        self.add_alike(first, like, &prompt, num_left);
        let reason = held_end?;
        let finished = self.scheduler.abort(first)?;
        Some(FinishedSequence { reason, ..finished })
    }

    /// Goes on with the other sequences of a request whose first has ended before they could be forked: for them, the prompt
    /// is in the prefix cache at best.
    pub(super) fn add_unforked(&mut self, first: &FinishedSequence) {
        let request = self.requests.get_mut(first.id).filter(|request| request.failure().is_none());
        let unforked = request.and_then(|request| request.take_unforked_of(first.id));
        let Some(Unforked { num, like, .. }) = unforked else { return };
        let prompt = first.tokens[..first.num_prompt_tokens as usize].to_vec();
        self.add_alike(first.id, like, &prompt, num);
    }

    /// Queues a sequence for which there is no room beside those that run, and leaves the others to be forked of it.
    fn add_alike(&mut self, first: SeqId, like: NewSequence, prompt: &[u32], num: u32) {
        if num == 0 {
            return;
        }
        let new = NewSequence { prompt: prompt.to_vec(), ..like.clone() };
        match self.scheduler.add_sibling(new) {
            Ok(next) => {
                self.join(first, next, prompt);
                if let Some(request) = self.requests.get_mut(next) {
                    request.leave_unforked(Unforked { num: num - 1, like, first: next, held_end: None });
                }
            }
            // Its first sequence had the same prompt, so this is a bug; it ends the request, not the engine.
            Err(error) => {
                if let Some(request) = self.requests.get_mut(first) {
                    request.fail(quire_scheduler::Error::from(error).into());
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
