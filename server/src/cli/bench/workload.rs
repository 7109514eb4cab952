//! Requests of made-up tokens.

use std::path::{Path, PathBuf};

use quire_engine::{Prompt, Request, SamplingParams};
use serde::Deserialize;

use crate::error::{Error, Result};

/// The made-up ids lie below this, and below the size of the vocabulary.
const MAX_TOKEN_ID: usize = 150_000;

/// How long a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Shape {
    /// Tokens of the prompt.
    #[serde(rename = "prompt_tokens")]
    pub(super) input_len: usize,
    /// Tokens generated after it, whatever they are.
    #[serde(rename = "output_tokens")]
    pub(super) output_len: usize,
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

/// The lengths in a trace: an object a line, with `prompt_tokens` and `output_tokens`.
pub(super) fn read_trace(path: &Path) -> Result<Vec<Shape>> {
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let shapes = lines.map(|(index, line)| {
        let fail = |reason: String| Error::Trace { path: PathBuf::from(path), line: index + 1, reason };
        let shape: Shape = serde_json::from_str(line).map_err(|error| fail(error.to_string()))?;
        match shape.input_len.min(shape.output_len) {
            0 => Err(fail("a request has at least one token of prompt and one of output".to_owned())),
            _ => Ok(shape),
        }
    });
    shapes.collect()
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

    #[test]
    fn a_trace_with_a_bad_line_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let check = |text: &str, message: &str| {
            std::fs::write(&path, text).unwrap();
            let error = read_trace(&path).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check("{\"prompt_tokens\": 5, \"output_tokens\": 2}\n\n{\"prompt_tokens\": 5}\n", "line 3");
        check("{\"prompt_tokens\": 0, \"output_tokens\": 2}", "at least one token of prompt");
        std::fs::write(&path, "{\"id\": 1, \"prompt_tokens\": 5, \"output_tokens\": 2}\n").unwrap();
        assert_eq!(read_trace(&path).unwrap(), [Shape { input_len: 5, output_len: 2 }]);
    }
}
