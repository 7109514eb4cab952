//! What a simulated request has got so far.

use std::collections::VecDeque;

use crate::ids::{SeqId, Time};

/// A request that runs or waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    /// Its place in the trace.
    pub(super) index: usize,
    pub(super) first_token: Option<Time>,
    pub(super) num_output: u32,
    /// Whether it has ended.
    pub(super) is_over: bool,
}

/// The requests by sequence. Ids are given in order, so that it is a ring from the oldest that goes on.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    base: u64,
    tracks: VecDeque<Track>,
}

impl Tracks {
    pub(super) fn push(&mut self, seq: SeqId, index: usize) {
        debug_assert_eq!(seq.0, self.base + self.tracks.len() as u64, "nobody else adds sequences");
        self.tracks.push_back(Track { index, first_token: None, num_output: 0, is_over: false });
    }

    pub(super) fn get(&self, seq: SeqId) -> &Track {
        &self.tracks[(seq.0 - self.base) as usize]
    }

    pub(super) fn get_mut(&mut self, seq: SeqId) -> &mut Track {
        &mut self.tracks[(seq.0 - self.base) as usize]
    }

    /// Takes out a request that has ended.
    pub(super) fn end(&mut self, seq: SeqId) -> Track {
        let track = self.get_mut(seq);
        track.is_over = true;
        let track = *track;
        while self.tracks.front().is_some_and(|track| track.is_over) {
            self.tracks.pop_front();
            self.base += 1;
        }
        track
    }
}
