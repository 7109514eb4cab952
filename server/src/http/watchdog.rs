//! Whether the engine still finishes steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quire_engine::{EngineStats, write_recording};

use super::service::Service;

/// How often the engine is looked at.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Looks at the engine every now and then.
#[derive(Debug)]
pub(crate) struct Watchdog {
    deadline: Duration,
    last: Mutex<Look>,
}

#[derive(Debug)]
struct Look {
    num_steps: u64,
    /// When a step was last seen to have ended, or nothing to be there to do.
    progress: Instant,
    is_told: bool,
}

impl Watchdog {
    /// A step that takes longer than `deadline` is taken for a hang.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { deadline, last: Mutex::new(Look { num_steps: 0, progress: Instant::now(), is_told: false }) }
    }

    /// Takes a look; true the first time that the engine is found to hang.
    pub(crate) fn look(&self, stats: &EngineStats, now: Instant) -> bool {
        let mut last = self.last.lock();
        let is_idle = stats.num_running + stats.num_waiting == 0;
        if is_idle || stats.num_steps != last.num_steps {
            *last = Look { num_steps: stats.num_steps, progress: now, is_told: false };
            return false;
        }
        let is_stalled = now.saturating_duration_since(last.progress) > self.deadline;
        is_stalled && !std::mem::replace(&mut last.is_told, true)
    }

    /// For how long no step has ended though there is work; none while that is within the deadline.
    pub(crate) fn stalled_for(&self) -> Option<Duration> {
        let stalled = self.last.lock().progress.elapsed();
        Some(stalled).filter(|_| self.last.lock().is_told)
    }
}

/// Looks at the engine every second; one that hangs leaves a recording.
pub(crate) async fn watch(service: Arc<Service>) {
    let mut ticks = tokio::time::interval(WATCH_PERIOD);
    loop {
        ticks.tick().await;
        let (stats, now) = (service.engine.stats(), Instant::now());
        service.pace.note(&stats, now);
        if service.watchdog.look(&stats, now) {
            let seconds = service.settings.step_deadline.as_secs();
            tracing::error!(target: "quire::server", "the engine has finished no step for {seconds} s");
            keep_recording(&service);
        }
    }
}

fn keep_recording(service: &Service) {
    let folder = service.engine.config().map(|config| config.recording_folder());
    let (Some(recorder), Some(folder)) = (service.engine.flight_recorder(), folder) else { return };
    match write_recording(&recorder, &folder) {
        Ok(path) => {
            tracing::error!(target: "quire::server", "what the scheduler did is in {}", path.display())
        }
        Err(error) => tracing::error!(target: "quire::server", "what the scheduler did is lost: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_does_not_move_is_a_hang() {
        let watchdog = Watchdog::new(Duration::from_secs(10));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let idle = EngineStats::default();
        let busy = |num_steps| EngineStats { num_running: 1, num_steps, ..EngineStats::default() };
        assert!(!watchdog.look(&idle, at(100)));
        assert!(!watchdog.look(&busy(5), at(101)));
        assert!(!watchdog.look(&busy(5), at(111)));
        assert!(watchdog.look(&busy(5), at(112)));
        assert!(!watchdog.look(&busy(5), at(113)), "it is said once");
        assert!(watchdog.stalled_for().is_some());
        assert!(!watchdog.look(&busy(6), at(114)));
        assert!(watchdog.stalled_for().is_none());
    }
}
