//! How long tokens take from their step to the socket.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use quire_engine::Histogram;

/// In seconds.
const BOUNDS: &[f64] = &[
    0.0001, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05,
    0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Of all connections: a value for each piece of an output that was streamed, from the moment that its step was committed.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct WriteTimes(Arc<Mutex<Histogram>>);

/// Of one connection: pieces that were handed to it, and when. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct WriteClock {
    unwritten: Arc<Mutex<Vec<Instant>>>,
    times: WriteTimes,
}

impl Default for WriteTimes {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Histogram::new(BOUNDS))))
    }
}

impl WriteTimes {
    /// The times so far.
    pub(crate) fn histogram(&self) -> Histogram {
        *self.0.lock()
    }

    /// The clock of a connection.
    pub(crate) fn clock(&self) -> WriteClock {
        WriteClock { unwritten: Arc::default(), times: self.clone() }
    }
}

impl WriteClock {
    /// Pieces go on their way that are of those moments.
    pub(crate) fn handed_on(&self, moments: impl Iterator<Item = Instant>) {
        self.unwritten.lock().extend(moments);
    }

    /// All that was handed on lies in the socket.
    pub(crate) fn written(&self) {
        let mut unwritten = self.unwritten.lock();
        self.sent(&unwritten);
        unwritten.clear();
    }

    /// Pieces of those moments lie in the socket.
    pub(crate) fn sent(&self, moments: &[Instant]) {
        if !moments.is_empty() {
            let (now, mut times) = (Instant::now(), self.times.0.lock());
            moments.iter().for_each(|moment| times.observe((now - *moment).as_secs_f64()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_counts_once_it_is_written() {
        let times = WriteTimes::default();
        let clocks = [times.clock(), times.clock()];
        clocks.iter().for_each(|clock| clock.handed_on([Instant::now()].into_iter()));
        assert_eq!(times.histogram().count(), 0);
        clocks[0].written();
        clocks[0].written();
        assert_eq!(times.histogram().count(), 1);
        clocks[1].written();
        assert_eq!(times.histogram().count(), 2);
    }
}
