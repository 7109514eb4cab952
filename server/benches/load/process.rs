//! What the system tells of this process.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Processor time so far, by the names of threads.
pub(crate) fn cpu_by_thread() -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::<_, Duration>::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
        if let Some((name, time)) = read(&stat) {
            *times.entry(name).or_default() += time;
        }
    }
    times
}

/// Processor time of the whole process, threads that have ended included.
pub(crate) fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    read(&stat).map_or(Duration::ZERO, |(_, time)| time)
}

/// Bytes in memory.
pub(crate) fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// The name, in parentheses, which may hold spaces; user and system time, in hundredths of a second.
fn read(stat: &str) -> Option<(String, Duration)> {
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<_> = rest.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((name, Duration::from_millis(ticks * 10)))
}
