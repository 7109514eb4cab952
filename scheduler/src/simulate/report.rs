//! The numbers of a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Setup;
use super::refusals::{Refusals, Refused};
use super::track::Track;
use crate::digest::PlanDigest;
use crate::error::AddError;
use crate::ids::Time;
use crate::plan::StepPlan;
use crate::scheduler::Scheduler;
use crate::sequence::FinishedSequence;
use crate::trace::{Cut, Room, Trace};

/// What came of a run, in virtual time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The policy.
    pub policy: String,
    /// The name of the cost model.
    pub cost_model: String,
    /// Requests that ended.
    pub num_finished: u64,
    /// Requests that could never run.
    pub num_refused: u64,
    /// Why those could not, by the kind of reason.
    pub refused: Vec<Refused>,
    /// Requests that ran, and ended before the trace says, for want of room.
    pub num_cut: u64,
    /// What cut those, by limit.
    pub cut: Vec<Cut>,
    /// From the beginning to the last end.
    pub duration_s: f64,
    /// Prompt tokens of the requests that ended.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Requests that ended in a second.
    pub requests_per_s: f64,
    /// Tokens generated in a second.
    pub output_tokens_per_s: f64,
    /// Steps.
    pub num_steps: u64,
    /// Tokens that a step computed on average.
    pub tokens_per_step: f64,
    /// From arrival to the first token.
    pub ttft_ms: Percentiles,
    /// From one token of a request to the next, its mean.
    pub tpot_ms: Percentiles,
    /// From arrival to the first step.
    pub wait_ms: Percentiles,
    /// The request that waited longest for its first step, by its place in the trace.
    pub worst_wait_request: Option<usize>,
    /// How often a sequence gave way.
    pub num_preemptions: u64,
    /// Those of them that moved blocks to the host.
    pub num_swaps: u64,
    /// The share of prompt tokens that the prefix cache had.
    pub prefix_hit_rate: f64,
    /// Most sequences that ran at once.
    pub peak_running: usize,
    /// Most sequences that waited at once.
    pub peak_waiting: usize,
    /// Most blocks that were held at once.
    pub peak_live_blocks: u32,
    /// What blocks of this and of other sizes would have wasted.
    pub waste: Vec<Waste>,
    /// The tenants, if there are several.
    pub tenants: Vec<TenantReport>,
    /// Jain's index of the tenants' token rates, `1 / number of tenants` to 1; 1 is fair.
    pub fairness: f64,
    /// A digest of all decisions.
    pub decisions: String,
}

/// How a number is distributed.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: f64,
    /// Half of all are not above it.
    pub p50: f64,
    /// Nine of ten are not above it.
    pub p90: f64,
    /// 99 of 100 are not above it.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// Slots of held blocks without a token in them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Waste {
    /// Tokens a block holds.
    pub block_size: u32,
    /// The share of empty slots.
    pub share: f64,
}

/// One tenant's part of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TenantReport {
    /// The name.
    pub name: String,
    /// Requests that ended.
    pub num_finished: u64,
    /// Prompt and output tokens of those.
    pub num_tokens: u64,
    /// The mean over its requests of tokens over the time from arrival to end.
    pub tokens_per_s: f64,
    /// The mean time to first token.
    pub ttft_ms: f64,
}

/// Block sizes that waste is told of.
const BLOCK_SIZES: [u32; 5] = [8, 16, 32, 64, 128];

/// Of how many steps one is looked at for waste.
const WASTE_STRIDE: u64 = 64;

/// Tenants that the text tells of at most; the numbers have them all.
const MAX_TENANT_LINES: usize = 64;

/// Counts as a run goes on.
pub(super) struct Tally {
    ttft_ms: Vec<f32>,
    tpot_ms: Vec<f32>,
    wait_ms: Vec<f32>,
    worst_wait: Option<(f32, usize)>,
    refusals: Refusals,
    cut: Vec<Cut>,
    prompt_tokens: u64,
    output_tokens: u64,
    peak_running: usize,
    peak_waiting: usize,
    peak_live_blocks: u32,
    num_held: u64,
    num_slots: [u64; BLOCK_SIZES.len()],
    tenants: BTreeMap<u64, TenantTally>,
    names: Vec<String>,
    digest: PlanDigest,
}

#[derive(Clone, Copy, Default)]
struct TenantTally {
    num_finished: u64,
    num_tokens: u64,
    rates: f64,
    ttft_ms: f64,
}

impl Tally {
    pub(super) fn new(trace: &Trace, room: &Room) -> Self {
        let numbers = || Vec::with_capacity(trace.requests.len());
        Self {
            ttft_ms: numbers(),
            tpot_ms: numbers(),
            wait_ms: numbers(),
            worst_wait: None,
            refusals: Refusals::default(),
            cut: trace.cuts(room),
            prompt_tokens: 0,
            output_tokens: 0,
            peak_running: 0,
            peak_waiting: 0,
            peak_live_blocks: 0,
            num_held: 0,
            num_slots: [0; BLOCK_SIZES.len()],
            tenants: BTreeMap::new(),
            names: trace.tenants.clone(),
            digest: PlanDigest::default(),
        }
    }

    pub(super) fn refuse(&mut self, request: usize, error: &AddError) {
        self.refusals.note(request, error);
    }

    pub(super) fn note_plan(&mut self, plan: &StepPlan, scheduler: &Scheduler) {
        self.digest.add(plan);
        let stats = scheduler.stats();
        self.peak_running = self.peak_running.max(stats.num_running);
        self.peak_waiting = self.peak_waiting.max(stats.num_waiting);
        self.peak_live_blocks = self.peak_live_blocks.max(stats.blocks.live);
        if plan.step.0 % WASTE_STRIDE == 1 {
            self.note_waste(plan, scheduler);
        }
    }

    /// Rows of the plan stand for all that run.
    fn note_waste(&mut self, plan: &StepPlan, scheduler: &Scheduler) {
        for seq in plan.rows.iter().filter_map(|row| scheduler.seq(row.seq)) {
            let num_tokens = seq.num_granted_tokens();
            self.num_held += u64::from(num_tokens);
            for (slots, block_size) in self.num_slots.iter_mut().zip(BLOCK_SIZES) {
                *slots += u64::from(num_tokens.div_ceil(block_size) * block_size);
            }
        }
    }

    pub(super) fn finish_request(
        &mut self,
        finished: &FinishedSequence,
        track: &Track,
        now: Time,
        trace: &Trace,
    ) {
        let ms = |from: Time, to: Time| to.since(from).as_secs_f64() * 1e3;
        let first = track.first_token.unwrap_or(now);
        let ttft_ms = ms(finished.arrival, first);
        let wait_ms = ms(finished.arrival, finished.first_admitted.unwrap_or(now)) as f32;
        let num_tokens = u64::from(finished.num_prompt_tokens) + u64::from(track.num_output);
        self.ttft_ms.push(ttft_ms as f32);
        self.wait_ms.push(wait_ms);
        if track.num_output > 1 {
            self.tpot_ms.push((ms(first, now) / f64::from(track.num_output - 1)) as f32);
        }
        if self.worst_wait.is_none_or(|(worst, _)| wait_ms > worst) {
            self.worst_wait = Some((wait_ms, track.index));
        }
        self.prompt_tokens += u64::from(finished.num_prompt_tokens);
        self.output_tokens += u64::from(track.num_output);
        let tenant = self.tenants.entry(trace.requests[track.index].tenant.0).or_default();
        tenant.num_finished += 1;
        tenant.num_tokens += num_tokens;
        tenant.rates += num_tokens as f64 / (ms(finished.arrival, now) / 1e3).max(1e-9);
        tenant.ttft_ms += ttft_ms;
    }

    pub(super) fn finish(mut self, scheduler: &Scheduler, setup: &Setup, now: Time) -> Report {
        let stats = scheduler.stats();
        let duration_s = now.as_nanos() as f64 / 1e9;
        let num_finished = self.ttft_ms.len() as u64;
        let per_s = |count: u64| if duration_s > 0.0 { count as f64 / duration_s } else { 0.0 };
        let rates: Vec<f64> = self.tenants.values().map(|t| t.rates / t.num_finished as f64).collect();
        Report {
            policy: scheduler.policy_name().to_owned(),
            cost_model: setup.cost.name.clone(),
            num_finished,
            num_refused: self.refusals.num_requests(),
            num_cut: self.cut.iter().map(|cut| cut.num_requests).sum(),
            duration_s,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            requests_per_s: per_s(num_finished),
            output_tokens_per_s: per_s(self.output_tokens),
            num_steps: stats.num_steps,
            tokens_per_step: stats.num_scheduled_tokens as f64 / stats.num_steps.max(1) as f64,
            ttft_ms: Percentiles::of(&mut self.ttft_ms),
            tpot_ms: Percentiles::of(&mut self.tpot_ms),
            wait_ms: Percentiles::of(&mut self.wait_ms),
            worst_wait_request: self.worst_wait.map(|(_, index)| index),
            num_preemptions: stats.num_preemptions,
            num_swaps: stats.num_swaps,
            prefix_hit_rate: stats.prefix.hit_rate(),
            peak_running: self.peak_running,
            peak_waiting: self.peak_waiting,
            peak_live_blocks: self.peak_live_blocks,
            waste: self.waste(),
            tenants: self.tenants(),
            fairness: jain(&rates),
            decisions: self.digest.to_string(),
            refused: self.refusals.into_vec(),
            cut: self.cut,
        }
    }

    fn waste(&self) -> Vec<Waste> {
        let share = |slots: u64| 1.0 - self.num_held as f64 / slots.max(1) as f64;
        let held = self.num_slots.iter().zip(BLOCK_SIZES).filter(|(slots, _)| **slots > 0);
        held.map(|(&slots, block_size)| Waste { block_size, share: share(slots) }).collect()
    }

    fn tenants(&self) -> Vec<TenantReport> {
        if self.tenants.len() < 2 {
            return Vec::new();
        }
        let report = |(&id, tally): (&u64, &TenantTally)| TenantReport {
            name: self.name(id),
            num_finished: tally.num_finished,
            num_tokens: tally.num_tokens,
            tokens_per_s: tally.rates / tally.num_finished as f64,
            ttft_ms: tally.ttft_ms / tally.num_finished as f64,
        };
        self.tenants.iter().map(report).collect()
    }
}

impl Tally {
    fn name(&self, tenant: u64) -> String {
        match usize::try_from(tenant).ok().and_then(|place| self.names.get(place)) {
            Some(name) if name.is_empty() => "(none)".to_owned(),
            Some(name) => name.clone(),
            None => tenant.to_string(),
        }
    }
}

impl Percentiles {
    /// Of values in any order; all zero where there are none.
    pub fn of(values: &mut [f32]) -> Self {
        values.sort_unstable_by(f32::total_cmp);
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        let at = |share: f64| f64::from(values[(last as f64 * share).round() as usize]);
        let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
        Self { mean: sum / values.len() as f64, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// Jain's fairness index (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness", 1984).
fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 1.0 }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, p50, p90, p99, max } = self;
        write!(f, "mean {mean:.1}, p50 {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, max {max:.1}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy {}, cost model {}", self.policy, self.cost_model)?;
        writeln!(
            f,
            "requests      {} ended, {} refused, in {:.2} s: {:.2} requests/s, {:.0} output tokens/s",
            self.num_finished,
            self.num_refused,
            self.duration_s,
            self.requests_per_s,
            self.output_tokens_per_s
        )?;
        for Refused { num_requests, first_request, reason } in &self.refused {
            writeln!(f, "refused       {num_requests}, the first is request {first_request}: {reason}")?;
        }
        self.cut.iter().try_for_each(|cut| writeln!(f, "cut short     {cut}"))?;
        writeln!(f, "TTFT ms       {}", self.ttft_ms)?;
        writeln!(f, "TPOT ms       {}", self.tpot_ms)?;
        let worst = self.worst_wait_request.map(|index| format!(" (request {index})")).unwrap_or_default();
        writeln!(f, "wait ms       {}{worst}", self.wait_ms)?;
        writeln!(f, "steps         {}, {:.1} tokens each", self.num_steps, self.tokens_per_step)?;
        writeln!(
            f,
            "at most       {} running, {} waiting, {} blocks held",
            self.peak_running, self.peak_waiting, self.peak_live_blocks
        )?;
        writeln!(f, "preemptions   {}, {} by swap", self.num_preemptions, self.num_swaps)?;
        writeln!(f, "prefix cache  {:.1} % of prompt tokens", 100.0 * self.prefix_hit_rate)?;
        let waste = self.waste.iter().map(|w| format!("{} {:.1} %", w.block_size, 100.0 * w.share));
        writeln!(f, "waste         by block size: {}", waste.collect::<Vec<_>>().join(", "))?;
        for tenant in self.tenants.iter().take(MAX_TENANT_LINES) {
            writeln!(
                f,
                "tenant {:<6} {} ended, {} tokens, {:.1} tokens/s a request, TTFT {:.1} ms",
                tenant.name, tenant.num_finished, tenant.num_tokens, tenant.tokens_per_s, tenant.ttft_ms
            )?;
        }
        if let Some(num_left) = self.tenants.len().checked_sub(MAX_TENANT_LINES + 1) {
            writeln!(f, "tenants       {} more, all of them in JSON", num_left + 1)?;
        }
        writeln!(f, "fairness      {:.3}", self.fairness)?;
        writeln!(f, "decisions     {}", self.decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_fairness_of_known_numbers() {
        let mut values: Vec<f32> = (0..=100).rev().map(|value| value as f32).collect();
        let expected = Percentiles { mean: 50.0, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 };
        assert_eq!(Percentiles::of(&mut values), expected);
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
        assert_eq!((jain(&[2.0, 2.0]), jain(&[4.0, 0.0]), jain(&[])), (1.0, 0.5, 1.0));
    }
}
