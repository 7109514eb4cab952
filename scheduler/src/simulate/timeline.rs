//! A run at a glance: its state at some of its steps.

use serde::Serialize;

/// The state when a step was planned.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Point {
    /// Seconds since the beginning.
    pub time_s: f64,
    /// Sequences that run.
    pub num_running: u32,
    /// Sequences that wait.
    pub num_waiting: u32,
    /// Those of them whose blocks are on the host.
    pub num_swapped: u32,
    /// Blocks that sequences hold.
    pub live_blocks: u32,
    /// Tokens of the step.
    pub num_tokens: u32,
}

/// Points of a run, evenly over its steps, however long it is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Timeline {
    /// The points, in order.
    pub points: Vec<Point>,
    /// Blocks of the pool.
    pub total_blocks: u32,
    /// Of how many steps one is kept.
    pub stride: u64,
    #[serde(skip)]
    num_seen: u64,
}

/// A timeline that has grown to so many points keeps every second of them.
const MAX_POINTS: usize = 4096;

impl Timeline {
    /// An empty one, of a pool of so many blocks.
    pub fn new(total_blocks: u32) -> Self {
        Self { points: Vec::new(), total_blocks, stride: 1, num_seen: 0 }
    }

    /// Notes a step; `point` is asked for if it is to be kept.
    pub fn push(&mut self, point: impl FnOnce() -> Point) {
        if self.num_seen.is_multiple_of(self.stride) {
            self.keep(point());
        }
        self.num_seen += 1;
    }

    /// Notes that nothing was left to do, until the next step.
    pub fn push_idle(&mut self, time_s: f64) {
        self.keep(Point { time_s, ..Point::default() });
    }

    /// Nothing is known to have changed until then.
    pub fn hold(&mut self, time_s: f64) {
        if let Some(&last) = self.points.last() {
            self.keep(Point { time_s, ..last });
        }
    }

    fn keep(&mut self, point: Point) {
        self.points.push(point);
        if self.points.len() == MAX_POINTS {
            let mut place = 0;
            self.points.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_even_points() {
        let mut timeline = Timeline::new(1);
        for step in 0..100_000_u32 {
            timeline.push(|| Point { num_tokens: step, ..Point::default() });
        }
        assert_eq!(timeline.stride, 32);
        let tokens: Vec<_> = timeline.points.iter().map(|point| point.num_tokens).collect();
        assert!((MAX_POINTS / 2..MAX_POINTS).contains(&tokens.len()));
        assert!(tokens.iter().zip(0..).all(|(&token, place)| token == place * 32));
    }
}
