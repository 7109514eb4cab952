//! What is asked of the engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::{BeamSearchParams, Prompt, SamplingParams};

/// The name of a request, in logs and in its output. It need not be unique: inside, requests have numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// A name that the client chose.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// A name that no other call of this process returns: `req-1`, `req-2`, ...
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(format!("req-{}", NEXT.fetch_add(1, Ordering::Relaxed)).into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for RequestId {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl From<RequestId> for String {
    fn from(id: RequestId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A prompt, and how to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// What to continue.
    pub prompt: Prompt,
    /// How.
    pub params: SamplingParams,
    /// Where it is given, the most probable continuations are searched for in this way, and `params` counts for nothing.
    pub beam_search: Option<BeamSearchParams>,
    /// Whether nothing is generated: its one output is empty, and ends with the reason `length`. The prompt is computed, with
    /// its log-probabilities where `params` ask for them; what they and `beam_search` say of outputs is checked, and counts for
    /// nothing. Such a prompt may be as long as the context.
    pub prompt_alone: bool,
    /// On whose behalf it runs, for policies that share the device among tenants. Tenants do not share cached blocks.
    pub tenant: Option<String>,
    /// For policies that look at it: lower is served first.
    pub priority: i32,
    /// Keeps cached blocks from those who do not know it.
    pub cache_salt: Option<String>,
}

impl Request {
    /// Bytes of all that is tokenized for it.
    pub(crate) fn num_bytes(&self) -> usize {
        self.prompt.num_bytes() + self.params.bad_words.iter().map(|word| 2 * word.len() + 1).sum::<usize>()
    }

    /// Sequences that it asks for; not checked yet.
    pub(crate) fn num_seqs(&self) -> usize {
        let num = match &self.beam_search {
            _ if self.prompt_alone => 1,
            Some(search) => search.beam_width,
            None => self.params.n,
        };
        num as usize
    }

    /// A search for the most probable continuations of a prompt.
    pub fn beam_search(prompt: impl Into<Prompt>, params: BeamSearchParams) -> Self {
        Self { beam_search: Some(params), ..Self::new(prompt, SamplingParams::default()) }
    }

    /// A request with a fresh name, of no tenant.
    pub fn new(prompt: impl Into<Prompt>, params: SamplingParams) -> Self {
        Self {
            id: RequestId::next(),
            prompt: prompt.into(),
            params,
            beam_search: None,
            prompt_alone: false,
            tenant: None,
            priority: 0,
            cache_salt: None,
        }
    }
}
