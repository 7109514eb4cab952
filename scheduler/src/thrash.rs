//! Notices when the work that preemptions throw away eats the device, and lets fewer sequences run for a while.

use crate::stats::ThrashStats;

/// Steps that are looked at together.
const WINDOW: u64 = 32;

/// Admission is lowered when more than one in so many tokens was computed for nothing.
const MIN_USEFUL_PER_LOST: u64 = 4;

/// Lowers the number of sequences that may run while preemptions cost too much, and raises it again, step by step, when
/// they have stopped.
#[derive(Debug, Default)]
pub(crate) struct ThrashGuard {
    limit: Option<u32>,
    num_steps: u64,
    num_granted_tokens: u64,
    num_lost_tokens: u64,
    num_times: u64,
}

impl ThrashGuard {
    /// Sequences that may run; none where nothing is lowered.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.limit
    }

    pub(crate) fn stats(&self) -> ThrashStats {
        ThrashStats { limit: self.limit, num_times_lowered: self.num_times }
    }

    /// Whether restored numbers are such as can be counted on.
    pub(crate) fn is_sound(&self) -> bool {
        let counts = [self.num_steps, self.num_granted_tokens, self.num_lost_tokens, self.num_times];
        self.limit.is_none_or(|limit| limit <= u32::MAX / 2) && counts.iter().all(|count| *count <= 1 << 60)
    }

    /// A sequence gave way, and so many of its tokens must be computed again or were moved.
    pub(crate) fn note_lost(&mut self, num_tokens: u32) {
        self.num_lost_tokens += u64::from(num_tokens);
    }

    /// A step was planned. Returns whether the limit has changed.
    pub(crate) fn note_step(&mut self, num_tokens: u32, num_running: u32, max_num_seqs: u32) -> bool {
        self.num_steps += 1;
        self.num_granted_tokens += u64::from(num_tokens);
        if self.num_steps < WINDOW {
            return false;
        }
        let before = self.limit;
        if self.num_lost_tokens * MIN_USEFUL_PER_LOST > self.num_granted_tokens {
            self.limit = Some((num_running * 3 / 4).max(1));
            self.num_times += 1;
        } else if self.num_lost_tokens == 0 {
            self.limit =
                self.limit.map(|limit| limit + (limit / 4).max(1)).filter(|limit| *limit < max_num_seqs);
        }
        (self.num_steps, self.num_granted_tokens, self.num_lost_tokens) = (0, 0, 0);
        self.limit != before
    }
}

quire_kvcache::saved!(ThrashGuard { limit, num_steps, num_granted_tokens, num_lost_tokens, num_times });

#[cfg(test)]
mod tests {
    use super::*;

    fn window(guard: &mut ThrashGuard, num_lost_tokens: u32, num_running: u32) -> Option<u32> {
        guard.note_lost(num_lost_tokens);
        for _ in 0..WINDOW {
            guard.note_step(100, num_running, 64);
        }
        guard.limit()
    }

    #[test]
    fn the_limit_falls_while_work_is_lost_and_comes_back() {
        let mut guard = ThrashGuard::default();
        assert_eq!(window(&mut guard, 800, 40), None, "a quarter may be lost");
        assert_eq!(window(&mut guard, 801, 40), Some(30));
        assert_eq!(window(&mut guard, 3000, 30), Some(22));
        assert_eq!(window(&mut guard, 10, 22), Some(22));
        let calm: Vec<_> = (0..6).map(|_| window(&mut guard, 0, 22)).collect();
        assert_eq!(calm, [Some(27), Some(33), Some(41), Some(51), Some(63), None]);
        assert_eq!(guard.stats().num_times_lowered, 2);
    }

    #[test]
    fn one_may_always_run() {
        let mut guard = ThrashGuard::default();
        assert_eq!(window(&mut guard, 9999, 1), Some(1));
    }
}
