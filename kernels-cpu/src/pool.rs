//! The threads of a device.
//!
//! A job is a number of units and a function of a range of them. Caller and workers claim ranges from one
//! counter, large ones first, until none is left; then the caller waits for the ranges still being worked on.
//! So a thread that the system has taken off its processor, or has not woken yet, delays only the range it
//! claimed: the others do the rest without it. Which thread does what is a matter of chance, so a job's result
//! must not depend on how its units are cut: each unit writes its own outputs.
//!
//! A worker that loses its processor in the middle of a range holds the caller up for as long as the system's
//! time slices last, a hundred times what the whole job takes; and one that is put on the caller's own processor
//! takes away what it gives. Where that happens processors are short, and the caller is faster without that
//! worker: it naps for a while, a multiple of what it has cost, and then tries again.
//!
//! ```text
//! worker   spin on `unclaimed` ──nothing for SPIN──> sleep ──notified──> spin
//!               │ > 0
//!               └─> claim, run, claim, run, ... none left: `unfinished -= what I did`; the last one wakes the caller
//! worker   beside the caller, or having held it up ──> nap ──> spin
//! ```

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a worker looks for the next job before it sleeps. A step is some hundred jobs a few microseconds
/// apart; waking a sleeper costs about as much as this.
const WORKER_SPIN: Duration = Duration::from_micros(60);

/// How long the caller looks for the end of a job before it sleeps, which leaves its processor to the worker
/// that has lost its own.
const CALLER_SPIN: Duration = Duration::from_micros(30);

/// A worker that the caller waited for longer than this, asleep, has lost its processor: a claim is worth some
/// microseconds.
const STALL: Duration = Duration::from_micros(300);

/// A worker naps for so many times the length of a stall: then little is lost even where every trial ends in one.
const NAP_FACTOR: u32 = 16;

/// How long a worker naps that found itself on the caller's processor.
const CROWDED_NAP: Duration = Duration::from_millis(10);

/// A job is cut so that each thread makes about this many claims of the first half of it.
const CLAIMS_PER_THREAD: usize = 2;

/// Persistent threads that work on one job at a time, the caller among them.
///
/// `Send` but not `Sync`: jobs come from one thread at a time, and a job cannot start another.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    not_sync: PhantomData<Cell<()>>,
}

impl Pool {
    /// A pool of `threads` threads, one of which is the caller.
    ///
    /// # Errors
    ///
    /// Where the system refuses a thread.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(threads.max(1)));
        let mut pool = Self { shared, workers: Vec::new(), not_sync: PhantomData };
        for number in 1..threads {
            let shared = pool.shared.clone();
            let worker = thread::Builder::new().name(format!("quire-cpu-{number}"));
            pool.workers.push(worker.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Calls `f` with disjoint ranges that together are `0..len`, on all threads at once; each range starts at a
    /// multiple of `grain` and, but for the last, is a multiple of it long. Returns when all calls have.
    ///
    /// A job of one grain runs on the caller alone. `grain` should be worth some microseconds.
    ///
    /// # Panics
    ///
    /// Where `f` panics, with its message, after all threads have left the job.
    pub(crate) fn for_each<F: Fn(Range<usize>) + Sync>(&self, len: usize, grain: usize, f: F) {
        let grain = grain.max(1);
        if len <= grain || self.workers.is_empty() {
            if len > 0 {
                f(0..len);
            }
            return;
        }
        let run = |units: Range<usize>| f(units.start * grain..len.min(units.end * grain));
        self.run_job(len.div_ceil(grain), &run);
    }

    fn run_job(&self, num_units: usize, run: &(dyn Fn(Range<usize>) + Sync)) {
        let shared = self.shared.as_ref();
        // SAFETY: only the lifetime changes. A thread calls `run` between a claim and counting the claimed units
        // as finished, and this function does not return before all of them are.
        let run: &'static (dyn Fn(Range<usize>) + Sync) = unsafe { std::mem::transmute(run) };
        // SAFETY: no job is open, so no thread reads the cell; `Pool` is not `Sync`, so nobody else writes it.
        unsafe { *shared.job.get() = Some(Job { num_units, run }) };
        shared.unfinished.0.store(num_units, Ordering::Relaxed);
        shared.caller_processor.store(this_processor().unwrap_or(NO_PROCESSOR), Ordering::Relaxed);
        // Publishes the lines above to whoever claims a unit.
        shared.unclaimed.0.store(num_units, Ordering::SeqCst);
        shared.wake(num_units - 1);
        shared.claim_and_run();
        shared.wait_until_finished();
        if shared.panicked.load(Ordering::Relaxed) {
            shared.panicked.store(false, Ordering::Relaxed);
            let payload = shared.payload.lock().take();
            panic::resume_unwind(payload.expect("a panic leaves its payload"));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shut_down();
        for worker in self.workers.drain(..) {
            // Its jobs' panics were caught, so the thread itself has none to tell of.
            let _ = worker.join();
        }
    }
}

#[derive(Clone, Copy)]
struct Job {
    num_units: usize,
    run: &'static (dyn Fn(Range<usize>) + Sync),
}

/// A counter alone on its cache lines (two of them: they are fetched in pairs).
#[repr(align(128))]
struct Padded(AtomicUsize);

struct Shared {
    threads: usize,
    /// Units of the open job that nobody has claimed; 0 where no job is open.
    unclaimed: Padded,
    /// Units of the job that are not done. While it is not 0 the job stays as it is.
    unfinished: Padded,
    /// Written by the caller while `unfinished` is 0, read by threads that have claimed a unit.
    job: UnsafeCell<Option<Job>>,
    /// Where the caller was when it opened the job.
    caller_processor: AtomicI32,
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    shutdown: AtomicBool,
    panicked: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    /// Since when the caller sleeps. The lock orders sleeping and waking.
    sleep: Mutex<Option<Instant>>,
    work: Condvar,
    done: Condvar,
    shutting_down: Condvar,
}

// SAFETY: the one field that is not `Sync` by itself is `job`; its comment says who touches it when.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            unclaimed: Padded(AtomicUsize::new(0)),
            unfinished: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            caller_processor: AtomicI32::new(NO_PROCESSOR),
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            payload: Mutex::new(None),
            sleep: Mutex::new(None),
            work: Condvar::new(),
            done: Condvar::new(),
            shutting_down: Condvar::new(),
        }
    }

    /// A worker's life.
    fn work(&self) {
        while !self.shutdown.load(Ordering::SeqCst) {
            if !spin_until(WORKER_SPIN, || self.has_work()) {
                self.sleep_until_work();
            }
            if self.is_beside_caller() {
                self.nap(CROWDED_NAP);
                continue;
            }
            let stall = self.claim_and_run();
            if stall > STALL {
                self.nap(stall * NAP_FACTOR);
            }
        }
    }

    fn is_beside_caller(&self) -> bool {
        this_processor().is_some_and(|here| here == self.caller_processor.load(Ordering::Relaxed))
    }

    /// Takes no part for a while.
    fn nap(&self, length: Duration) {
        let mut sleep = self.sleep.lock();
        if !self.shutdown.load(Ordering::SeqCst) {
            self.shutting_down.wait_for(&mut sleep, length);
        }
    }

    fn shut_down(&self) {
        let _sleep = self.sleep.lock();
        self.shutdown.store(true, Ordering::SeqCst);
        self.work.notify_all();
        self.shutting_down.notify_all();
    }

    fn has_work(&self) -> bool {
        self.unclaimed.0.load(Ordering::SeqCst) > 0 || self.shutdown.load(Ordering::SeqCst)
    }

    /// A sleeper counts itself and then looks for work; the caller publishes work and then looks for sleepers:
    /// in the one order of the sequentially consistent accesses, one of the two sees the other.
    fn sleep_until_work(&self) {
        let mut sleep = self.sleep.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.has_work() {
            self.work.wait(&mut sleep);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes as many sleepers as there is work for.
    fn wake(&self, wanted: usize) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _sleep = self.sleep.lock();
            for _ in 0..wanted.min(self.sleepers.load(Ordering::SeqCst)) {
                self.work.notify_one();
            }
        }
    }

    /// Works on the open job until nothing is left to claim. Returns how long the caller slept until this thread,
    /// as the last one, was done.
    fn claim_and_run(&self) -> Duration {
        let mut done = 0;
        while let Some((left, taken)) = self.claim() {
            // SAFETY: units were claimed and are not counted as finished, so the job stays as it is; the claim
            // acquired what its caller published.
            let job = unsafe { *self.job.get() }.expect("an open job is there");
            let start = job.num_units - left;
            if !self.panicked.load(Ordering::Relaxed) {
                self.run_caught(job, start..start + taken);
            }
            done += taken;
        }
        if done > 0 && self.unfinished.0.fetch_sub(done, Ordering::SeqCst) == done {
            return self.wake_caller();
        }
        Duration::ZERO
    }

    /// Takes units: `(left before, taken)`.
    fn claim(&self) -> Option<(usize, usize)> {
        let mut left = self.unclaimed.0.load(Ordering::Relaxed);
        while left > 0 {
            let taken = (left / (CLAIMS_PER_THREAD * self.threads)).max(1);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match self.unclaimed.0.compare_exchange_weak(left, left - taken, order.0, order.1) {
                Ok(_) => return Some((left, taken)),
                Err(now) => left = now,
            }
        }
        None
    }

    fn run_caught(&self, job: Job, units: Range<usize>) {
        // What the panicking call has left half done is the output of a job whose caller will panic as well.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| (job.run)(units))) {
            self.payload.lock().get_or_insert(payload);
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    fn wait_until_finished(&self) {
        let finished = || self.unfinished.0.load(Ordering::SeqCst) == 0;
        if spin_until(CALLER_SPIN, finished) {
            return;
        }
        let mut sleep = self.sleep.lock();
        *sleep = Some(Instant::now());
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !finished() {
            self.done.wait(&mut sleep);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
        *sleep = None;
    }

    /// Wakes the caller where it sleeps, and says for how long it did.
    fn wake_caller(&self) -> Duration {
        if !self.caller_sleeps.load(Ordering::SeqCst) {
            return Duration::ZERO;
        }
        let sleep = self.sleep.lock();
        self.done.notify_one();
        sleep.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The number of the processor that runs this thread just now, where the system tells.
fn this_processor() -> Option<i32> {
    #[cfg(target_os = "linux")]
    // SAFETY: takes nothing, and only returns a number, or -1.
    return Some(unsafe { libc::sched_getcpu() }).filter(|&number| number >= 0);
    #[cfg(not(target_os = "linux"))]
    None
}

/// Stands for a processor that is not known.
const NO_PROCESSOR: i32 = -1;

/// Whether `ready` became true within `limit`.
fn spin_until(limit: Duration, ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..32 {
            if ready() {
                return true;
            }
            hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= limit {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_each_index_once(threads: usize, len: usize, grain: usize) {
        let pool = Pool::new(threads).unwrap();
        let counts: Vec<_> = (0..len).map(|_| AtomicUsize::new(0)).collect();
        pool.for_each(len, grain, |range| {
            assert_eq!(range.start % grain, 0);
            for i in range {
                counts[i].fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {len} by {grain}");
    }

    #[test]
    fn every_index_is_visited_once() {
        for threads in [1, 2, 5] {
            for len in [0, 1, 2, 7, 64, 1000] {
                for grain in [1, 3, 64] {
                    check_each_index_once(threads, len, grain);
                }
            }
        }
    }

    #[test]
    fn many_small_jobs_in_a_row_and_after_a_sleep() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for job in 0..20_000 {
            pool.for_each(5, 1, |range| {
                sum.fetch_add(range.len(), Ordering::Relaxed);
            });
            if job % 5000 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        }
        assert_eq!(sum.into_inner(), 100_000);
    }

    #[test]
    fn a_thread_that_holds_the_caller_up_wakes_it_and_learns_for_how_long() {
        let pool = Pool::new(1).unwrap();
        let shared = pool.shared.clone();
        let caller = thread::current().id();
        let helper = thread::spawn(move || {
            loop {
                let stall = shared.claim_and_run();
                if stall > Duration::ZERO {
                    return stall;
                }
            }
        });
        while !helper.is_finished() {
            pool.run_job(2, &|_| {
                let is_caller = thread::current().id() == caller;
                thread::sleep(Duration::from_millis(if is_caller { 1 } else { 10 }));
            });
        }
        assert!(helper.join().unwrap() > STALL);
    }

    #[test]
    fn a_nap_ends_with_the_pool() {
        let pool = Pool::new(1).unwrap();
        let shared = pool.shared.clone();
        let napper = thread::spawn(move || shared.nap(Duration::from_secs(3600)));
        drop(pool);
        napper.join().unwrap();
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..50 {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                pool.for_each(100, 1, |range| assert!(!range.contains(&42), "unit 42 fails"));
            }));
            let message = *outcome.unwrap_err().downcast::<&str>().unwrap();
            assert_eq!(message, "unit 42 fails");
        }
        let sum = AtomicUsize::new(0);
        pool.for_each(100, 1, |range| {
            sum.fetch_add(range.sum(), Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
    }
}
