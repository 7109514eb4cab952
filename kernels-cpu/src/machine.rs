//! What of the machine this process may use.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

/// Threads that can run at once: processors, less what affinity and the quota of a container take away.
pub(crate) fn num_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The processor's name, or the architecture where the system does not tell.
pub(crate) fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Memory that this process may use in all: the machine's, or less in a container.
pub(crate) fn total_bytes() -> usize {
    let machine = meminfo("MemTotal:").unwrap_or(usize::MAX);
    groups().iter().filter_map(|group| group.limit_bytes()).fold(machine, usize::min)
}

/// Memory that this process can still get without swapping.
pub(crate) fn free_bytes() -> usize {
    let machine = meminfo("MemAvailable:").unwrap_or(usize::MAX);
    groups().iter().filter_map(|group| group.free_bytes()).fold(machine, usize::min)
}

/// Has the allocator give memory back to the system that it keeps though nobody has it; where it can.
pub(crate) fn give_back_freed_bytes() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function takes the allocator's own locks and touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn meminfo(key: &str) -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// A control group (version 1 or 2) whose memory limit binds this process.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

impl Group {
    fn v2(folder: PathBuf) -> Self {
        Self { folder, limit: "memory.max", usage: "memory.current", inactive: "inactive_file" }
    }

    fn v1(folder: PathBuf) -> Self {
        Self {
            folder,
            limit: "memory.limit_in_bytes",
            usage: "memory.usage_in_bytes",
            inactive: "total_inactive_file",
        }
    }

    /// `None` where the group sets no limit.
    fn limit_bytes(&self) -> Option<usize> {
        self.number(self.limit)
    }

    /// Page cache that nobody uses counts as free: the kernel drops it before it refuses memory.
    fn free_bytes(&self) -> Option<usize> {
        let used = self.number(self.usage)?.saturating_sub(self.inactive_bytes().unwrap_or(0));
        Some(self.limit_bytes()?.saturating_sub(used))
    }

    fn inactive_bytes(&self) -> Option<usize> {
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let mut fields = stat.lines().filter_map(|line| line.split_once(' '));
        fields.find(|(key, _)| *key == self.inactive)?.1.trim().parse().ok()
    }

    /// `max` is no number, hence no limit.
    fn number(&self, file: &str) -> Option<usize> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

/// The groups of this process, from its own to the root: each of them may set a limit.
fn groups() -> Vec<Group> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    membership.lines().flat_map(groups_of_line).collect()
}

/// A line of `/proc/self/cgroup`: `0::/path` (version 2) or `number:controllers:/path` (version 1).
fn groups_of_line(line: &str) -> Vec<Group> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (root, group): (&str, fn(PathBuf) -> Group) = match controllers {
        "" => ("/sys/fs/cgroup", Group::v2),
        names if names.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", Group::v1),
        _ => return Vec::new(),
    };
    let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
    ancestors.map(|relative| group(Path::new(root).join(relative))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_thread_and_some_memory() {
        assert!(num_threads() >= 1);
        assert!(free_bytes() > 0 && free_bytes() <= total_bytes());
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_was_freed_between_what_is_kept_is_given_back() {
        let resident_kib = || {
            let status = fs::read_to_string("/proc/self/status").expect("linux has it");
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it is there");
            line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
        };
        // What a hundred thousand strings leave behind when the one that was made last is kept.
        let mut strings: Vec<Box<[u8; 1000]>> = (0..100_000).map(|_| Box::new([7; 1000])).collect();
        let kept = strings.pop();
        drop(strings);
        let before = resident_kib();
        give_back_freed_bytes();
        let after = resident_kib();
        assert!(before >= 90_000 && after + 80_000 < before, "{before} KiB, then {after} KiB");
        assert_eq!(kept.map(|kept| kept[0]), Some(7));
    }

    #[test]
    fn a_group_is_looked_up_with_all_its_ancestors() {
        let folders = |line| groups_of_line(line).into_iter().map(|g| g.folder).collect::<Vec<_>>();
        assert_eq!(
            folders("0::/a/b"),
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"].map(PathBuf::from)
        );
        assert_eq!(folders("4:cpu,memory:/"), [PathBuf::from("/sys/fs/cgroup/memory/")]);
        assert!(folders("3:cpuset:/a").is_empty() && folders("nonsense").is_empty());
    }
}
