//! Points in a stream that the host can wait for.

use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use quire_kernels::Result;

use crate::context::Context;
use crate::ffi::{self, CUevent, CUstream};
use crate::pace;

/// How long a thread stays awake that may.
const AWAKE: Duration = Duration::from_millis(20);

/// How long every thread stays awake.
const MOMENT: Duration = Duration::from_micros(100);

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Awake, as long as a short step may take: even a nap is longer than what is left of some. Where there are few
    /// processors, others get them soon; so they do where the [pace](crate::pace::Pace) is slow.
    Awake,
    /// Asleep, but for the first moment: one of many threads.
    Asleep,
}

/// A point in a stream.
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: a handle of the driver, which may be used from any thread.
unsafe impl Send for Event {}

// SAFETY: as above; the driver locks what threads share.
unsafe impl Sync for Event {}

impl Event {
    /// An event that is not recorded yet, hence over.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, ffi::EVENT_DISABLE_TIMING)
    }

    /// One that remembers when the device came to it.
    pub(crate) fn timed(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, ffi::EVENT_DEFAULT)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Self> {
        context.bind()?;
        let mut raw = null_mut();
        // SAFETY: a handle is written.
        context.check("cuEventCreate", unsafe { ffi::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Records everything that was enqueued on the stream so far; the context is current.
    pub(crate) fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: both are handles of this context.
        self.context.check("cuEventRecord", unsafe { ffi::cuEventRecord(self.raw, stream) })
    }

    /// Lets what is enqueued on another stream from now on wait for everything recorded; the context is current.
    pub(crate) fn hold_back(&self, stream: CUstream) -> Result<()> {
        // SAFETY: both are handles of this context.
        self.context.check("cuStreamWaitEvent", unsafe { ffi::cuStreamWaitEvent(stream, self.raw, 0) })
    }

    /// Whether everything recorded is done; the context is current.
    pub(crate) fn is_over(&self) -> Result<bool> {
        // SAFETY: the event lives.
        match unsafe { ffi::cuEventQuery(self.raw) } {
            ffi::NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Time from another event to this, both [`timed`](Self::timed); `None` while one of them is still ahead.
    pub(crate) fn since(&self, earlier: &Self) -> Option<Duration> {
        self.context.bind().ok()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both are recorded events of this context.
        let code = unsafe { ffi::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) };
        (code == ffi::SUCCESS).then(|| Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }

    /// Waits until everything recorded is done, on any thread. A lost device ends the wait with its error.
    ///
    /// Who sleeps looks again by the clock. The driver could wake it: but then the device interrupts the host for every
    /// event, a thread of the driver hears of it, and wakes another, which takes longer than a nap.
    pub(crate) fn wait(&self, wait: Wait) -> Result<()> {
        self.context.bind()?;
        if self.is_over()? {
            return Ok(());
        }
        let start = Instant::now();
        let (pace, is_paced) = (self.context.pace(), wait == Wait::Awake);
        let expected = pace.expected().filter(|_| is_paced);
        expected.into_iter().for_each(thread::sleep);
        let awake = self.time_awake(wait, expected.is_some());
        while !self.is_over()? {
            rest(start.elapsed(), awake);
        }
        if is_paced {
            pace.note(start.elapsed());
        }
        Ok(())
    }

    /// How long a thread that waits so stays awake.
    fn time_awake(&self, wait: Wait, is_slow: bool) -> Duration {
        match wait {
            Wait::Awake if is_slow => Duration::ZERO,
            Wait::Awake if self.context.has_processors_to_spare() => AWAKE,
            _ => MOMENT,
        }
    }
}

/// What a thread does that has waited so long before it looks again.
fn rest(waited: Duration, awake: Duration) {
    if waited < awake {
        // Asking takes a lock of the driver that threads which enqueue want too.
        (0..20).for_each(|_| std::hint::spin_loop());
    } else {
        thread::sleep(pace::nap_after(waited));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody else has the handle; the driver keeps what is still pending.
            unsafe { ffi::cuEventDestroy_v2(self.raw) };
        }
    }
}
