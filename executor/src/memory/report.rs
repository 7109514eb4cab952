//! The start-up report: what was planned, beside what was measured.

use std::fmt;
use std::sync::Arc;

use super::MemoryPlan;
use super::size::Size;

/// Reads how many bytes are in use now, where the system says so: of the process or of the device.
pub type MemoryProbe = Arc<dyn Fn() -> Option<usize> + Send + Sync>;

/// Planned and loaded weights may differ by this share before it is worth a warning.
const TOLERANCE: f64 = 0.02;

/// Bytes in use, as the probe saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredMemory {
    /// Before a weight was read.
    pub before_load: Option<usize>,
    /// With the weights.
    pub after_weights: Option<usize>,
    /// With pool, row state and scratch. Where the system hands out memory on first use, little of that shows yet.
    pub after_pool: Option<usize>,
}

/// A plan after it was carried out. [`Display`](fmt::Display) prints the whole sum.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryReport {
    /// The plan.
    pub plan: MemoryPlan,
    /// Bytes that the loaded weights and tables take.
    pub loaded_weight_bytes: usize,
    /// Bytes in use.
    pub measured: MeasuredMemory,
}

impl MemoryReport {
    /// By how much of the planned bytes the loaded weights differ; positive where they are more.
    pub fn weight_error(&self) -> f64 {
        let planned = self.plan.weight_bytes.max(1) as f64;
        (self.loaded_weight_bytes as f64 - planned) / planned
    }

    /// Logs the report, and warns where the weights were planned wrongly.
    pub fn log(&self) {
        for line in self.to_string().lines() {
            tracing::info!(target: "quire::executor", "{line}");
        }
        if self.weight_error().abs() > TOLERANCE {
            tracing::warn!(
                target: "quire::executor",
                planned_bytes = self.plan.weight_bytes,
                loaded_bytes = self.loaded_weight_bytes,
                "weights take {:+.1} % of what was planned", 100.0 * self.weight_error()
            );
        }
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = &self.runner.limits;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, num_bytes: usize, note: &str| {
            writeln!(f, "  {name:<14}{:>12}  {note}", Size(num_bytes))
        };
        writeln!(f, "memory of {} ({})", self.device.backend, self.device.name)?;
        row(f, "weights", self.weight_bytes, "")?;
        let note = format!("max_num_batched_tokens={}", limits.max_num_batched_tokens);
        row(f, "scratch", self.scratch_bytes, &note)?;
        row(f, "row state", self.row_state_bytes, &format!("max_num_seqs={}", limits.max_num_seqs))?;
        row(f, "graphs", self.graph_bytes, "")?;
        let note = format!(
            "{} blocks of {} tokens, {} each: {} tokens",
            self.num_blocks,
            limits.block_size,
            Size(self.block_bytes),
            self.num_pool_tokens()
        );
        row(f, "kv cache", self.pool_bytes(), &note)?;
        row(f, "total", self.total_bytes(), &format!("of {}", Size(self.device.total_bytes)))?;
        let note = match self.num_swap_blocks {
            0 => "none: who gives way is computed again".to_owned(),
            num_blocks => format!("{num_blocks} blocks, on the host"),
        };
        row(f, "swap space", self.num_swap_blocks * self.block_bytes, &note)?;
        write!(f, "  {:.2} sequences of max_model_len={} at once", self.concurrency(), limits.max_model_len)
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |bytes: Option<usize>| bytes.map_or("unknown".to_owned(), |bytes| Size(bytes).to_string());
        let MeasuredMemory { before_load, after_weights, after_pool } = self.measured;
        writeln!(f, "{}", self.plan)?;
        writeln!(
            f,
            "  loaded weights {} ({:+.1} %)",
            Size(self.loaded_weight_bytes),
            100.0 * self.weight_error()
        )?;
        write!(
            f,
            "  in use: {} before load, {} after weights, {} after pool",
            shown(before_load),
            shown(after_weights),
            shown(after_pool)
        )
    }
}

/// Resident memory of this process; `None` where the system does not say. A [`MemoryProbe`] for host devices.
pub fn process_resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}
