//! How long a device works on a step, and how long it waits for one.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_kernels::{Mark, Result, StepCtx};

/// A wait shorter than this found the results ready.
const AT_ONCE: Duration = Duration::from_micros(20);

/// Marks the steps of a queue.
#[derive(Default)]
pub(super) struct Timer {
    started: Option<(Instant, Option<Box<dyn Mark>>)>,
    /// How long the step waited for something else than the device.
    paused: Duration,
    /// The end of the step before.
    last: Option<Arc<dyn Mark>>,
}

/// The marks of one step.
pub(super) struct StepTiming {
    started: Instant,
    paused: Duration,
    enqueued: Instant,
    marks: Option<StepMarks>,
}

struct StepMarks {
    before: Option<Arc<dyn Mark>>,
    start: Box<dyn Mark>,
    end: Arc<dyn Mark>,
}

impl Timer {
    /// What is enqueued from here on belongs to the next step.
    pub(super) fn start(&mut self, ctx: &mut StepCtx) -> Result<()> {
        self.paused = Duration::ZERO;
        self.started = Some((Instant::now(), ctx.queue().mark()?));
        Ok(())
    }

    /// Waits for something else than the device, which is no work on the step.
    pub(super) fn pause<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let before = Instant::now();
        let outcome = wait();
        self.paused += before.elapsed();
        outcome
    }

    /// All of the step is enqueued.
    pub(super) fn stop(&mut self, ctx: &mut StepCtx) -> Result<StepTiming> {
        let (started, start) = self.started.take().expect("a step is started before it is stopped");
        let end: Option<Arc<dyn Mark>> = ctx.queue().mark()?.map(Arc::from);
        let before = std::mem::replace(&mut self.last, end.clone());
        let marks = start.zip(end).map(|(start, end)| StepMarks { before, start, end });
        Ok(StepTiming { started, paused: self.paused, enqueued: Instant::now(), marks })
    }
}

impl StepTiming {
    /// How long the device worked and how long it waited before, after the step's results have come. They were asked
    /// for at `asked`; `free_since` is when the results of the step before had come.
    pub(super) fn read(self, asked: Instant, free_since: Option<Instant>) -> (Duration, Duration) {
        if let Some((time, idle)) = self.marks.and_then(|marks| marks.read()) {
            // Where the host had taken the step before already, the device waited for requests.
            let was_open = free_since.is_none_or(|free| free > self.started);
            return (time, if was_open { idle } else { Duration::ZERO });
        }
        let done = Instant::now();
        // A device that executes at once was done when the work was enqueued, however late it is asked.
        let time = if done - asked < AT_ONCE {
            (self.enqueued - self.started).saturating_sub(self.paused)
        } else {
            done - free_since.map_or(self.started, |free| free.max(self.started))
        };
        (time, Duration::ZERO)
    }
}

impl StepMarks {
    fn read(self) -> Option<(Duration, Duration)> {
        let idle = match &self.before {
            Some(before) => self.start.since(before.as_ref())?,
            None => Duration::ZERO,
        };
        Some((self.end.since(self.start.as_ref())?, idle))
    }
}

impl fmt::Debug for StepTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepTiming").field("started", &self.started).finish_non_exhaustive()
    }
}
