//! The beams of one search.

use std::cmp::Ordering;

use super::CheckedBeams;

/// The search over one prompt: which texts are kept, and what each may go on with.
#[derive(Clone, Debug)]
pub(crate) struct BeamSearch {
    params: CheckedBeams,
    num_prompt_tokens: usize,
    max_tokens: usize,
    /// Tokens that each live beam has generated.
    depth: usize,
    live: Vec<Beam>,
    found: Vec<Found>,
}

/// A text that goes on.
#[derive(Clone, Debug, Default)]
struct Beam {
    token_ids: Vec<u32>,
    logprob: f64,
    /// What may follow, with its log-probability, the best first; none where that is not known yet.
    candidates: Option<Vec<(u32, f32)>>,
}

/// A text that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// What was generated, an end token included.
    pub(crate) token_ids: Vec<u32>,
    /// The sum of the log-probabilities of these tokens.
    pub(crate) logprob: f64,
    /// Whether the last one ends the text; else the length did.
    pub(crate) is_ended: bool,
}

/// How a beam comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Successor {
    /// The beam that it continues, by its place.
    pub(crate) parent: usize,
    /// With what.
    pub(crate) token_id: u32,
}

impl BeamSearch {
    /// One beam that has generated nothing.
    pub(crate) fn new(params: CheckedBeams, num_prompt_tokens: usize, max_tokens: usize) -> Self {
        let live = vec![Beam::default()];
        Self { params, num_prompt_tokens, max_tokens, depth: 0, live, found: Vec::new() }
    }

    /// Tokens that each live beam has generated.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// What a live beam has generated.
    pub(crate) fn token_ids(&self, beam: usize) -> &[u32] {
        &self.live[beam].token_ids
    }

    /// Tells what may follow a live beam, the best first. What cannot follow is left out.
    pub(crate) fn offer(&mut self, beam: usize, candidates: &[(u32, f32)]) {
        let possible = candidates.iter().copied().filter(|(_, logprob)| logprob.is_finite());
        self.live[beam].candidates = Some(possible.collect());
    }

    /// Whether a live beam knows what may follow.
    pub(crate) fn has_candidates(&self, beam: usize) -> bool {
        self.live.get(beam).is_some_and(|beam| beam.candidates.is_some())
    }

    /// Whether all live beams know what may follow.
    pub(crate) fn is_ready(&self) -> bool {
        self.live.iter().all(|beam| beam.candidates.is_some())
    }

    /// Whether nothing goes on.
    pub(crate) fn is_over(&self) -> bool {
        self.live.is_empty() || self.is_full()
    }

    /// Whether there is no room for another token.
    pub(crate) fn is_full(&self) -> bool {
        self.depth >= self.max_tokens
    }

    /// The next token of all beams: what `ends` with it is found, and of the rest the most probable go on. Of equal ones
    /// that of the earlier beam does, then the better candidate.
    pub(crate) fn advance(&mut self, ends: impl Fn(u32) -> bool) -> Vec<Successor> {
        let mut next: Vec<(Successor, f64)> = Vec::new();
        for (parent, beam) in self.live.iter_mut().enumerate() {
            for (token_id, logprob) in beam.candidates.take().unwrap_or_default() {
                let logprob = beam.logprob + f64::from(logprob);
                match ends(token_id) {
                    true => self.found.push(beam.found(Some(token_id), logprob)),
                    false => next.push((Successor { parent, token_id }, logprob)),
                }
            }
        }
        next.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        next.truncate(self.params.width);
        self.live = next.iter().map(|&(successor, logprob)| self.beam(successor, logprob)).collect();
        self.depth += 1;
        self.forget_worst();
        next.into_iter().map(|(successor, _)| successor).collect()
    }

    /// The best of what was found or is left, as many as the search is wide, the best first. The search is over then.
    pub(crate) fn take_best(&mut self) -> Vec<Found> {
        let left = std::mem::take(&mut self.live).into_iter().filter(|beam| !beam.token_ids.is_empty());
        self.found.extend(left.map(|beam| beam.found(None, beam.logprob)));
        self.forget_worst();
        std::mem::take(&mut self.found)
    }

    fn beam(&self, Successor { parent, token_id }: Successor, logprob: f64) -> Beam {
        let token_ids = self.live[parent].token_ids.iter().copied().chain([token_id]).collect();
        Beam { token_ids, logprob, candidates: None }
    }

    /// Of what was found, what can still come back: scores do not change.
    fn forget_worst(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by(|a, b| self.by_score(a, b));
        found.truncate(self.params.width);
        self.found = found;
    }

    fn by_score(&self, a: &Found, b: &Found) -> Ordering {
        self.score(b).total_cmp(&self.score(a))
    }

    /// The score of a text: see [`BeamSearchParams`](super::BeamSearchParams).
    fn score(&self, found: &Found) -> f64 {
        let num_tokens = self.num_prompt_tokens + found.token_ids.len() - usize::from(found.is_ended);
        found.logprob / (num_tokens as f64).powf(self.params.length_penalty)
    }
}

impl Beam {
    fn found(&self, end: Option<u32>, logprob: f64) -> Found {
        let token_ids = self.token_ids.iter().copied().chain(end).collect();
        Found { token_ids, logprob, is_ended: end.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    fn search(width: usize, length_penalty: f64) -> BeamSearch {
        BeamSearch::new(CheckedBeams { width, length_penalty }, 3, 2)
    }

    fn advance(search: &mut BeamSearch, candidates: &[&[(u32, f32)]]) -> Vec<(usize, u32)> {
        for (beam, candidates) in candidates.iter().enumerate() {
            assert!(!search.is_ready());
            search.offer(beam, candidates);
        }
        assert!(search.is_ready());
        search.advance(|token| token == END).into_iter().map(|next| (next.parent, next.token_id)).collect()
    }

    #[test]
    fn the_most_probable_texts_go_on_and_ended_ones_wait() {
        let mut search = search(2, 0.0);
        let next = advance(&mut search, &[&[(1, -1.0), (END, -1.5), (2, -2.0), (3, -3.0)]]);
        assert_eq!(next, [(0, 1), (0, 2)]);
        let next = advance(&mut search, &[&[(4, -5.0), (5, -6.0)], &[(6, -0.1), (7, -0.2)]]);
        assert_eq!(next, [(1, 6), (1, 7)]);
        assert!(search.is_over());
        let best = search.take_best();
        assert_eq!(best[0], Found { token_ids: vec![END], logprob: -1.5, is_ended: true });
        assert_eq!((best.len(), &best[1].token_ids[..], best[1].is_ended), (2, &[2, 6][..], false));
    }

    #[test]
    fn an_end_token_does_not_count_in_the_length() {
        // -1.5 over 3 tokens, against -2.0 over 5.
        let mut search = search(1, 1.0);
        advance(&mut search, &[&[(1, -1.0), (END, -1.5)]]);
        advance(&mut search, &[&[(4, -1.0), (5, -6.0)]]);
        assert_eq!(search.take_best()[0].token_ids, [1, 4]);
    }

    #[test]
    fn equal_texts_keep_their_order_and_impossible_ones_are_left_out() {
        let mut search = search(3, 1.0);
        let next = advance(&mut search, &[&[(5, -1.0), (3, -1.0), (4, f32::NEG_INFINITY)]]);
        assert_eq!(next, [(0, 5), (0, 3)]);
        let next = advance(&mut search, &[&[(8, -1.0)], &[(7, -1.0), (6, -1.0)]]);
        assert_eq!(next, [(0, 8), (1, 7), (1, 6)]);
    }

    #[test]
    fn a_search_ends_where_nothing_can_follow() {
        let mut search = search(2, 1.0);
        assert_eq!(advance(&mut search, &[&[(END, -1.0)]]), []);
        assert!(search.is_over());
        assert_eq!(search.take_best().len(), 1);
    }
}
