//! How long a request may get, and what of a trace that cuts off.

use quire_kvcache::{Capacity, KvCacheConfig};
use serde::Serialize;

use super::{Trace, TraceRequest};
use crate::config::SchedulerConfig;
use crate::error::AddError;

/// The bounds that an engine sets to the length of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Tokens of prompt and output together.
    pub max_model_len: u32,
    /// The pool.
    pub capacity: Capacity,
    /// What requests give as `max_tokens` where the trace does not say; `None`: as many tokens as they generate.
    pub max_tokens: Option<u32>,
}

/// What ends an output before the trace does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// What the request gives.
    MaxTokens,
    /// The limit of prompt and output together.
    MaxModelLen,
    /// The pool, which the request fills alone.
    Pool,
}

/// Requests whose outputs one limit cuts short: they run, and end with fewer tokens than the trace says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cut {
    /// The limit.
    pub limit: Limit,
    /// How many there are.
    pub num_requests: u64,
    /// Tokens that they do not generate, all together.
    pub num_tokens: u64,
    /// The first of them, by its place in the trace.
    pub first_request: usize,
    /// Why that is cut, with its numbers.
    pub reason: String,
}

impl Room {
    /// That of an engine with such limits.
    pub fn new(scheduler: &SchedulerConfig, cache: &KvCacheConfig) -> Self {
        Self { max_model_len: scheduler.max_model_len, capacity: cache.capacity(), max_tokens: None }
    }

    /// Whether a prompt can run, with a token of output.
    ///
    /// # Errors
    /// What [`Scheduler::add`](crate::Scheduler::add) would refuse it with, before a prompt of that length is made up.
    pub fn check(&self, prompt_tokens: u32) -> Result<(), AddError> {
        let Self { max_model_len, capacity, .. } = *self;
        if prompt_tokens >= max_model_len {
            return Err(AddError::PromptTooLong { num_tokens: prompt_tokens as usize, max_model_len });
        }
        let (need, have) =
            (capacity.blocks_for(prompt_tokens.saturating_add(1)), capacity.admissible_blocks());
        if need > have {
            return Err(AddError::NeverFits { num_tokens: prompt_tokens, need, have });
        }
        Ok(())
    }

    /// The limit that ends a request first, with what it leaves to the output; `None` where all of it fits.
    fn limit(&self, request: &TraceRequest) -> Option<(Limit, u32)> {
        let &TraceRequest { prompt_tokens, output_tokens, max_tokens, .. } = request;
        let given = max_tokens.or(self.max_tokens).unwrap_or(output_tokens);
        let limits = [
            (Limit::MaxTokens, given),
            (Limit::MaxModelLen, self.max_model_len.saturating_sub(prompt_tokens)),
            (Limit::Pool, self.capacity.max_len_that_fits().saturating_sub(prompt_tokens)),
        ];
        let least = limits.into_iter().min_by_key(|(_, left)| *left);
        least.filter(|(_, left)| *left < output_tokens)
    }

    fn reason(&self, limit: Limit, request: &TraceRequest, left: u32) -> String {
        let TraceRequest { prompt_tokens, output_tokens, .. } = request;
        let why = match limit {
            Limit::MaxTokens => format!("max_tokens = {left}"),
            Limit::MaxModelLen => {
                format!("max_model_len = {} with its {prompt_tokens} of prompt", self.max_model_len)
            }
            Limit::Pool => format!(
                "the pool of {} tokens with its {prompt_tokens} of prompt",
                self.capacity.max_len_that_fits()
            ),
        };
        format!("{output_tokens} output tokens, {left} fit: {why}")
    }
}

impl Trace {
    /// Whose outputs end early in so much room, by what ends them. Requests that could never run are not among them:
    /// see [`Room::check`].
    ///
    /// ```
    /// use quire_scheduler::trace::{Limit, Room, Trace};
    /// use quire_scheduler::{KvCacheConfig, SchedulerConfig};
    ///
    /// let trace = Trace::parse_csv("arrival_s,prompt_tokens,output_tokens\n0,10,300\n")?;
    /// let room = Room::new(&SchedulerConfig::new(256), &KvCacheConfig::new(100, 16));
    /// let cuts = trace.cuts(&room);
    /// assert_eq!((cuts[0].limit, cuts[0].num_requests, cuts[0].num_tokens), (Limit::MaxModelLen, 1, 54));
    /// # Ok::<(), quire_scheduler::trace::TraceError>(())
    /// ```
    pub fn cuts(&self, room: &Room) -> Vec<Cut> {
        let mut cuts: Vec<Cut> = Vec::new();
        let running = self.requests.iter().enumerate();
        for (place, request) in running.filter(|(_, request)| room.check(request.prompt_tokens).is_ok()) {
            let Some((limit, left)) = room.limit(request).filter(|(_, left)| *left > 0) else { continue };
            let num_tokens = u64::from(request.output_tokens - left);
            match cuts.iter_mut().find(|cut| cut.limit == limit) {
                Some(cut) => {
                    cut.num_requests += 1;
                    cut.num_tokens += num_tokens;
                }
                None => {
                    let reason = room.reason(limit, request, left);
                    cuts.push(Cut { limit, num_requests: 1, num_tokens, first_request: place, reason });
                }
            }
        }
        cuts
    }
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { num_requests, num_tokens, first_request, reason, .. } = self;
        let outputs = if *num_requests == 1 { "output" } else { "outputs" };
        write!(
            f,
            "{num_requests} {outputs}, by {num_tokens} tokens, the first is request {first_request}: {reason}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(max_model_len: u32, num_blocks: u32) -> Room {
        Room::new(&SchedulerConfig::new(max_model_len), &KvCacheConfig::new(num_blocks, 16))
    }

    fn cuts(text: &str, room: &Room) -> Vec<(Limit, u64, u64, usize)> {
        let trace = Trace::parse_csv(text).unwrap();
        let all = trace.cuts(room).into_iter();
        all.map(|cut| (cut.limit, cut.num_requests, cut.num_tokens, cut.first_request)).collect()
    }

    #[test]
    fn the_limit_that_ends_an_output_first_is_told() {
        let trace = "arrival_s,prompt_tokens,output_tokens\n0,10,20\n0,10,300\n0,20,300\n0,300,1\n";
        assert_eq!(cuts(trace, &room(1000, 100)), []);
        assert_eq!(cuts(trace, &room(256, 100)), [(Limit::MaxModelLen, 2, 54 + 64, 1)]);
        assert_eq!(cuts(trace, &room(1000, 10)), [(Limit::Pool, 2, 150 + 160, 1)]);
        let asked = Room { max_tokens: Some(5), ..room(1000, 100) };
        assert_eq!(cuts(trace, &asked), [(Limit::MaxTokens, 3, 15 + 295 + 295, 0)]);
        let nothing = Room { max_tokens: Some(0), ..asked };
        assert_eq!(cuts(trace, &nothing), [], "such requests are refused");
        let given = "arrival_s,prompt_tokens,output_tokens,max_tokens\n0,10,20,20\n";
        assert_eq!(cuts(given, &asked), [], "the trace goes first");
    }
}
