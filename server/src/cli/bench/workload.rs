//! Requests of made-up tokens.

use quire_engine::{Prompt, Request, SamplingParams};

/// The made-up ids lie below this, and below the size of the vocabulary.
const MAX_TOKEN_ID: usize = 150_000;

/// How long a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Tokens of the prompt.
    pub(super) input_len: usize,
    /// Tokens generated after it, whatever they are.
    pub(super) output_len: usize,
}

impl Shape {
    /// Of prompt and output.
    pub(super) fn num_tokens(self) -> usize {
        self.input_len.saturating_add(self.output_len)
    }
}

/// Prompts of a vocabulary, and how they are continued.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) vocab_size: usize,
    pub(super) params: SamplingParams,
}

impl Workload {
    /// Prompt number `k`.
    pub(super) fn request(&self, k: usize, shape: Shape) -> Request {
        let ids = MAX_TOKEN_ID.min(self.vocab_size);
        let token = |j: usize| ((k * 7919 + j * 104_729) % ids) as u32;
        let params = SamplingParams {
            ignore_eos: true,
            max_tokens: Some(shape.output_len as u64),
            ..self.params.clone()
        };
        Request::new(Prompt::TokenIds((0..shape.input_len).map(token).collect()), params)
    }

    /// As many requests of one shape, from prompt `first` on.
    pub(super) fn requests(&self, first: usize, count: usize, shape: Shape) -> Vec<Request> {
        (first..first + count).map(|k| self.request(k, shape)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload { vocab_size: 100, params: SamplingParams::default() }
    }

    #[test]
    fn prompts_differ_and_stay_in_the_vocabulary() {
        let shape = Shape { input_len: 50, output_len: 3 };
        let requests = workload().requests(1, 2, shape);
        let ids = |request: &Request| match &request.prompt {
            Prompt::TokenIds(ids) => ids.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(ids(&requests[0])[..2], [7919 % 100, (7919 + 104_729) % 100]);
        assert_ne!(ids(&requests[0]), ids(&requests[1]));
        assert!(ids(&requests[1]).iter().all(|&id| id < 100));
        assert_eq!(requests[0].params.max_tokens, Some(3));
    }
}
