//! Work that takes a while, spread over the cores while loading.

use std::panic::resume_unwind;
use std::sync::Mutex;

/// Below this there is nothing to gain from starting threads.
const MIN_BYTES: usize = 1 << 20;

/// Calls `work` with every chunk of `len` elements (the last may be shorter) and its number. Chunks are
/// handed out one by one, so a slow core holds up nobody; the result does not depend on who does what.
pub(crate) fn for_each_chunk<T: Send>(data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let large = size_of_val(data) >= MIN_BYTES;
    let chunks = data.chunks_mut(len).enumerate();
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

/// Does two things at the same time.
pub(crate) fn both<A: Send, B>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        (first.join().unwrap_or_else(|panic| resume_unwind(panic)), second)
    })
}
