//! Threads for what takes long and must not stand before what does not: long prompts.

use std::num::NonZero;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use parking_lot::Mutex;

/// Few threads that give way to all others, as far as the system knows priorities. They start with the first job, and end
/// when this is dropped and no job is left.
#[derive(Debug, Default)]
pub(crate) struct Background(OnceLock<mpsc::Sender<Job>>);

type Job = Box<dyn FnOnce() + Send>;

/// By how much their priority is lower: where all processors are busy, such a thread gets about a tenth of what others get.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// The lowest there is.
#[cfg(target_os = "linux")]
const LEAST: i32 = 19;

impl Background {
    /// Does a job once those before it are done, or at least begun by other threads.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.0.get_or_init(start);
        // A job that nobody takes tells by being dropped.
        let _ = jobs.send(Box::new(job));
    }
}

/// Half of the processors are left to others, whatever priorities count for.
fn start() -> mpsc::Sender<Job> {
    let (jobs, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let num_threads = (thread::available_parallelism().map_or(1, NonZero::get) / 2).max(1);
    for _ in 0..num_threads {
        let receiver = Arc::clone(&receiver);
        let started = thread::Builder::new().name("quire-prompts".to_owned()).spawn(move || work(&receiver));
        if let Err(error) = started {
            tracing::warn!(target: "quire::engine", "a thread for long prompts could not be started: {error}");
        }
    }
    jobs
}

fn work(jobs: &Mutex<mpsc::Receiver<Job>>) {
    give_way();
    loop {
        // The lock is held while waiting: one thread waits for a job, the others for their turn.
        let job = jobs.lock().recv();
        match job {
            Ok(job) => job(),
            Err(mpsc::RecvError) => return,
        }
    }
}

#[cfg(target_os = "linux")]
fn give_way() {
    let thread = Some(rustix::thread::gettid());
    let lowered = rustix::process::getpriority_process(thread)
        .and_then(|own| rustix::process::setpriority_process(thread, (own + NICENESS).min(LEAST)));
    if let Err(error) = lowered {
        tracing::debug!(target: "quire::engine", "long prompts keep their priority: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_done_and_the_end_waits_for_none() {
        let background = Background::default();
        let (done, dones) = mpsc::channel();
        for place in 0..20 {
            let done = done.clone();
            background.run(move || done.send(place).expect("somebody listens"));
        }
        drop((background, done));
        let mut all: Vec<i32> = dones.into_iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn jobs_give_way_to_others() {
        let background = Background::default();
        let (said, heard) = mpsc::channel();
        background.run(move || {
            let thread = rustix::thread::gettid();
            said.send(rustix::process::getpriority_process(Some(thread))).expect("somebody listens");
        });
        let own = rustix::process::getpriority_process(Some(rustix::thread::gettid())).expect("known");
        assert_eq!(heard.recv().expect("done").expect("known"), (own + NICENESS).min(LEAST));
    }
}
