//! Streamed answers of both APIs: chunks with choices, the usage, the end.

use quire_engine::{Delta, RequestEvent};
use serde::Serialize;

use super::answer::Head;
use super::error::ApiError;
use super::events::{EventWriter, Events};
use super::streaming::Streaming;
use super::usage::Usage;

/// What an API makes of the pieces of its outputs.
pub(crate) trait ChoiceWriter: Send + Unpin + 'static {
    /// Whether chunks have `usage` as null where it says nothing; otherwise it is left out.
    const HAS_NULLS: bool;

    /// Writes what comes before the tokens of a piece are counted.
    fn begin(&mut self, _index: u32, _chunks: &mut ChunkSink<'_>) {}

    /// Writes a piece of the request at `place`.
    fn delta(&mut self, place: usize, delta: Delta, chunks: &mut ChunkSink<'_>);
}

/// Writes a stream.
pub(crate) struct Chunks<W> {
    pub(crate) head: Head,
    pub(crate) streaming: Streaming,
    /// So far.
    pub(crate) usage: Usage,
    pub(crate) writer: W,
}

/// Where chunks go.
pub(crate) struct ChunkSink<'a> {
    head: &'a Head,
    /// In each chunk: none where the key is left out.
    usage: Option<Option<Usage>>,
    out: &'a mut Events,
}

/// A piece of a stream.
#[derive(Debug, Serialize)]
struct Chunk<'a, C> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

impl ChunkSink<'_> {
    /// Sends a chunk with one choice.
    pub(crate) fn send(&mut self, choice: impl Serialize) {
        self.out.data(&Chunk { head: self.head, choices: &[choice], usage: self.usage });
    }
}

impl<W: ChoiceWriter> Chunks<W> {
    fn delta(&mut self, place: usize, delta: Delta, out: &mut Events) {
        let mut sink = ChunkSink { head: &self.head, usage: None, out };
        let shown = |usage: Usage| match self.streaming.continuous_usage {
            true => Some(Some(usage)),
            false => W::HAS_NULLS.then_some(None),
        };
        sink.usage = shown(self.usage);
        self.writer.begin(delta.index, &mut sink);
        self.usage.generated(delta.token_ids.len() as u64);
        sink.usage = shown(self.usage);
        self.writer.delta(place, delta, &mut sink);
    }
}

impl<W: ChoiceWriter> EventWriter for Chunks<W> {
    fn write(&mut self, place: usize, event: RequestEvent, out: &mut Events) -> Result<(), ApiError> {
        match event {
            RequestEvent::Delta(delta) => self.delta(place, delta, out),
            RequestEvent::Finished(output) => self.usage.cached(output.num_cached_tokens.into()),
            RequestEvent::SoFar(_) => {}
            RequestEvent::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.include_usage {
            let choices: &[()] = &[];
            out.data(&Chunk { head: &self.head, choices, usage: Some(Some(self.usage)) });
        }
    }
}
