//! Who tells of a scenario that does not come to an end: a policy that loops for ever would hang its test without a word.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// A scenario takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes to standard error, past what a test harness holds back, when a scenario takes much longer than any should. The
/// only clock of the bench: it decides nothing.
pub(super) struct Watchdog {
    /// Closed at the end.
    scenarios: Option<Sender<u64>>,
}

impl Watchdog {
    pub(super) fn start() -> Self {
        Self::start_with(PATIENCE, io::stderr())
    }

    fn start_with(patience: Duration, to: impl Write + Send + 'static) -> Self {
        let (scenarios, begun) = mpsc::channel();
        let watch = move || watch(&begun, patience, to);
        // Without a thread for it nobody watches; that breaks no test.
        let thread = thread::Builder::new().name("quire-watchdog".to_owned()).spawn(watch);
        Self { scenarios: thread.is_ok().then_some(scenarios) }
    }

    /// The scenario of a seed begins, and the one before it has ended.
    pub(super) fn begin(&self, seed: u64) {
        if let Some(scenarios) = &self.scenarios {
            let _ = scenarios.send(seed);
        }
    }
}

fn watch(begun: &Receiver<u64>, patience: Duration, mut to: impl Write) {
    let Ok(mut seed) = begun.recv() else { return };
    let mut waited = Duration::ZERO;
    loop {
        match begun.recv_timeout(patience) {
            Ok(next) => (seed, waited) = (next, Duration::ZERO),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                waited += patience;
                let _ = writeln!(
                    to,
                    "check_policy: the scenario of seed {seed} has run for {waited:?}: does the policy loop for ever? It is \
                     tried alone with the seeds {seed}..{}",
                    seed.saturating_add(1)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands on what is written.
    struct Lines(Sender<String>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_seed_of_a_scenario_that_does_not_end_is_told() {
        let (lines, written) = mpsc::channel();
        let watchdog = Watchdog::start_with(Duration::from_millis(20), Lines(lines));
        watchdog.begin(6);
        watchdog.begin(77);
        let mut text = String::new();
        while !text.contains("seeds 77..78") {
            text += &written.recv_timeout(Duration::from_secs(60)).expect("it is told");
        }
        drop(watchdog);
        // The thread ends with its owner, and its writer with it.
        while written.recv().is_ok() {}
    }
}
