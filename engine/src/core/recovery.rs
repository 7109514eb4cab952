//! After an error of the device.

use super::engine_core::EngineCore;
use super::step::is_recoverable;
use crate::{Error, Result};

impl EngineCore {
    /// Ends the requests of all open steps with the error, and resets the device; the others start over. What the
    /// device had cached is gone.
    ///
    /// # Errors
    ///
    /// Why the engine cannot go on: the error is no device error, or the device does not come back.
    pub(super) fn recover(&mut self, error: Error) -> Result<()> {
        if !is_recoverable(&error) {
            return Err(error);
        }
        tracing::error!(target: "quire::engine", error = %chain(&error), num_open_steps = self.open.len(), "a step failed");
        // Open tickets have failed with the step; `reset` forgets them.
        self.open.clear();
        let failed = self.scheduler.fail_open_steps();
        self.rows.clear();
        self.rates.forget_open();
        self.fail(failed.into_iter().map(|finished| finished.id), &error);
        self.executor.reset().map_err(|reset| {
            Error::stopped(format!("{}, and the device did not come back: {}", chain(&error), chain(&reset)))
        })
    }

    /// Ends everything.
    pub(super) fn stop(&mut self, error: Error) {
        // The reason first: whoever hears of the end and asks again gets it.
        self.status.stop(error.clone());
        for mut request in self.requests.drain() {
            request.sink.send(crate::RequestEvent::Failed(error.clone()));
        }
    }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
