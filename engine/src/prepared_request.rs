//! A request that was found right, and has not been queued.

use std::fmt;

use crate::{EventSink, RequestHandle, RequestStream, Result};

/// A request after all checks: its prompt as tokens, and what is left to be done. One that is dropped leaves nothing behind.
///
/// [`EngineClient::prepare`](crate::EngineClient::prepare) makes one.
pub struct PreparedRequest {
    prompt: Vec<u32>,
    start: Box<Start>,
}

type Start = dyn FnOnce(Vec<u32>, Box<dyn EventSink>) -> Result<RequestHandle> + Send;

impl PreparedRequest {
    /// A request with those tokens as its prompt; `start` queues it with them, to send what comes of it to a sink, and waits
    /// for nothing.
    pub fn new(
        prompt: Vec<u32>,
        start: impl FnOnce(Vec<u32>, Box<dyn EventSink>) -> Result<RequestHandle> + Send + 'static,
    ) -> Self {
        Self { prompt, start: Box::new(start) }
    }

    /// The tokens of its prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The same, with the sink that it is started into in another one: who passes requests on sees what comes of them.
    #[must_use]
    pub fn with_sink(
        self,
        wrap: impl FnOnce(Box<dyn EventSink>) -> Box<dyn EventSink> + Send + 'static,
    ) -> Self {
        let start = self.start;
        Self { prompt: self.prompt, start: Box::new(move |prompt, sink| start(prompt, wrap(sink))) }
    }

    /// Queues it. Dropping the stream gives the request up and frees its blocks within a step.
    ///
    /// # Errors
    ///
    /// What the engine has come to since: [`Error::Stopped`](crate::Error::Stopped).
    pub fn start(self) -> Result<RequestStream> {
        let (sender, events) = RequestStream::events();
        Ok(RequestStream::new(events, self.start_into(Box::new(sender))?))
    }

    /// As [`start`](Self::start), where events are taken as they come and not waited for.
    ///
    /// # Errors
    ///
    /// As there; the sink is dropped.
    pub fn start_into(self, sink: Box<dyn EventSink>) -> Result<RequestHandle> {
        (self.start)(self.prompt, sink)
    }
}

impl fmt::Debug for PreparedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedRequest")
            .field("num_prompt_tokens", &self.prompt.len())
            .finish_non_exhaustive()
    }
}
