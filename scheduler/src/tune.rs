//! Settings for a goal, found by simulation.
//!
//! The goal is the rate of requests, of the trace's kind and with gaps of its kind, that an engine sustains while 99 of
//! 100 requests get their first token, and their later ones, in time. For each choice of settings the rate is found by
//! bisection; settings are changed one at a time, as long as one is better.

use serde::Serialize;

use quire_kvcache::KvCacheConfig;

use crate::config::SchedulerConfig;
use crate::cost::CostModel;
use crate::policies::PolicyRegistry;
use crate::simulate::{Report, Setup, SimulateError, simulate};
use crate::trace::Trace;

mod memory;
mod preset;

pub use memory::Memory;
pub use preset::{Preset, presets};

/// What is to be reached.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Goal {
    /// Of 100 requests 99 have their first token by then, in milliseconds.
    pub max_ttft_ms: f64,
    /// Of 100 requests 99 have no longer mean time from token to token, in milliseconds.
    pub max_tpot_ms: f64,
}

/// What may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens a step computes.
    pub max_num_batched_tokens: u32,
    /// Tokens a block holds.
    pub block_size: u32,
    /// Tokens of prompt and output together.
    pub max_model_len: u32,
    /// The share of the device's memory in use, in percent.
    pub memory_percent: u32,
}

/// What came of settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// Requests are served within the goal, up to some rate.
    Serves,
    /// At no rate they are.
    TooSlow,
    /// The pool that they leave holds no sequence of `max_model_len`, or not every request of the trace: an engine would not
    /// start, or refuse some.
    NoRoom,
}

/// What keeps a rate from being higher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// First tokens come too late.
    Ttft,
    /// Later tokens do.
    Tpot,
    /// Requests do not end as they come: at less than half of the rate, counting the time to the last end.
    Throughput,
}

impl Limit {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Tpot => "TPOT",
            Self::Throughput => "throughput",
        }
    }
}

/// Settings with what they sustain.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// The settings.
    pub settings: Settings,
    /// What came of them.
    pub outcome: Outcome,
    /// Blocks of the pool that they leave; 0 where it holds no sequence.
    pub num_blocks: u32,
    /// Requests a second within the goal; 0 if not even the lowest rate is.
    pub requests_per_s: f64,
    /// What is missed at a higher rate.
    pub limit: Option<Limit>,
    /// Output tokens a second at that rate.
    pub output_tokens_per_s: f64,
    /// The 99th percentile of the time to first token there.
    pub ttft_p99_ms: f64,
    /// The 99th percentile of the time from token to token there.
    pub tpot_p99_ms: f64,
    /// Preemptions there.
    pub num_preemptions: u64,
    /// The share of empty slots in held blocks there.
    pub waste: f64,
}

/// The best settings, or the usual ones where none reaches the goal, and what each change of one of them costs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tuned {
    /// The best that was found.
    pub best: Choice,
    /// The others that were tried and differ from it in one setting, by that setting's name.
    pub alternatives: Vec<(&'static str, Choice)>,
    /// Runs that were simulated.
    pub num_runs: u32,
}

/// A search.
#[derive(Debug)]
pub struct Tuner<'a> {
    /// The kind of load.
    pub trace: &'a Trace,
    /// How long steps take.
    pub cost: CostModel,
    /// What memory there is.
    pub memory: Memory,
    /// What is to be reached.
    pub goal: Goal,
    /// Where policies come from.
    pub policies: &'a PolicyRegistry,
    /// The policy.
    pub policy: &'a str,
    /// For how many seconds requests come at least, up to [`MAX_REQUESTS`](Self::MAX_REQUESTS): the trace is lengthened by its
    /// law. What comes faster than it is served shows in time only.
    pub min_seconds: f64,
}

/// The values that are tried; of `max_model_len`, multiples of the longest request.
const MAX_MODEL_LEN: [u32; 5] = [1, 2, 4, 8, 16];
const MAX_NUM_SEQS: [u32; 7] = [16, 32, 64, 128, 256, 512, 1024];
const MAX_NUM_BATCHED_TOKENS: [u32; 6] = [512, 1024, 2048, 4096, 8192, 16384];
const BLOCK_SIZE: [u32; 4] = [8, 16, 32, 64];
const MEMORY_PERCENT: [u32; 4] = [80, 85, 90, 95];

/// Of what is drawn behind the trace.
const LOAD_SEED: u64 = 0;

/// A rate is found to within this share.
const PRECISION: f64 = 0.04;
/// Requests must end at this share of the rate at which they come, counting the time to the last end.
const SUSTAINED: f64 = 0.5;
/// A choice is better by more than this share: smaller differences are chance.
const MARGIN: f64 = 0.05;

impl Tuner<'_> {
    /// A load that lasts, as a rule.
    pub const MIN_SECONDS: f64 = 30.0;
    /// No trace is lengthened to more.
    pub const MAX_REQUESTS: usize = 5000;

    /// Searches from usual settings on.
    ///
    /// # Errors
    /// [`SimulateError`]; a name of a policy that is not known is for the caller to find.
    pub fn tune(&self) -> Result<Tuned, SimulateError> {
        let load = self.trace.lengthened(Self::MAX_REQUESTS, LOAD_SEED);
        let mut search = Search { tuner: self, load, tried: Vec::new(), guess: None, num_runs: 0 };
        let max_model_len = self.trace.max_len().max(2);
        let usual = Settings {
            max_num_seqs: 128,
            max_num_batched_tokens: 2048,
            block_size: 16,
            max_model_len,
            memory_percent: 90,
        };
        let mut best = search.rate(usual)?;
        let neighbours = |of| neighbours(of, max_model_len);
        loop {
            let before = best.clone();
            for (_, settings) in neighbours(before.settings) {
                let choice = search.rate(settings)?;
                if choice.is_better(&best) {
                    best = choice;
                }
            }
            if best == before {
                break;
            }
        }
        let mut alternatives = Vec::new();
        for (name, settings) in neighbours(best.settings) {
            alternatives.push((name, search.rate(settings)?));
        }
        Ok(Tuned { best, alternatives, num_runs: search.num_runs })
    }

    fn setup(&self, settings: &Settings, num_blocks: u32) -> Setup {
        let limits = SchedulerConfig {
            max_num_seqs: settings.max_num_seqs,
            max_num_batched_tokens: settings.max_num_batched_tokens,
            ..SchedulerConfig::new(settings.max_model_len)
        };
        let cache = KvCacheConfig::new(num_blocks, settings.block_size);
        Setup { cost: self.cost.clone(), ..Setup::new(limits, cache) }
    }
}

impl Tuned {
    /// Whether some settings reach the goal at some rate.
    pub fn is_reached(&self) -> bool {
        self.best.requests_per_s > 0.0
    }
}

impl Choice {
    /// Of equal ones the one that asks for less is better.
    fn is_better(&self, other: &Self) -> bool {
        self.requests_per_s > other.requests_per_s * (1.0 + MARGIN)
    }
}

struct Search<'a> {
    tuner: &'a Tuner<'a>,
    /// The trace, lengthened.
    load: Trace,
    tried: Vec<Choice>,
    /// The rate of the first settings.
    guess: Option<f64>,
    num_runs: u32,
}

impl Search<'_> {
    /// The highest rate within the goal: by steps that grow, from the rate of the first settings on, and then by
    /// bisection.
    fn rate(&mut self, settings: Settings) -> Result<Choice, SimulateError> {
        if let Some(known) = self.tried.iter().find(|choice| choice.settings == settings) {
            return Ok(known.clone());
        }
        let num_blocks = self.tuner.memory.num_blocks(&settings);
        // An engine does not start with a pool that holds no sequence of full length.
        let num_tokens = u64::from(num_blocks) * u64::from(settings.block_size);
        let num_blocks = if num_tokens < u64::from(settings.max_model_len) { 0 } else { num_blocks };
        let mut best = Choice {
            settings,
            outcome: if num_blocks == 0 { Outcome::NoRoom } else { Outcome::TooSlow },
            num_blocks,
            requests_per_s: 0.0,
            limit: None,
            output_tokens_per_s: 0.0,
            ttft_p99_ms: 0.0,
            tpot_p99_ms: 0.0,
            num_preemptions: 0,
            waste: 0.0,
        };
        let (mut low, mut high) = (0.0, f64::INFINITY);
        let (mut rate, mut factor) = self.guess.map_or((1.0, 2.0), |guess| (guess, 1.0 + PRECISION));
        while num_blocks > 0 && (1e-2..1e6).contains(&rate) {
            let report = self.run(&settings, num_blocks, rate)?;
            if report.num_refused + report.num_cut > 0 {
                best.outcome = Outcome::NoRoom;
                break;
            }
            match self.missed(&report, rate) {
                None => {
                    low = rate;
                    best.take(&report, rate);
                }
                missed => (high, best.limit) = (rate, missed),
            }
            if high.is_finite() && high - low <= high * PRECISION {
                break;
            }
            rate = match (low > 0.0, high.is_finite()) {
                (true, true) => low.midpoint(high),
                (true, false) => rate * factor,
                (false, _) => rate / factor,
            };
            factor = (factor * factor).min(8.0);
        }
        self.guess = self.guess.or(Some(best.requests_per_s).filter(|rate| *rate > 0.0));
        self.tried.push(best.clone());
        Ok(best)
    }

    fn run(&mut self, settings: &Settings, num_blocks: u32, rate: f64) -> Result<Report, SimulateError> {
        self.num_runs += 1;
        let Tuner { policies, policy, .. } = self.tuner;
        let setup = self.tuner.setup(settings, num_blocks);
        let policy = policies.build(policy).expect("the caller has checked the name");
        let load = self.load_at(rate);
        Ok(simulate(&load, &load.arrival_times(Some(rate))?, &setup, policy)?.report)
    }

    /// As much of the load as comes in the time.
    fn load_at(&self, rate: f64) -> Trace {
        let Tuner { trace, min_seconds, .. } = self.tuner;
        let num_requests = (rate * min_seconds).ceil() as usize;
        let num_requests = num_requests.max(trace.requests.len()).min(self.load.requests.len());
        let requests = self.load.requests[..num_requests].to_vec();
        Trace { requests, tenants: self.load.tenants.clone(), arrivals: self.load.arrivals }
    }

    /// What is missed: all must run in time, and about as fast as they come: a few requests that come at once are no rate.
    fn missed(&self, report: &Report, rate: f64) -> Option<Limit> {
        let Goal { max_ttft_ms, max_tpot_ms } = self.tuner.goal;
        let limits = [
            (report.ttft_ms.p99 <= max_ttft_ms, Limit::Ttft),
            (report.tpot_ms.p99 <= max_tpot_ms, Limit::Tpot),
            (report.requests_per_s >= rate * SUSTAINED, Limit::Throughput),
        ];
        limits.into_iter().find(|(is_kept, _)| !is_kept).map(|(_, limit)| limit)
    }
}

impl Choice {
    fn take(&mut self, report: &Report, rate: f64) {
        let size = self.settings.block_size;
        (self.requests_per_s, self.outcome) = (rate, Outcome::Serves);
        self.output_tokens_per_s = report.output_tokens_per_s;
        (self.ttft_p99_ms, self.tpot_p99_ms) = (report.ttft_ms.p99, report.tpot_ms.p99);
        self.num_preemptions = report.num_preemptions;
        self.waste = report.waste.iter().find(|waste| waste.block_size == size).map_or(0.0, |w| w.share);
    }
}

/// All settings that differ in one value and that an engine accepts; `longest` is the length of the longest request.
fn neighbours(of: Settings, longest: u32) -> Vec<(&'static str, Settings)> {
    let seqs = MAX_NUM_SEQS.map(|max_num_seqs| ("max_num_seqs", Settings { max_num_seqs, ..of }));
    let tokens = MAX_NUM_BATCHED_TOKENS
        .map(|max_num_batched_tokens| ("max_num_batched_tokens", Settings { max_num_batched_tokens, ..of }));
    let sizes = BLOCK_SIZE.map(|block_size| ("block_size", Settings { block_size, ..of }));
    let shares =
        MEMORY_PERCENT.map(|memory_percent| ("gpu_memory_utilization", Settings { memory_percent, ..of }));
    let lengths = MAX_MODEL_LEN
        .map(|times| ("max_model_len", Settings { max_model_len: longest.saturating_mul(times), ..of }));
    let all = seqs.into_iter().chain(tokens).chain(sizes).chain(lengths).chain(shares);
    let is_accepted = |settings: &Settings| settings.max_num_batched_tokens >= settings.max_num_seqs;
    all.filter(|(_, settings)| *settings != of && is_accepted(settings)).collect()
}
