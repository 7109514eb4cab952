//! How many blocks settings leave room for.

use serde::Serialize;

use super::Settings;

/// The memory of a device and what a model takes of it, in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Memory {
    /// The device's memory.
    pub device_bytes: u64,
    /// The weights, and whatever else does not depend on settings.
    pub model_bytes: u64,
    /// Scratch for each token of a step.
    pub step_token_bytes: u64,
    /// Keys and values of a token.
    pub kv_token_bytes: u64,
}

impl Default for Memory {
    /// Qwen2.5-7B in bf16 on an H200 of 139.8 GiB: 15.2 GB of weights, 56 KiB of keys and values a token, and 0.5 MiB of
    /// scratch for a token of a step.
    fn default() -> Self {
        Self {
            device_bytes: 150_109_000_000,
            model_bytes: 15_231_000_000,
            step_token_bytes: 512 << 10,
            kv_token_bytes: 56 << 10,
        }
    }
}

impl Memory {
    /// A pool of so many tokens whatever the settings.
    pub fn of_pool(kv_tokens: u64) -> Self {
        Self { device_bytes: kv_tokens, model_bytes: 0, step_token_bytes: 0, kv_token_bytes: 1 }
    }

    /// Whether the pool depends on nothing.
    fn is_pool(&self) -> bool {
        self.kv_token_bytes == 1 && self.model_bytes == 0 && self.step_token_bytes == 0
    }

    /// Blocks that are left beside weights and scratch; 0 if nothing is.
    pub fn num_blocks(&self, settings: &Settings) -> u32 {
        let percent = if self.is_pool() { 100 } else { u64::from(settings.memory_percent.min(100)) };
        let usable = u128::from(self.device_bytes) * u128::from(percent) / 100;
        let scratch = u128::from(self.step_token_bytes) * u128::from(settings.max_num_batched_tokens);
        let left = usable.saturating_sub(scratch).saturating_sub(self.model_bytes.into());
        let block_bytes = u128::from(self.kv_token_bytes.max(1)) * u128::from(settings.block_size.max(1));
        u32::try_from(left / block_bytes).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        max_num_seqs: 1,
        max_num_batched_tokens: 100,
        block_size: 16,
        max_model_len: 64,
        memory_percent: 50,
    };

    #[test]
    fn what_is_left_of_the_share_is_the_pool() {
        let memory =
            Memory { device_bytes: 10_000, model_bytes: 1000, step_token_bytes: 8, kv_token_bytes: 10 };
        assert_eq!(memory.num_blocks(&SETTINGS), (5000 - 1000 - 800) / 160);
        assert_eq!(Memory { model_bytes: 9000, ..memory }.num_blocks(&SETTINGS), 0);
        assert_eq!(Memory::of_pool(1600).num_blocks(&SETTINGS), 100);
    }
}
