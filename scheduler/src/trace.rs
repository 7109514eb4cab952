//! Loads: how long requests are and when they come, without their text.
//!
//! ```
//! use quire_scheduler::trace::Trace;
//!
//! let trace = Trace::parse_csv("arrival_s,prompt_tokens,output_tokens,tenant\n0.5,100,20,a\n1.5,30,4,b\n")?;
//! assert_eq!(trace.requests[1].prompt_tokens, 30);
//! assert_eq!(trace.tenants, ["a", "b"]);
//!
//! let error = Trace::parse_csv("arrival_s,prompt_tokens,output_tokens\n0.5,many,20\n").unwrap_err();
//! assert_eq!(error.to_string(), "line 2, column `prompt_tokens`: `many`, expected a whole number from 1 to 100000000");
//! # Ok::<(), quire_scheduler::trace::TraceError>(())
//! ```

mod csv;
mod error;
mod jsonl;
mod law;
mod room;
mod row;

use std::sync::Arc;

use crate::ids::{TenantId, Time};

pub use error::TraceError;
pub use room::{Cut, Limit, Room};

/// Requests in the order of their arrival.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// The requests, by arrival.
    pub requests: Vec<TraceRequest>,
    /// The names of tenants; a [`TenantId`] is a place in this list. Those without one are a tenant with an empty name;
    /// where nobody has one, the list is empty.
    pub tenants: Vec<String>,
    /// What arrivals are measured in.
    pub arrivals: Arrivals,
}

/// What the arrivals of a trace are measured in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrivals {
    /// Seconds.
    Seconds,
    /// Mean gaps between requests: they become seconds once a rate is given.
    MeanGaps,
}

/// One request of a trace.
#[derive(Clone, PartialEq, Debug)]
pub struct TraceRequest {
    /// When it comes, in the unit of the trace.
    pub arrival: f64,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens it generates, at least 1.
    pub output_tokens: u32,
    /// Tokens it may generate, at least `output_tokens`; `None` where the trace does not say.
    pub max_tokens: Option<u32>,
    /// On whose behalf it runs. Tenants share no cached blocks.
    pub tenant: TenantId,
    /// For policies that look at it: lower is served first.
    pub priority: i32,
    /// What its tokens are, as far as prefix caching is concerned.
    pub content: Content,
}

/// Which tokens of a request are those of others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// None.
    Own,
    /// The prompt begins as those of its group do.
    Prefix {
        /// The group.
        group: u32,
        /// How many tokens of the prompt are the group's.
        num_tokens: u32,
    },
    /// Blocks of `block_size` tokens are equal where their names are, as a recording knows it.
    Blocks {
        /// The names of the full blocks of prompt and output, in order.
        names: Arc<[u64]>,
        /// Tokens a block holds.
        block_size: u32,
    },
}

impl Trace {
    /// Reads a trace from text, a JSON object a line with `prompt_tokens` and `output_tokens`, and where present
    /// `arrival_s` or `arrival_unit` (in mean gaps), `max_tokens`, `tenant`, `priority`, `prefix` and `prefix_tokens`; other
    /// fields are ignored.
    ///
    /// # Errors
    /// The first [`TraceError`].
    pub fn parse_jsonl(text: &str) -> Result<Self, TraceError> {
        jsonl::parse(text)
    }

    /// Reads a trace from text, comma-separated values under a header with `arrival_s`, `prompt_tokens` and
    /// `output_tokens`, and where present `max_tokens`, `tenant`, `priority`, `prefix` and `prefix_tokens`; other columns are
    /// ignored.
    ///
    /// # Errors
    /// The first [`TraceError`].
    pub fn parse_csv(text: &str) -> Result<Self, TraceError> {
        csv::parse(text)
    }

    /// Reads either form: text that begins with a brace or a bracket is JSON.
    ///
    /// # Errors
    /// The first [`TraceError`].
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let begin = text.trim_start_matches('\u{feff}').trim_start();
        if begin.starts_with(['{', '[']) { Self::parse_jsonl(text) } else { Self::parse_csv(text) }
    }

    /// Reads either form from a file's bytes.
    ///
    /// # Errors
    /// The first [`TraceError`].
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            TraceError::NotUtf8 { line: 1 + before.iter().filter(|byte| **byte == b'\n').count() }
        })?;
        Self::parse(text)
    }

    /// The name of a request's tenant; `None` where it has none.
    pub fn tenant_name(&self, request: &TraceRequest) -> Option<&str> {
        let name = self.tenants.get(usize::try_from(request.tenant.0).ok()?)?;
        Some(name.as_str()).filter(|name| !name.is_empty())
    }

    /// Whether requests come at different times, in whatever unit.
    pub fn has_times(&self) -> bool {
        self.requests.last().is_some_and(|request| request.arrival > 0.0)
    }

    /// When each request comes if `requests_per_s` come in the mean. Without a rate: as the trace says, or all at the
    /// beginning where it has mean gaps only. Where the trace [has no times](Self::has_times), a rate gives it those of
    /// [`with_gaps`](Self::with_gaps) for the seed 0.
    ///
    /// # Errors
    /// [`TraceError::TooLate`], where the rate is too low for the clock.
    pub fn arrival_times(&self, requests_per_s: Option<f64>) -> Result<Vec<Time>, TraceError> {
        if requests_per_s.is_some() && !self.has_times() && !self.requests.is_empty() {
            return self.with_gaps(0).arrival_times(requests_per_s);
        }
        let last = self.requests.last().map_or(0.0, |request| request.arrival);
        let seconds_per_unit = match (self.arrivals, requests_per_s) {
            (Arrivals::Seconds, None) => 1.0,
            (Arrivals::MeanGaps, None) => 0.0,
            (Arrivals::MeanGaps, Some(rate)) => 1.0 / rate,
            (Arrivals::Seconds, Some(rate)) => self.requests.len() as f64 / rate / last,
        };
        let time = |(place, request): (usize, &TraceRequest)| {
            let seconds = request.arrival * seconds_per_unit;
            match (0.0..=row::MAX_MOMENT).contains(&seconds) {
                true => Ok(Time::from_nanos((seconds * 1e9) as u64)),
                false => Err(TraceError::TooLate { request: place, seconds: seconds as u128 }),
            }
        };
        self.requests.iter().enumerate().map(time).collect()
    }

    /// The longest request, prompt and output together.
    pub fn max_len(&self) -> u32 {
        self.requests.iter().map(|request| request.prompt_tokens + request.output_tokens).max().unwrap_or(0)
    }
}

impl TraceRequest {
    /// The token at a position of request number `index`: made up, and equal to those of others where the trace says
    /// so.
    pub fn token(&self, index: usize, position: u32) -> u32 {
        /// The upper half of ids are those of groups and blocks.
        const SHARED: u32 = 1 << 31;
        let own = index as u32 & !SHARED;
        match &self.content {
            Content::Prefix { group, num_tokens } if position < *num_tokens => group | SHARED,
            Content::Blocks { names, block_size } => {
                let name = names.get((position / block_size) as usize);
                let half = 32 * (position % block_size % 2);
                name.map_or(own, |name| (name >> half) as u32)
            }
            _ => own,
        }
    }

    /// The prompt of request number `index`.
    pub fn prompt(&self, index: usize) -> Vec<u32> {
        match &self.content {
            Content::Own => vec![self.token(index, 0); self.prompt_tokens as usize],
            _ => (0..self.prompt_tokens).map(|position| self.token(index, position)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_sets_the_mean_gap_whatever_the_unit() {
        let check = |text: &str, rate, expected: [u64; 2]| {
            let trace = Trace::parse(text).unwrap();
            let times = trace.arrival_times(rate).unwrap();
            let millis: Vec<_> = times.iter().map(|t| t.as_nanos() / 1_000_000).collect();
            assert_eq!(millis, expected);
        };
        let units = "{\"prompt_tokens\": 1, \"output_tokens\": 1, \"arrival_unit\": 1.0}\n\
                     {\"prompt_tokens\": 1, \"output_tokens\": 1, \"arrival_unit\": 3.0}\n";
        check(units, None, [0, 0]);
        check(units, Some(2.0), [500, 1500]);
        let seconds = "arrival_s,prompt_tokens,output_tokens\n1,1,1\n4,1,1\n";
        check(seconds, None, [1000, 4000]);
        check(seconds, Some(1.0), [500, 2000]);
        let error = Trace::parse(units).unwrap().arrival_times(Some(1e-300)).unwrap_err();
        assert!(matches!(error, TraceError::TooLate { request: 0, .. }), "{error}");
        let last = format!("arrival_s,prompt_tokens,output_tokens\n{},1,1\n", row::MAX_MOMENT);
        assert!(Trace::parse(&last).unwrap().arrival_times(None).is_ok());
    }

    #[test]
    fn a_rate_gives_times_to_a_trace_that_has_none() {
        let rows = |row: &str| (0..2000).map(|_| row).collect::<String>();
        let untimed = rows("{\"prompt_tokens\": 1, \"output_tokens\": 1}\n");
        let at_zero = rows("{\"prompt_tokens\": 1, \"output_tokens\": 1, \"arrival_s\": 0}\n");
        for text in [untimed, at_zero] {
            let trace = Trace::parse(&text).unwrap();
            assert!(!trace.has_times());
            assert!(trace.arrival_times(None).unwrap().iter().all(|time| *time == Time::ZERO));
            let times = trace.arrival_times(Some(2.0)).unwrap();
            assert!(times.is_sorted() && times[0] < times[1]);
            let rate = 2000.0 / (times[1999].as_nanos() as f64 / 1e9);
            assert!((rate - 2.0).abs() < 0.2, "{rate}");
            assert_ne!(trace.with_gaps(1).arrival_times(Some(2.0)).unwrap(), times, "seeds differ");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told_by_line() {
        let error =
            Trace::parse_bytes(b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n0,\xe9,1\n").unwrap_err();
        assert_eq!(error, TraceError::NotUtf8 { line: 3 });
    }

    #[test]
    fn tokens_are_shared_where_the_trace_says_so() {
        let trace = Trace::parse_csv(
            "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n0,4,1,a,2\n0,4,1,a,\n0,4,1,,\n0,4,1,b,2\n",
        )
        .unwrap();
        let prompts: Vec<_> = trace.requests.iter().enumerate().map(|(i, r)| r.prompt(i)).collect();
        assert_eq!(prompts[0][..2], prompts[1][..2]);
        assert_ne!(prompts[0][2], prompts[1][2]);
        assert_eq!(prompts[1][0], prompts[1][3]);
        assert_ne!(prompts[0][0], prompts[3][0]);
        assert_eq!(prompts[2], [2; 4]);
    }
}
