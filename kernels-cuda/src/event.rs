//! Points in a stream that the host can wait for.

use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_kernels::Result;

use crate::context::Context;
use crate::ffi::{self, CUevent, CUstream};

/// How long a thread stays awake that may.
const AWAKE: Duration = Duration::from_millis(20);

/// How long every thread stays awake.
const MOMENT: Duration = Duration::from_micros(100);

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Awake, as long as a short step may take: being woken costs more than 100 µs in a virtual machine, which is a
    /// seventh of a small model's step. Where there are few processors, others get them soon; so they do where the
    /// [pace](crate::pace::Pace) is slow.
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
        Self::with_flags(context, ffi::EVENT_BLOCKING_SYNC | ffi::EVENT_DISABLE_TIMING)
    }

    /// One that remembers when the device came to it.
    pub(crate) fn timed(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, ffi::EVENT_BLOCKING_SYNC)
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
    pub(crate) fn wait(&self, wait: Wait) -> Result<()> {
        self.context.bind()?;
        if self.is_over()? {
            return Ok(());
        }
        let start = Instant::now();
        if !self.comes_within(self.time_awake(wait), start)? {
            // SAFETY: the event lives.
            self.context.check("cuEventSynchronize", unsafe { ffi::cuEventSynchronize(self.raw) })?;
        }
        if wait == Wait::Awake {
            self.context.pace().note(start.elapsed());
        }
        Ok(())
    }

    /// How long a thread that waits so stays awake.
    fn time_awake(&self, wait: Wait) -> Duration {
        match wait {
            Wait::Awake if self.context.pace().is_slow() => Duration::ZERO,
            Wait::Awake if self.context.has_processors_to_spare() => AWAKE,
            _ => MOMENT,
        }
    }

    /// Asks again and again until `awake` has passed since `start`.
    fn comes_within(&self, awake: Duration, start: Instant) -> Result<bool> {
        while start.elapsed() < awake {
            // Asking takes a lock of the driver that threads which enqueue want too.
            (0..20).for_each(|_| std::hint::spin_loop());
            if self.is_over()? {
                return Ok(true);
            }
        }
        Ok(false)
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
