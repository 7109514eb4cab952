//! The ring of chunks that recorded calls go to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::{Base, Call};
use super::file::{Header, Recording};

/// Bytes that a recorder keeps unless it is told otherwise: an hour of a large GPU, a day of a CPU.
pub const DEFAULT_RING_BYTES: usize = 64 << 20;

/// Bytes of a chunk; what is overwritten, is so by the chunk.
const CHUNK_BYTES: usize = 256 << 10;

/// A checkpoint is taken when one part in so many of the ring has been filled since the last.
const CHECKPOINTS_PER_RING: usize = 4;

/// What has been recorded so far; a handle that any thread may hold and read.
#[derive(Clone, Debug)]
pub struct FlightRecorder(Arc<Mutex<Ring>>);

#[derive(Debug)]
struct Ring {
    header: Header,
    chunks: VecDeque<Arc<[u8]>>,
    current: Vec<u8>,
    base: Base,
    num_bytes: usize,
    max_bytes: usize,
    /// Bytes of calls since the last checkpoint, or since the beginning.
    since_checkpoint: usize,
}

impl FlightRecorder {
    pub(super) fn new(header: Header, max_bytes: usize) -> Self {
        let mut ring = Ring {
            header,
            chunks: VecDeque::new(),
            current: Vec::new(),
            base: Base::default(),
            num_bytes: 0,
            max_bytes,
            since_checkpoint: 0,
        };
        ring.begin_chunk();
        Self(Arc::new(Mutex::new(ring)))
    }

    /// What the ring holds now. The scheduler goes on meanwhile.
    pub fn recording(&self) -> Recording {
        let ring = self.lock();
        let header = Header { digest: ring.base.digest, num_steps: ring.base.step, ..ring.header.clone() };
        let current = std::iter::once(Arc::from(ring.current.as_slice()));
        Recording { header, chunks: ring.chunks.iter().cloned().chain(current).collect() }
    }

    /// Keeps at most about so many bytes from now on.
    pub fn set_max_bytes(&self, max_bytes: usize) {
        self.lock().max_bytes = max_bytes;
    }

    pub(super) fn push(&self, call: &Call, digest: u64) {
        let mut ring = self.lock();
        let before = ring.current.len();
        ring.encode(call);
        ring.base.digest = digest;
        ring.since_checkpoint += ring.current.len() - before;
        if ring.current.len() >= CHUNK_BYTES {
            ring.end_chunk();
        }
    }

    /// Whether a quarter of the ring has been filled since the last checkpoint.
    pub(super) fn wants_checkpoint(&self) -> bool {
        let ring = self.lock();
        ring.since_checkpoint >= ring.max_bytes / CHECKPOINTS_PER_RING
    }

    /// Begins a chunk with a checkpoint, so that the ring drops it whole; `None` where the state cannot be saved. One
    /// that would itself take more than a quarter of the ring is left out. Together that makes sure that a ring which
    /// keeps checkpoints has one in it.
    pub(super) fn push_checkpoint(&self, words: Option<Vec<u64>>) {
        let mut ring = self.lock();
        ring.since_checkpoint = 0;
        let Some(words) = words else { return };
        ring.end_chunk();
        let before = ring.current.len();
        ring.encode(&Call::Checkpoint { words });
        if ring.current.len() - before > ring.max_bytes / CHECKPOINTS_PER_RING {
            ring.current.truncate(before);
        }
    }

    /// A panic elsewhere leaves bytes that are whole calls.
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn encode(&mut self, call: &Call) {
        self.base.encode(call, &mut self.current);
    }

    fn begin_chunk(&mut self) {
        self.encode(&Call::Base(self.base));
    }

    fn end_chunk(&mut self) {
        let chunk: Arc<[u8]> = Arc::from(std::mem::take(&mut self.current));
        self.num_bytes += chunk.len();
        self.chunks.push_back(chunk);
        while self.num_bytes > self.max_bytes {
            let Some(oldest) = self.chunks.pop_front() else { break };
            self.num_bytes -= oldest.len();
            self.header.dropped_bytes += oldest.len() as u64;
        }
        self.begin_chunk();
    }
}
