//! Places of requests: how many may wait beside those that can run.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Error, RequestRoom, Result};

/// The places of an engine: those that run have seats, one a sequence, and of the others `max_num_waiting` may wait beside those
/// that free seats are for. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    counts: Mutex<Counts>,
    num_seats: usize,
    max_num_waiting: usize,
}

#[derive(Debug, Default)]
struct Counts {
    num_waiting: usize,
    /// Seats that those will need.
    num_awaited_seats: usize,
    num_taken_seats: usize,
}

/// A place of a request, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    /// What it needs to run.
    num_seats: usize,
    is_waiting: bool,
}

impl Places {
    pub(super) fn new(num_seats: usize, max_num_waiting: usize) -> Self {
        Self(Arc::new(Shared { counts: Mutex::default(), num_seats, max_num_waiting }))
    }

    /// How many requests of so many sequences there are places for, where there is no other.
    pub(super) fn room(&self, num_seqs: usize) -> RequestRoom {
        let Shared { num_seats, max_num_waiting, .. } = *self.0;
        let all = num_seats.max(1);
        RequestRoom { num_running: all / num_seqs.clamp(1, all), num_waiting: max_num_waiting }
    }

    /// A place for a request of so many sequences.
    ///
    /// # Errors
    ///
    /// [`Error::Overloaded`].
    pub(super) fn take(&self, num_seqs: usize) -> Result<Place> {
        let Shared { num_seats: all_seats, max_num_waiting, .. } = *self.0;
        let num_seats = num_seqs.clamp(1, all_seats.max(1));
        let mut counts = self.0.counts.lock();
        let (num, awaited) = (counts.num_waiting + 1, counts.num_awaited_seats + num_seats);
        let num_free = all_seats.saturating_sub(counts.num_taken_seats);
        // How many of those that wait the free seats are for: exact where all need as many.
        let num_next = if awaited <= num_free { num } else { num * num_free / awaited };
        if num - num_next > max_num_waiting {
            return Err(Error::Overloaded { num_waiting: num - num_next - 1, max_num_waiting });
        }
        (counts.num_waiting, counts.num_awaited_seats) = (num, awaited);
        Ok(Place { places: self.clone(), num_seats, is_waiting: true })
    }
}

impl Place {
    /// The request runs.
    pub(super) fn seat(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            let mut counts = self.places.0.counts.lock();
            counts.num_waiting -= 1;
            counts.num_awaited_seats -= self.num_seats;
            counts.num_taken_seats += self.num_seats;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.0.counts.lock();
        if self.is_waiting {
            counts.num_waiting -= 1;
            counts.num_awaited_seats -= self.num_seats;
        } else {
            counts.num_taken_seats -= self.num_seats;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(places: &Places, num_seqs: usize) -> Vec<Place> {
        std::iter::from_fn(|| places.take(num_seqs).ok()).collect()
    }

    #[test]
    fn br_10_free_seats_are_places_before_a_step_and_after_it() {
        for (num_seqs, num_running) in [(1, 8), (2, 4), (3, 2), (8, 1), (9, 1), (usize::MAX, 1)] {
            let places = Places::new(8, 5);
            let mut taken = fill(&places, num_seqs);
            assert_eq!(taken.len(), num_running + 5, "{num_seqs}");
            assert_eq!(places.room(num_seqs), RequestRoom { num_running, num_waiting: 5 });
            for place in &mut taken[..num_running] {
                place.seat();
                place.seat();
                assert!(places.take(num_seqs).is_err(), "a seat is no second place");
            }
            let error = places.take(num_seqs).expect_err("full");
            assert!(matches!(error, Error::Overloaded { num_waiting: 5, max_num_waiting: 5 }), "{error}");
            taken.remove(0);
            assert_eq!(fill(&places, num_seqs).len(), 1, "{num_seqs}");
            drop(taken);
            assert_eq!(fill(&places, num_seqs).len(), num_running + 5, "{num_seqs}");
        }
    }
}
