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

/// Sequences of full length that a long-context pool holds, if the longest request leaves room for so many.
const LONG_SEQUENCES: u64 = 4;
/// Long lengths are rounded down to multiples of this, and are no longer than that.
const ROUND: u64 = 1024;
const LONGEST: u64 = 1 << 20;

/// The presets that follow from a search: `short-chat`, which is its best, and `long-context`, with as much memory for
/// keys and values as there is, and the length of which the pool holds four; fewer where the trace has longer requests.
/// None where the search has found nothing that works.
pub fn presets(tuned: &Tuned, memory: &Memory) -> Vec<Preset> {
    if !tuned.is_reached() {
        return Vec::new();
    }
    let short = Preset {
        name: "short-chat",
        purpose: format!("{:.1} requests/s of the trace within the goal", tuned.best.requests_per_s),
        settings: tuned.best.settings,
    };
    [Some(short), long_context(tuned.best.settings, memory)].into_iter().flatten().collect()
}

fn long_context(best: Settings, memory: &Memory) -> Option<Preset> {
    let roomy = Settings {
        max_num_seqs: best.max_num_seqs.min(64),
        max_num_batched_tokens: best.max_num_batched_tokens.max(8192),
        block_size: best.block_size.max(32),
        memory_percent: best.memory_percent.max(95),
        ..best
    };
    let block_size = u64::from(roomy.block_size);
    let pool = u64::from(memory.num_blocks(&roomy)) * block_size;
    let whole_blocks = pool / block_size / LONG_SEQUENCES * block_size;
    let length = if whole_blocks < ROUND { whole_blocks } else { whole_blocks / ROUND * ROUND };
    let length = length.min(LONGEST).max(best.max_model_len.into());
    let num_seqs = pool / length.div_ceil(block_size).max(1) / block_size;
    let max_model_len = u32::try_from(length).ok().filter(|_| num_seqs > 0)?;
    let plural = if num_seqs == 1 { "" } else { "s" };
    Some(Preset {
        name: "long-context",
        purpose: format!("{num_seqs} sequence{plural} of {max_model_len} tokens at once"),
        settings: Settings { max_model_len, ..roomy },
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Choice, Outcome};

    fn tuned(max_model_len: u32, requests_per_s: f64) -> Tuned {
        let settings = Settings {
            max_num_seqs: 128,
            max_num_batched_tokens: 2048,
            block_size: 16,
            max_model_len,
            memory_percent: 90,
        };
        let best = Choice {
            settings,
            outcome: Outcome::Serves,
            num_blocks: 1,
            requests_per_s,
            limit: None,
            output_tokens_per_s: 1.0,
            ttft_p99_ms: 1.0,
            tpot_p99_ms: 1.0,
            num_preemptions: 0,
            waste: 0.0,
        };
        Tuned { best, alternatives: Vec::new(), num_runs: 1 }
    }

    /// Length and purpose for a longest request and a pool of so many tokens.
    #[track_caller]
    fn check(longest: u32, kv_tokens: u64, expected: Option<(u32, &str)>) {
        let presets = presets(&tuned(longest, 1.0), &Memory::of_pool(kv_tokens));
        let long = presets.get(1).map(|preset| (preset.settings.max_model_len, &*preset.purpose));
        assert_eq!(long, expected);
    }

    #[test]
    fn the_long_one_holds_four_or_as_many_of_the_longest_request_as_fit() {
        check(100, 20_000, Some((4096, "4 sequences of 4096 tokens at once")));
        check(100, 2000, Some((480, "4 sequences of 480 tokens at once")));
        check(700, 2000, Some((700, "2 sequences of 700 tokens at once")));
        check(1500, 2000, Some((1500, "1 sequence of 1500 tokens at once")));
        check(2_000_000, 4_000_000, Some((2_000_000, "2 sequences of 2000000 tokens at once")));
        check(100, u64::MAX, Some((1 << 20, "131071 sequences of 1048576 tokens at once")));
        check(100, 64, None);
    }

    #[test]
    fn nothing_is_recommended_where_nothing_works() {
        assert_eq!(presets(&tuned(100, 0.0), &Memory::of_pool(20_000)), []);
    }
}
