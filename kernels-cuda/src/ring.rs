//! Where bytes on their way to the device wait: bookkeeping of a ring, without memory.

use std::collections::VecDeque;

/// Runs start at multiples of this many bytes.
const ALIGN: u64 = 16;

/// A ring of bytes. Runs are handed out one after the other; a *fence* stands for the work that reads all runs
/// handed out before it, and once it is over their bytes may be handed out again.
///
/// ```text
///   tail            fenced          head
///    | runs in use    | not fenced   |   free   ->  (round and round)
/// ```
#[derive(Debug)]
pub(crate) struct Ring<F> {
    capacity: u64,
    /// Bytes handed out since the beginning, those skipped at the ring's end included.
    head: u64,
    /// Bytes that may be handed out again, counted alike.
    tail: u64,
    /// `head` at each fence, the oldest first.
    fences: VecDeque<(u64, F)>,
}

impl<F> Ring<F> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64 / ALIGN * ALIGN, head: 0, tail: 0, fences: VecDeque::new() }
    }

    /// The most bytes of one run: once no fence is pending, there is room for it.
    pub(crate) fn max_run_bytes(&self) -> usize {
        (self.capacity / 4) as usize
    }

    /// Hands out a run and returns its start, or `None` where fences must be over first.
    ///
    /// # Panics
    ///
    /// Where the run is longer than [`max_run_bytes`](Self::max_run_bytes).
    pub(crate) fn take(&mut self, num_bytes: usize) -> Option<usize> {
        assert!(num_bytes <= self.max_run_bytes(), "a run of {num_bytes} bytes is cut into several");
        let length = (num_bytes as u64).next_multiple_of(ALIGN);
        let place = self.head % self.capacity;
        // A run does not go around the end.
        let skipped = if place + length > self.capacity { self.capacity - place } else { 0 };
        if self.head + skipped + length - self.tail > self.capacity {
            return None;
        }
        self.head += skipped + length;
        Some(((self.head - length) % self.capacity) as usize)
    }

    /// Whether so much was handed out since the last fence that the next one is due.
    pub(crate) fn wants_fence(&self) -> bool {
        self.unfenced_bytes() >= self.capacity / 8
    }

    /// Sets a fence behind all runs handed out so far.
    pub(crate) fn fence(&mut self, fence: F) {
        self.fences.push_back((self.head, fence));
    }

    /// Takes the oldest fence out. Once it is over, [`release`](Self::release) with its mark.
    pub(crate) fn oldest_fence(&mut self) -> Option<(u64, F)> {
        self.fences.pop_front()
    }

    /// The runs before a mark may be handed out again.
    pub(crate) fn release(&mut self, mark: u64) {
        self.tail = mark;
    }

    fn unfenced_bytes(&self) -> u64 {
        self.head - self.fences.back().map_or(self.tail, |&(mark, _)| mark)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_ring_waits_for_the_oldest_fence() {
        let mut ring = Ring::new(64);
        assert_eq!([ring.take(16), ring.take(1), ring.take(16)], [Some(0), Some(16), Some(32)]);
        ring.fence('a');
        assert_eq!((ring.take(16), ring.take(16)), (Some(48), None));
        let (mark, fence) = ring.oldest_fence().unwrap();
        assert_eq!(fence, 'a');
        ring.release(mark);
        assert_eq!(
            [ring.take(16), ring.take(16), ring.take(16), ring.take(16)],
            [Some(0), Some(16), Some(32), None]
        );
        assert_eq!(ring.unfenced_bytes(), 64);
    }

    #[test]
    fn no_bytes_take_no_room() {
        let mut ring: Ring<()> = Ring::new(64);
        assert_eq!([ring.take(0), ring.take(0)], [Some(0), Some(0)]);
        assert!(ring.unfenced_bytes() == 0 && !ring.wants_fence());
    }

    proptest! {
        // Against a list of the runs in use: no byte is handed out that a fence which is not over stands for,
        // and a ring whose fences are all over has room for the longest run.
        #[test]
        fn runs_in_use_are_disjoint(ops in prop::collection::vec((0u8..8, 0usize..=256), 1..300)) {
            let mut ring = Ring::new(1024);
            let mut in_use: Vec<(usize, usize, u64)> = Vec::new();
            let mut next_fence = 0u64;
            for (kind, num_bytes) in ops {
                if kind == 0 || ring.wants_fence() {
                    ring.fence(next_fence);
                    next_fence += 1;
                }
                let mut start = ring.take(num_bytes);
                while start.is_none() {
                    if let Some((mark, fence)) = ring.oldest_fence() {
                        in_use.retain(|&(_, _, of)| of > fence);
                        ring.release(mark);
                    } else {
                        prop_assert!(ring.unfenced_bytes() > 0, "an idle ring has room");
                        ring.fence(next_fence);
                        next_fence += 1;
                    }
                    start = ring.take(num_bytes);
                }
                let start = start.unwrap();
                prop_assert!(start + num_bytes <= 1024 && start % 16 == 0);
                for &(other, length, _) in &in_use {
                    prop_assert!(num_bytes == 0 || start + num_bytes <= other || other + length <= start);
                }
                if num_bytes > 0 {
                    in_use.push((start, num_bytes, next_fence));
                }
            }
        }
    }
}
