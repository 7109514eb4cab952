//! Ready settings for two kinds of use.

use std::fmt;

use serde::Serialize;

use super::{Memory, Settings, Tuned};

/// Settings with a name.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// What it is for, in a line.
    pub purpose: String,
    /// The settings.
    pub settings: Settings,
}

/// Sequences of full length that a long-context pool holds at least.
const LONG_SEQUENCES: u32 = 4;

/// The presets that follow from a search: `short-chat`, which is its best, and `long-context`, with as much memory for
/// keys and values as there is, and lengths of which the pool holds four.
pub fn presets(tuned: &Tuned, memory: &Memory) -> [Preset; 2] {
    let best = tuned.best.settings;
    let roomy = Settings {
        max_num_seqs: best.max_num_seqs.min(64),
        max_num_batched_tokens: best.max_num_batched_tokens.max(8192),
        block_size: best.block_size.max(32),
        memory_percent: best.memory_percent.max(95),
        ..best
    };
    let pool = u64::from(memory.num_blocks(&roomy)) * u64::from(roomy.block_size);
    let max_model_len = u32::try_from(pool / u64::from(LONG_SEQUENCES)).unwrap_or(u32::MAX);
    let max_model_len = (max_model_len / 1024 * 1024).clamp(best.max_model_len, 1 << 20);
    [
        Preset {
            name: "short-chat",
            purpose: format!("{:.1} requests/s of the trace within the goal", tuned.best.requests_per_s),
            settings: best,
        },
        Preset {
            name: "long-context",
            purpose: format!("{LONG_SEQUENCES} sequences of {max_model_len} tokens at once"),
            settings: Settings { max_model_len, ..roomy },
        },
    ]
}

impl fmt::Display for Preset {
    /// The flags of `quire serve`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { max_num_seqs, max_num_batched_tokens, block_size, max_model_len, memory_percent } =
            self.settings;
        write!(
            f,
            "--max-num-seqs {max_num_seqs} --max-num-batched-tokens {max_num_batched_tokens} --block-size {block_size} \
             --max-model-len {max_model_len} --gpu-memory-utilization {:.2}",
            f64::from(memory_percent) / 100.0
        )
    }
}
