//! Standard error as the log writes to it: a reader that has stopped reading holds up nobody.
//!
//! A pipe takes 64 KiB; then whoever writes waits for its reader, the engine's thread as well. So lines that cannot be
//! written soon are left out, and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a line waits for a reader that has not kept one waiting before.
const PATIENCE: Duration = Duration::from_millis(500);

/// A pipe that has room takes as much at once.
const PART_BYTES: usize = 4096;

/// Writes lines, each with one call. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct LogWriter(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Lines since the last one that was written.
    num_lost: u64,
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        if state.num_lost > 0 && has_room(Duration::ZERO) {
            let num_lost = std::mem::take(&mut state.num_lost);
            writeln!(io::stderr(), "{num_lost} lines of the log are left out here: nobody has read it")?;
        }
        let patience = if state.num_lost == 0 { PATIENCE } else { Duration::ZERO };
        for part in line.chunks(PART_BYTES) {
            if !has_room(patience) {
                state.num_lost += 1;
                break;
            }
            io::stderr().write_all(part)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Whether standard error takes some bytes within a time; one that fails is told by writing to it.
fn has_room(patience: Duration) -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let patience = Timespec::try_from(patience).expect("a short time");
    poll(&mut fds, Some(&patience)) != Ok(0)
}
