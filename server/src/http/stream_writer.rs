//! Threads that write streams: what the engine says goes there, and its own thread goes on.

use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use quire_engine::{Error, EventSink, RequestEvent};

/// Most threads.
const MAX_THREADS: usize = 4;

/// Streams that a thread has before another gets any. To wake a thread costs as much as a write or two, at each step: few
/// streams are written sooner by one.
const STREAMS_AT_ONCE: usize = 32;

/// Who is told of the events of requests, on one of these threads.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Takes an event of the request at `place`.
    fn take(&self, place: usize, event: RequestEvent, moment: Instant);

    /// It has panicked: what it serves is to end with an error.
    fn fail(&self);
}

/// Threads with a queue each. They end when this is dropped and their queues are empty.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    queues: Vec<Arc<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Sinks that lead here.
    num_sinks: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    has_ended: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("num_items", &self.items.len()).finish_non_exhaustive()
    }
}

struct Item {
    listener: Arc<dyn Listener>,
    place: usize,
    event: RequestEvent,
    moment: Instant,
}

impl StreamWriter {
    /// Starts the threads: one can write some hundred thousand tokens a second, and shares processors with the engine.
    ///
    /// # Errors
    ///
    /// Where the system has no thread.
    pub(crate) fn start() -> io::Result<Self> {
        let num_processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_threads((num_processors / 4).clamp(1, MAX_THREADS))
    }

    fn with_threads(num_threads: usize) -> io::Result<Self> {
        // Those that run end with it, where one cannot be started.
        let mut writer = Self { queues: Vec::new() };
        for _ in 0..num_threads {
            let queue = Arc::<Queue>::default();
            let run = Arc::clone(&queue);
            thread::Builder::new().name("quire-streams".to_owned()).spawn(move || run.run())?;
            writer.queues.push(queue);
        }
        Ok(writer)
    }

    /// Sinks that lead to a listener on one of the threads: one for each request, in their order.
    pub(crate) fn sinks(&self, listener: Arc<dyn Listener>) -> impl Iterator<Item = Box<dyn EventSink>> {
        let queue = Arc::clone(self.quietest());
        (0..).map(move |place| -> Box<dyn EventSink> {
            Box::new(QueuedSink::new(Arc::clone(&queue), Arc::clone(&listener), place))
        })
    }

    /// The first queue that is not full, or where all are the one with the fewest streams.
    fn quietest(&self) -> &Arc<Queue> {
        let num_sinks = |queue: &Arc<Queue>| queue.num_sinks.load(Ordering::Relaxed);
        let has_room = self.queues.iter().find(|queue| num_sinks(queue) < STREAMS_AT_ONCE);
        let fewest = || self.queues.iter().min_by_key(|queue| num_sinks(queue));
        has_room.or_else(fewest).expect("there is a thread")
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.state.lock().has_ended = true;
            queue.changed.notify_one();
        }
    }
}

impl Queue {
    fn push(&self, item: Item) {
        let mut state = self.state.lock();
        state.items.push(item);
        // The thread takes all that is there at once: it hears of the first.
        if state.items.len() == 1 {
            drop(state);
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut items = Vec::new();
        while self.wait(&mut items) {
            for Item { listener, place, event, moment } in items.drain(..) {
                let take = AssertUnwindSafe(|| listener.take(place, event, moment));
                if catch_unwind(take).is_err() {
                    listener.fail();
                }
            }
        }
    }

    /// Waits for something to do; false at the end.
    fn wait(&self, items: &mut Vec<Item>) -> bool {
        let mut state = self.state.lock();
        while state.items.is_empty() && !state.has_ended {
            self.changed.wait(&mut state);
        }
        std::mem::swap(&mut state.items, items);
        !items.is_empty()
    }
}

/// The events of one request, on their way to a thread.
struct QueuedSink {
    queue: Arc<Queue>,
    listener: Arc<dyn Listener>,
    place: usize,
    has_ended: bool,
}

impl QueuedSink {
    fn new(queue: Arc<Queue>, listener: Arc<dyn Listener>, place: usize) -> Self {
        queue.num_sinks.fetch_add(1, Ordering::Relaxed);
        Self { queue, listener, place, has_ended: false }
    }
}

impl EventSink for QueuedSink {
    fn send_at(&mut self, event: RequestEvent, moment: Instant) {
        self.has_ended |= event.is_end();
        let (listener, place) = (Arc::clone(&self.listener), self.place);
        self.queue.push(Item { listener, place, event, moment });
    }
}

impl Drop for QueuedSink {
    fn drop(&mut self) {
        self.queue.num_sinks.fetch_sub(1, Ordering::Relaxed);
        if !self.has_ended {
            self.send(RequestEvent::Failed(Error::Stopped {
                reason: "the engine's thread has ended".into(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Tells what it was told, and panics at the first piece.
    struct Clumsy(Mutex<mpsc::Sender<String>>);

    impl Listener for Clumsy {
        fn take(&self, place: usize, event: RequestEvent, _: Instant) {
            assert!(event.is_end(), "a piece is too much");
            self.0.lock().send(format!("{place} has ended")).expect("somebody listens");
        }

        fn fail(&self) {
            self.0.lock().send("failed".to_owned()).expect("somebody listens");
        }
    }

    #[test]
    fn a_thread_has_many_streams_before_another_has_any() {
        let writer = StreamWriter::with_threads(2).expect("threads");
        let num_sinks = || -> Vec<_> {
            writer.queues.iter().map(|queue| queue.num_sinks.load(Ordering::Relaxed)).collect()
        };
        let (said, _heard) = mpsc::channel();
        let listener: Arc<dyn Listener> = Arc::new(Clumsy(Mutex::new(said)));
        let stream = |_| writer.sinks(Arc::clone(&listener)).next().expect("one for each request");
        let mut streams: Vec<_> = (0..STREAMS_AT_ONCE).map(stream).collect();
        assert_eq!(num_sinks(), [STREAMS_AT_ONCE, 0]);
        streams.extend((0..STREAMS_AT_ONCE + 10).map(stream));
        assert_eq!(num_sinks(), [STREAMS_AT_ONCE + 5, STREAMS_AT_ONCE + 5]);
        streams.drain(..STREAMS_AT_ONCE);
        assert_eq!(num_sinks(), [5, STREAMS_AT_ONCE + 5], "those that have ended make room");
        streams.push(stream(0));
        assert_eq!(num_sinks(), [6, STREAMS_AT_ONCE + 5]);
    }

    #[test]
    fn br_42_a_panic_while_writing_is_told_and_ends_nobody_else() {
        let writer = StreamWriter::start().expect("threads");
        let (said, heard) = mpsc::channel();
        let sinks = writer.sinks(Arc::new(Clumsy(Mutex::new(said)))).take(2);
        let mut sinks: Vec<_> = sinks.collect();
        sinks[0].send(RequestEvent::Delta(Default::default()));
        drop(writer);
        drop(sinks);
        let all: Vec<_> = heard.into_iter().collect();
        assert_eq!(all, ["failed", "0 has ended", "1 has ended"]);
    }
}
