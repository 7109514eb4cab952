//! Fences: what a queue's thread signals when it comes to them.

use std::any::Any;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::line::Line;
use super::worker::Command;
use crate::{Error, Fence, Result};

/// A place in a line.
#[derive(Clone)]
pub(super) struct DeferredFence {
    line: Arc<Line>,
    place: u64,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    outcome: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

/// The thread's side of a fence. Dropped without being given, it tells those who wait that the thread is gone.
pub(super) struct Signal {
    lost: Error,
    state: Arc<State>,
}

impl DeferredFence {
    /// Puts one behind the commands so far.
    pub(super) fn set(line: &Arc<Line>) -> Arc<Self> {
        let state = Arc::<State>::default();
        let place = line.push(Command::Signal(Signal { lost: line.lost(), state: state.clone() }));
        Arc::new(Self { line: line.clone(), place, state })
    }

    /// The fence behind a handle.
    ///
    /// # Panics
    ///
    /// Where it is one of another device.
    pub(super) fn of(fence: &dyn Fence) -> Self {
        let fence: &dyn Any = fence;
        let fence: &Self = fence.downcast_ref().expect("a fence of the deferred device");
        fence.clone()
    }
}

impl Signal {
    pub(super) fn give(self, outcome: Result<()>) {
        self.state.set(outcome);
    }
}

impl State {
    fn set(&self, outcome: Result<()>) {
        self.outcome.lock().get_or_insert(outcome);
        self.changed.notify_all();
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.state.set(Err(self.lost.clone()));
    }
}

/// Asking flushes too: a device comes to its fences whether somebody waits or not. What stands behind the fence stays
/// where it is.
impl Fence for DeferredFence {
    fn is_reached(&self) -> Result<bool> {
        self.line.flush_to(self.place);
        self.state.outcome.lock().clone().map_or(Ok(false), |outcome| outcome.map(|()| true))
    }

    fn wait(&self) -> Result<()> {
        self.line.flush_to(self.place);
        let mut outcome = self.state.outcome.lock();
        loop {
            if let Some(outcome) = outcome.clone() {
                return outcome;
            }
            self.state.changed.wait(&mut outcome);
        }
    }
}
