//! How long a call takes.

use std::time::{Duration, Instant};

use quire_kernels::{Result, StepCtx};

use crate::cli::bench::spread::Spread;

/// Most calls in a round: a captured step of more is slow to record.
const MAX_CALLS: usize = 1000;

/// How many rounds a case that is much slower than a round may take the time of.
const MAX_LENGTHENING: f64 = 50.0;

/// Something to be timed.
pub(super) trait Work {
    /// Enqueues one call; `turn` counts up, so that inputs can be gone through.
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> Result<()>;

    /// Undoes what calls did to their inputs; not timed.
    fn restore(&self, ctx: &mut StepCtx) -> Result<()> {
        let _ = ctx;
        Ok(())
    }

    /// Most calls between two restorations.
    fn max_calls(&self) -> usize {
        MAX_CALLS
    }

    /// Whether the call may be captured.
    fn is_capturable(&self) -> bool {
        true
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Seconds a call.
    pub(super) seconds: Spread,
    /// Calls in a round.
    pub(super) num_calls: usize,
    /// Rounds measured.
    pub(super) num_rounds: usize,
    /// Whether a round was a captured step.
    pub(super) is_captured: bool,
}

/// How timing is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    pub(super) num_rounds: usize,
    /// What a round aims at.
    pub(super) round: Duration,
}

impl Timer {
    /// Times `work`: twice a single call, which says how many make a round, then the rounds.
    pub(super) fn time(&self, ctx: &mut StepCtx, work: &dyn Work) -> Result<Timing> {
        let single = |ctx: &mut StepCtx| timed(ctx, work, |ctx| ctx.step(|ctx| enqueue(ctx, work, 1)));
        // The first call pays for what is made at first use.
        let first = single(ctx)?;
        let call = if first > 4 * self.round { first } else { single(ctx)? };
        let share = self.round.as_secs_f64() / call.as_secs_f64().max(1e-9);
        let num_calls = (share as usize).clamp(1, work.max_calls().min(MAX_CALLS));
        let affordable = (MAX_LENGTHENING * share / num_calls as f64) as usize;
        let num_rounds = self.num_rounds.min(affordable.max(1));

        work.restore(ctx)?;
        let graph = match work.is_capturable() {
            true => ctx.capture(|ctx| enqueue(ctx, work, num_calls))?,
            false => None,
        };
        let round = |ctx: &mut StepCtx| match &graph {
            Some(graph) => ctx.launch(graph.as_ref()),
            None => ctx.step(|ctx| enqueue(ctx, work, num_calls)),
        };
        if graph.is_some() {
            // The first launch brings the graph to the device.
            timed(ctx, work, round)?;
        }
        let seconds = (0..num_rounds)
            .map(|_| Ok(timed(ctx, work, round)?.as_secs_f64() / num_calls as f64))
            .collect::<Result<Vec<_>>>()?;
        Ok(Timing { seconds: Spread::of(seconds), num_calls, num_rounds, is_captured: graph.is_some() })
    }
}

fn enqueue(ctx: &mut StepCtx, work: &dyn Work, num_calls: usize) -> Result<()> {
    (0..num_calls).try_for_each(|turn| ctx.scope(|ctx| work.call(ctx, turn)))
}

/// From an idle device to an idle device, by the device's clock where it has one.
fn timed(
    ctx: &mut StepCtx,
    work: &dyn Work,
    run: impl FnOnce(&mut StepCtx) -> Result<()>,
) -> Result<Duration> {
    work.restore(ctx)?;
    ctx.synchronize()?;
    let start = Instant::now();
    let before = ctx.queue().mark()?;
    run(ctx)?;
    let after = ctx.queue().mark()?;
    ctx.synchronize()?;
    let by_host = start.elapsed();
    let by_device = after.zip(before).and_then(|(after, before)| after.since(before.as_ref()));
    Ok(by_device.unwrap_or(by_host))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use quire_kernels::{DType, Kernels, Tensor, reference, testing};

    use super::*;

    /// Adds ones, and keeps count.
    struct Adding<'a> {
        kernels: &'a Kernels,
        one: Tensor,
        sum: Tensor,
        turns: RefCell<Vec<usize>>,
        max_calls: usize,
    }

    impl Work for Adding<'_> {
        fn call(&self, ctx: &mut StepCtx, turn: usize) -> Result<()> {
            self.turns.borrow_mut().push(turn);
            self.kernels.norm().add(ctx, &self.one, &self.sum)
        }

        fn restore(&self, ctx: &mut StepCtx) -> Result<()> {
            ctx.write(&self.sum, &[0.0f32])
        }

        fn max_calls(&self) -> usize {
            self.max_calls
        }
    }

    fn check(kernels: &Kernels, is_captured: bool) {
        let cell = |value: f32| kernels.upload(DType::F32, &[1, 1], &[value]).unwrap();
        let (one, sum) = (cell(1.0), cell(0.0));
        let adding = Adding { kernels, one, sum, turns: RefCell::default(), max_calls: 3 };
        let timer = Timer { num_rounds: 4, round: Duration::from_secs(60) };
        let mut ctx = kernels.step_ctx(0).unwrap();
        let timing = timer.time(&mut ctx, &adding).unwrap();
        assert_eq!((timing.num_calls, timing.num_rounds, timing.is_captured), (3, 4, is_captured));
        assert!(timing.seconds.min > 0.0);
        assert_eq!(adding.turns.borrow()[2..5], [0, 1, 2]);
        assert_eq!(
            ctx.read(&adding.sum).unwrap().wait_as::<f32>().unwrap(),
            [3.0],
            "one round since restored"
        );
    }

    #[test]
    fn a_round_is_as_many_calls_as_may_be_between_restorations() {
        check(&reference::kernels(), false);
        check(&testing::deferred(&reference::kernels()), true);
    }
}
