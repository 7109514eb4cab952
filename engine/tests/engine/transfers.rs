//! Requests that are given up after each step of a run in which one gives way: while its blocks go to the host, lie there
//! and come back, and while a step is open that still brings a result of it.

use std::time::{Duration, Instant};

use quire_engine::{EngineOptions, PreemptionMode, Request, SamplingParams};
use quire_executor::SwapDirection;
use quire_scheduler::{Rank, SchedulerPolicy, SeqId, SequenceView, StepBuilder, standard_plan};

use crate::rig::{Rig, RigSpec, drain, noise};

/// The second request gives way once, when it has generated four tokens.
struct GiveWayOnce(PreemptionMode);

impl SchedulerPolicy for GiveWayOnce {
    fn name(&self) -> &str {
        "give-way-once"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let is_due = |seq: &SequenceView<'_>| seq.num_preemptions() == 0 && seq.num_output_tokens() == 4;
        if step.seq(SeqId(1)).is_some_and(|seq| is_due(&seq)) {
            let mode = match self.0 {
                PreemptionMode::Swap => quire_scheduler::PreemptionMode::Swap,
                _ => quire_scheduler::PreemptionMode::Recompute,
            };
            let _ = step.preempt(SeqId(1), mode);
        }
        standard_plan(self, step);
    }
}

const NUM_TOKENS: u64 = 20;

fn start(mode: PreemptionMode, overlapped: bool) -> Rig {
    let mut spec = RigSpec { policy: Box::new(GiveWayOnce(mode)), ..RigSpec::with_pool(40, 4) };
    spec.capacity.num_swap_blocks = 16;
    let options: EngineOptions =
        spec.options.clone().async_scheduling(overlapped).enable_prefix_caching(false);
    RigSpec { options: options.swap_space(1.0), ..spec }.start(noise)
}

fn prompt(number: u32) -> Vec<u32> {
    (0..14).map(|position| 5 + number * 20 + position).collect()
}

fn params() -> SamplingParams {
    SamplingParams { ignore_eos: true, ..SamplingParams::greedy(NUM_TOKENS) }
}

/// When the second request is given up.
struct GivenUp {
    /// While the results of this step are held back.
    at: u64,
    /// The last step of a run in which nobody is given up.
    last: u64,
}

impl GivenUp {
    /// Steps that the engine has submitted by then, and goes no further: where it runs ahead, one that was planned without the
    /// results.
    fn num_submitted(&self, overlapped: bool) -> usize {
        (self.at + u64::from(overlapped)).min(self.last) as usize
    }
}

/// Runs two requests, of which the second may be given up. Every run makes the same steps up to there. Returns the steps that brought transfers out and in, and the last one.
fn run(mode: PreemptionMode, overlapped: bool, given_up: Option<GivenUp>) -> (Option<u64>, Option<u64>, u64) {
    let rig = start(mode, overlapped);
    rig.control.hold_from(1);
    let first = rig.llm.stream(Request::new(prompt(0), params())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let wait_for = |num_batches: usize| {
        while rig.control.batches().len() < num_batches {
            assert!(Instant::now() < deadline, "{num_batches} batches are submitted");
            std::thread::yield_now();
        }
    };
    wait_for(1);
    let second = rig.llm.stream(Request::new(prompt(1), params())).unwrap();
    match given_up {
        Some(given_up) => {
            rig.control.hold_from(given_up.at);
            wait_for(given_up.num_submitted(overlapped));
            drop(second);
            rig.control.go_on();
        }
        None => {
            rig.control.go_on();
            assert_eq!(drain(second).1.outputs[0].token_ids, lone(1));
        }
    }
    assert_eq!(drain(first).1.outputs[0].token_ids, lone(0), "the other does not notice");
    rig.check_idle();
    rig.check_alive();
    let stats = rig.llm.stats();
    assert_eq!(stats.num_free_swap_blocks, 16, "all blocks of the host come back");
    let batches = rig.control.batches();
    let step_of = |direction| {
        let moves = |batch: &&quire_executor::StepBatch| {
            batch.transfers.iter().any(|transfer| transfer.direction == direction)
        };
        batches.iter().find(moves).map(|batch| batch.step)
    };
    (step_of(SwapDirection::Out), step_of(SwapDirection::In), batches.len() as u64)
}

/// [`noise`] without an end.
fn lone(number: u32) -> Vec<u32> {
    let prompt = prompt(number);
    (0..NUM_TOKENS as usize).map(|position| noise(&prompt, prompt.len() + position)).collect()
}

#[test]
fn a_request_is_given_up_in_every_state_of_a_transfer() {
    for overlapped in [false, true] {
        let (out, back, last) = run(PreemptionMode::Swap, overlapped, None);
        let (out, back) = (out.expect("its blocks went out"), back.expect("they came back"));
        assert!(2 < out && out < back && back + 2 < last, "out {out}, back {back}, last {last}");
        for step in 1..=back + 3 {
            let (went_out, came_back, _) =
                run(PreemptionMode::Swap, overlapped, Some(GivenUp { at: step, last }));
            // Given up after step N, it is in no plan after those that were made by then.
            let num_ahead = u64::from(overlapped);
            assert_eq!(
                went_out.is_some(),
                out <= step + num_ahead,
                "given up after step {step} of {out}, {back}"
            );
            assert_eq!(
                came_back.is_some(),
                back <= step + num_ahead,
                "given up after step {step} of {out}, {back}"
            );
        }
    }
}

#[test]
fn a_late_result_of_one_that_gave_way_and_was_given_up_is_dropped() {
    for overlapped in [false, true] {
        let (_, _, last) = run(PreemptionMode::Recompute, overlapped, None);
        for at in 1..=9 {
            let (out, back, _) = run(PreemptionMode::Recompute, overlapped, Some(GivenUp { at, last }));
            assert_eq!((out, back), (None, None));
        }
    }
}
