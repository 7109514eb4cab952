//! Streamed answers of both APIs: chunks with choices, the usage, the end.

use quire_engine::{Delta, RequestEvent, RequestOutput, TokenLogprobs};
use serde::Serialize;

use super::answer::Head;
use super::error::ApiError;
use super::event_buffer::Events;
use super::events::EventWriter;
use super::field_names::FieldNames;
use super::streaming::Streaming;
use super::usage::Usage;

/// What an API makes of the pieces of its outputs.
pub(crate) trait ChoiceWriter: Send + 'static {
    /// Whether chunks have `usage` as null where it says nothing; otherwise it is left out.
    const HAS_NULLS: bool;

    /// Writes what comes before the tokens of a piece are counted.
    fn begin(&mut self, _index: u32, _chunks: &mut ChunkSink<'_>) {}

    /// Takes the log-probabilities of the prompt of the request at `place`, which come before its first piece.
    fn prompt(&mut self, _place: usize, _logprobs: Vec<Option<TokenLogprobs>>) {}

    /// Writes a piece of the request at `place`.
    fn delta(&mut self, place: usize, delta: Delta, chunks: &mut ChunkSink<'_>);

    /// Whether outputs come whole, at their end, and no pieces before.
    fn comes_whole(&self) -> bool {
        false
    }

    /// Writes the outputs of the request at `place`, where they come whole.
    fn whole(&mut self, _place: usize, _output: &RequestOutput, _chunks: &mut ChunkSink<'_>) {}
}

/// Writes a stream.
pub(crate) struct Chunks<W> {
    /// What all chunks begin with: see [`opening`].
    opening: Vec<u8>,
    streaming: Streaming,
    /// So far.
    usage: Usage,
    /// What the client calls the fields that errors are about.
    names: FieldNames,
    writer: W,
}

/// Where chunks go.
pub(crate) struct ChunkSink<'a> {
    opening: &'a [u8],
    /// In each chunk: none where the key is left out.
    usage: Option<Option<Usage>>,
    out: &'a mut Events,
}

/// The JSON of a chunk up to its choices: the same for all chunks of an answer, each of which is a token.
fn opening(head: &Head) -> Vec<u8> {
    let mut json = serde_json::to_vec(head).expect("a head has text keys");
    json.pop();
    json.extend_from_slice(b",\"choices\":[");
    json
}

impl ChunkSink<'_> {
    /// Sends a chunk with one choice.
    pub(crate) fn send(&mut self, choice: impl Serialize) {
        self.send_choices(Some(choice));
    }

    fn send_choices(&mut self, choice: Option<impl Serialize>) {
        self.out.begin();
        self.out.text(self.opening);
        choice.iter().for_each(|choice| self.out.json(choice));
        self.out.text(b"]");
        if let Some(usage) = &self.usage {
            self.out.text(b",\"usage\":");
            self.out.json(usage);
        }
        self.out.text(b"}");
        self.out.end();
    }
}

impl<W: ChoiceWriter> Chunks<W> {
    /// A stream whose prompts cost as much as `usage` says, for a client that calls fields by those names.
    pub(crate) fn new(head: Head, streaming: Streaming, usage: Usage, names: FieldNames, writer: W) -> Self {
        Self { opening: opening(&head), streaming, usage, names, writer }
    }

    fn delta(&mut self, place: usize, delta: Delta, out: &mut Events) {
        let mut sink = ChunkSink { opening: &self.opening, usage: self.shown_usage(), out };
        self.writer.begin(delta.index, &mut sink);
        self.usage.generated(delta.token_ids.len() as u64);
        sink.usage = self.shown_usage();
        self.writer.delta(place, delta, &mut sink);
    }

    fn finished(&mut self, place: usize, output: &RequestOutput, out: &mut Events) {
        if !self.writer.comes_whole() {
            return self.usage.cached(output.num_cached_tokens.into());
        }
        self.usage.whole(output);
        let mut sink = ChunkSink { opening: &self.opening, usage: self.shown_usage(), out };
        self.writer.whole(place, output, &mut sink);
    }

    /// What a chunk says of the usage so far.
    fn shown_usage(&self) -> Option<Option<Usage>> {
        match self.streaming.continuous_usage {
            true => Some(Some(self.usage)),
            false => W::HAS_NULLS.then_some(None),
        }
    }
}

impl<W: ChoiceWriter> EventWriter for Chunks<W> {
    fn write(&mut self, place: usize, event: RequestEvent, out: &mut Events) -> Result<(), ApiError> {
        match event {
            RequestEvent::PromptLogprobs(logprobs) => self.writer.prompt(place, logprobs),
            RequestEvent::Delta(_) if self.writer.comes_whole() => {}
            RequestEvent::Delta(delta) => self.delta(place, delta, out),
            RequestEvent::Finished(output) => self.finished(place, &output, out),
            RequestEvent::SoFar(_) => {}
            RequestEvent::Failed(error) => return Err(self.names.translate(error.into())),
        }
        Ok(())
    }

    fn num_tokens(&self, event: &RequestEvent) -> u64 {
        match event {
            RequestEvent::Delta(delta) => delta.token_ids.len() as u64,
            RequestEvent::Finished(output) if self.writer.comes_whole() => {
                output.outputs.iter().map(|one| one.token_ids.len() as u64).sum()
            }
            _ => 0,
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.include_usage {
            let usage = Some(Some(self.usage));
            ChunkSink { opening: &self.opening, usage, out }.send_choices(None::<()>);
        }
    }
}
