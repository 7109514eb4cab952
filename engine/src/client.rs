//! The engine as its users see it: a trait, so that a server runs as well on a scripted engine or on a remote one.

use async_trait::async_trait;
use quire_executor::MemoryReport;
use quire_scheduler::record::FlightRecorder;

use crate::{
    EngineConfig, EngineStats, PreparedRequest, Prompt, Request, RequestExplanation, RequestId,
    RequestOutput, RequestStream, Result, SamplingParams,
};

/// Takes requests and streams their events.
#[async_trait]
pub trait EngineClient: Send + Sync {
    /// Checks and queues a request. Dropping the stream gives the request up and frees its blocks within a step.
    ///
    /// # Errors
    ///
    /// All that is wrong with the request itself; [`Error::Overloaded`](crate::Error::Overloaded); [`Error::Stopped`](crate::Error::Stopped). Nothing was queued then.
    async fn submit(&self, request: Request) -> Result<RequestStream>;

    /// Checks a request and does all that comes before queuing it, so that several can be found right before any is
    /// queued. It has its place among those that wait from now on.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit), the form of its output included.
    async fn prepare(&self, request: Request) -> Result<PreparedRequest>;

    /// Checks a request as [`submit`](Self::submit) would, and queues nothing. It comes back with its prompt as
    /// tokens, so that nothing is tokenized twice.
    ///
    /// # Errors
    ///
    /// All that is wrong with the request itself.
    async fn check(&self, request: Request) -> Result<Request>;

    /// The tokens of a prompt, as a request with it would have them; none where it is an empty text, which no request may
    /// have.
    ///
    /// # Errors
    ///
    /// What is wrong with the prompt.
    async fn tokenize(&self, prompt: Prompt) -> Result<Vec<u32>>;

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    ///
    /// [`Error::TokenId`](crate::Error::TokenId).
    async fn detokenize(&self, token_ids: Vec<u32>) -> Result<String>;

    /// The text of tokens that an output follows: as [`detokenize`](Self::detokenize), but for a character that they begin
    /// and do not end, which is part of the text of the output. Without code of its own, a client tells that too.
    ///
    /// # Errors
    ///
    /// [`Error::TokenId`](crate::Error::TokenId).
    async fn text_before(&self, token_ids: Vec<u32>) -> Result<String> {
        self.detokenize(token_ids).await
    }

    /// The tokens as the vocabulary writes them, which need not be texts. Without code of its own, a client tells the text
    /// of each.
    ///
    /// # Errors
    ///
    /// [`Error::TokenId`](crate::Error::TokenId).
    async fn token_strs(&self, token_ids: Vec<u32>) -> Result<Vec<String>> {
        let mut texts = Vec::with_capacity(token_ids.len());
        for token_id in token_ids {
            texts.push(self.detokenize(vec![token_id]).await?);
        }
        Ok(texts)
    }

    /// The bytes of each token within a text; those of a token may be parts of characters. Without code of its own, a client
    /// tells the text of each.
    ///
    /// # Errors
    ///
    /// [`Error::TokenId`](crate::Error::TokenId).
    async fn token_bytes(&self, token_ids: Vec<u32>) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::with_capacity(token_ids.len());
        for token_id in token_ids {
            all.push(self.detokenize(vec![token_id]).await?.into_bytes());
        }
        Ok(all)
    }

    /// What is served.
    fn model(&self) -> &ModelInfo;

    /// Counters and gauges, as of the last step.
    fn stats(&self) -> EngineStats;

    /// The configuration in force, where the engine runs in this process.
    fn config(&self) -> Option<&EngineConfig> {
        None
    }

    /// The memory sum of the start-up report, where the engine runs in this process and on a device.
    fn memory(&self) -> Option<&MemoryReport> {
        None
    }

    /// What every output that has not ended is doing, requests in the order of their arrival.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`](crate::Error::Stopped).
    async fn explain_all(&self) -> Result<Vec<RequestExplanation>>;

    /// Forgets what the prefix cache holds.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`](crate::Error::Stopped).
    fn reset_prefix_cache(&self) -> Result<()>;

    /// Logs scheduling decisions (`quire::schedule=debug`) on the requests of that name only, or on all again.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`](crate::Error::Stopped).
    fn log_schedule_of(&self, id: Option<&RequestId>) -> Result<()>;

    /// What the scheduler was asked and has decided, where there is a scheduler to see.
    fn flight_recorder(&self) -> Option<FlightRecorder> {
        None
    }

    /// How many requests like this one may be open at the same time, where there is no other: more can never be queued at once. None
    /// where nobody knows.
    fn room_for(&self, _request: &Request) -> Option<RequestRoom> {
        None
    }

    /// Whether requests can be served.
    ///
    /// # Errors
    ///
    /// What ended the engine.
    fn health(&self) -> Result<()>;

    /// A request from its beginning to its end.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit), and what the request failed at later.
    async fn generate(&self, request: Request) -> Result<RequestOutput> {
        self.submit(request).await?.finish().await
    }
}

/// How many requests of one kind may be open at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRoom {
    /// Those that run.
    pub num_running: usize,
    /// Those that wait beside them.
    pub num_waiting: usize,
}

impl RequestRoom {
    /// Both.
    pub fn total(self) -> usize {
        self.num_running.saturating_add(self.num_waiting)
    }
}

/// The model behind a client.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The name it is served under.
    pub name: String,
    /// Where it was loaded from.
    pub path: String,
    /// Its architecture.
    pub architecture: String,
    /// Tokens of prompt and output together: the limit in force.
    pub max_model_len: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// Whether it has a chat template.
    pub has_chat_template: bool,
    /// What parameters are where a request does not give them.
    pub default_params: SamplingParams,
}
