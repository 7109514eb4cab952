//! Work on large tensors, spread over the cores while loading.

use std::sync::Mutex;

/// Below this there is nothing to gain from starting threads.
const MIN_BYTES: usize = 1 << 20;

/// Calls `work` with every chunk of `num_bytes` (the last may be shorter) and its number. Chunks are
/// handed out one by one, so a slow core holds up nobody; the result does not depend on who does what.
pub(crate) fn for_each_chunk(data: &mut [u8], num_bytes: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    let large = data.len() >= MIN_BYTES;
    let chunks = data.chunks_mut(num_bytes).enumerate();
    if !large {
        chunks.for_each(|(at, chunk)| work(at, chunk));
        return;
    }
    let queue = Mutex::new(chunks);
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                loop {
                    // The lock is released before the work starts.
                    let next = queue.lock().expect("taking a chunk cannot panic").next();
                    let Some((at, chunk)) = next else { break };
                    work(at, chunk);
                }
            });
        }
    });
}
