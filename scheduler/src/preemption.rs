//! Swap or recompute.

use serde::{Deserialize, Serialize};

use crate::policy::PreemptionMode;
use crate::sequence::Sequence;
use crate::state::State;

/// How sequences give way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Preemption {
    /// Whichever is quicker by [`Rates`]; recompute as long as they are not known.
    #[default]
    Auto,
    /// Blocks are given up, always.
    Recompute,
    /// Blocks go to the host as long as there is room.
    Swap,
}

/// What has been measured of the device, for [`Preemption::Auto`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Bytes a second between device and host, one way at a time.
    pub swap_bytes_per_s: f64,
    /// Tokens of a prompt computed in a second.
    pub prefill_tokens_per_s: f64,
}

/// What either way costs, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PreemptionCosts {
    /// To move the blocks to the host and back.
    pub swap_s: f64,
    /// To compute the tokens again.
    pub recompute_s: f64,
}

impl Rates {
    /// What it costs that `num_tokens` computed tokens in `num_blocks` blocks of `block_bytes` give way.
    pub fn costs(&self, num_tokens: u32, num_blocks: u32, block_bytes: u64) -> PreemptionCosts {
        let num_bytes = 2.0 * f64::from(num_blocks) * block_bytes as f64;
        PreemptionCosts {
            swap_s: num_bytes / self.swap_bytes_per_s,
            recompute_s: f64::from(num_tokens) / self.prefill_tokens_per_s,
        }
    }
}

/// One that gave way so often is spared: it comes back when all can run to their ends.
pub(crate) const MAX_PREEMPTIONS: u32 = 2;

impl State {
    /// The way that a running sequence should give way.
    pub(crate) fn preemption_mode(&self, seq: &Sequence) -> PreemptionMode {
        let num_tokens = seq.num_computed_tokens;
        let has_space = self.cache.swap_usage().total > 0;
        match (self.config.preemption, self.rates) {
            (Preemption::Swap, _) if num_tokens > 0 => PreemptionMode::Swap,
            (Preemption::Auto, Some(rates)) if has_space && num_tokens > 0 => {
                let num_blocks = self.cache.capacity().blocks_for(num_tokens);
                let block_bytes = self.cache.config().groups.iter().map(|group| group.block_bytes).sum();
                let costs = rates.costs(num_tokens, num_blocks, block_bytes);
                if costs.swap_s < costs.recompute_s {
                    PreemptionMode::Swap
                } else {
                    PreemptionMode::Recompute
                }
            }
            _ => PreemptionMode::Recompute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_bytes_both_ways_against_tokens() {
        let rates = Rates { swap_bytes_per_s: 1e9, prefill_tokens_per_s: 1e4 };
        let costs = rates.costs(1000, 63, 1 << 20);
        assert!((costs.recompute_s - 0.1).abs() < 1e-9);
        assert!((costs.swap_s - 0.132).abs() < 1e-3);
    }
}
