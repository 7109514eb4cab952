//! A grammar that is ready, and where one output is in it.

use std::sync::Arc;

use llguidance::Matcher;
use parking_lot::Mutex;
use quire_executor::TokenMask;

use super::error::GrammarError;
use super::source::on_one_line;

/// A compiled grammar. Cheap to clone; all states of it share what it has learned of the vocabulary.
#[derive(Clone)]
pub struct Grammar {
    field: &'static str,
    vocab_size: usize,
    /// At the beginning.
    pub(super) start: Arc<Mutex<Matcher>>,
}

/// What an output has of its grammar so far.
pub struct GrammarState {
    field: &'static str,
    vocab_size: usize,
    matcher: Matcher,
    num_tokens: usize,
}

impl Grammar {
    /// Of a matcher at the beginning, over a tree with one more token than `vocab_size`, the end.
    pub(super) fn new(field: &'static str, vocab_size: usize, start: Matcher) -> Self {
        Self { field, vocab_size, start: Arc::new(Mutex::new(start)) }
    }

    /// The beginning of an output.
    pub fn start(&self) -> GrammarState {
        let (field, vocab_size, matcher) = (self.field, self.vocab_size, self.start.lock().clone());
        GrammarState { field, vocab_size, matcher, num_tokens: 0 }
    }
}

impl GrammarState {
    /// The tokens that may follow; with `ends` among them where the text may end here.
    ///
    /// # Errors
    ///
    /// [`GrammarError::NoWayOn`].
    pub fn mask(&mut self, ends: impl IntoIterator<Item = u32>) -> Result<TokenMask, GrammarError> {
        let (mut mask, may_end) = self.next()?;
        if may_end {
            ends.into_iter().for_each(|id| mask.allow(id));
        }
        Ok(mask)
    }

    /// The tokens of the form that may follow, and whether the text may end here.
    ///
    /// # Errors
    ///
    /// [`GrammarError::NoWayOn`].
    pub(crate) fn next(&mut self) -> Result<(TokenMask, bool), GrammarError> {
        let allowed = self.matcher.compute_mask().map_err(|error| self.no_way_on(&error))?;
        let mut words = allowed.as_slice().to_vec();
        words.truncate(self.vocab_size.div_ceil(32));
        let mut mask = TokenMask::from_words(words);
        let end = self.vocab_size as u32;
        mask.forbid(end);
        Ok((mask, allowed.is_allowed(end)))
    }

    /// Takes the token that followed. Whether the text has come to its end: nothing can follow.
    ///
    /// # Errors
    ///
    /// [`GrammarError::NoWayOn`]: it was none that might follow, or the grammar is too much to compute.
    pub fn take(&mut self, token_id: u32) -> Result<bool, GrammarError> {
        self.matcher.consume_token(token_id).map_err(|error| self.no_way_on(&error))?;
        self.num_tokens += 1;
        Ok(self.matcher.is_stopped())
    }

    /// Whether the text may end neither in front of a token that may follow nor behind it.
    pub(crate) fn goes_on_after(&self, token_id: u32) -> bool {
        let mut state = self.clone();
        let may_end = |state: &mut Self| state.matcher.is_accepting().unwrap_or(true);
        !may_end(&mut state) && state.take(token_id).is_ok_and(|has_ended| !has_ended) && !may_end(&mut state)
    }

    /// Whether these tokens may follow, one after the other.
    pub(crate) fn admits(&mut self, token_ids: &[u32]) -> bool {
        self.matcher.validate_tokens(token_ids).is_ok_and(|num| num == token_ids.len())
    }

    fn no_way_on(&self, error: &dyn std::fmt::Display) -> GrammarError {
        let (field, num_tokens) = (self.field, self.num_tokens);
        let reason = match on_one_line(&error.to_string()) {
            // The compiler's name for it.
            reason if reason == "NoExtensionBias" => "nothing may follow".to_owned(),
            reason => reason,
        };
        GrammarError::NoWayOn { field, num_tokens, reason }
    }
}

impl Clone for GrammarState {
    /// The same place, from which the two go on without each other.
    fn clone(&self) -> Self {
        let Self { field, vocab_size, num_tokens, .. } = *self;
        Self { field, vocab_size, matcher: self.matcher.clone(), num_tokens }
    }
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, num_tokens, .. } = self;
        f.debug_struct("GrammarState")
            .field("field", field)
            .field("num_tokens", num_tokens)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("field", &self.field).finish_non_exhaustive()
    }
}
