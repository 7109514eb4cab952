//! Why memory cannot be planned, and what would work.

use std::fmt;

use super::size::Size;

/// What does not fit, with the numbers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A number that makes no sense whatever the memory.
    #[error("{field} is {given}, expected {expected}")]
    OutOfRange {
        /// Its name.
        field: &'static str,
        /// Its value.
        given: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Weights, scratch and row state leave no room for a pool.
    #[error(
        "weights ({}), scratch ({}) and row state ({}) leave no room for the kv cache in {}: {advice}",
        Size(*weight_bytes), Size(*scratch_bytes), Size(*row_state_bytes), Size(*budget_bytes)
    )]
    NoRoom {
        /// Bytes of the weights.
        weight_bytes: usize,
        /// Bytes of a step's scratch, graphs included.
        scratch_bytes: usize,
        /// Bytes of the row state.
        row_state_bytes: usize,
        /// Bytes that everything may take together.
        budget_bytes: usize,
        /// What would work.
        advice: MemoryAdvice,
    },
    /// A pool of a given size that holds no block.
    #[error("a kv cache of {} holds no block of {}: {advice}", Size(*num_bytes), Size(*block_bytes))]
    PoolTooSmall {
        /// Bytes of the pool.
        num_bytes: usize,
        /// Bytes of a block.
        block_bytes: usize,
        /// What would work.
        advice: MemoryAdvice,
    },
    /// The longest sequence does not fit in the pool.
    #[error(
        "max_model_len {max_model_len} needs {needed_blocks} blocks of {block_size} tokens and the pool has \
         {num_blocks}: the largest length that fits is {largest_len}; set max_model_len to that or to auto, or {advice}"
    )]
    SequenceTooLong {
        /// The length asked for.
        max_model_len: usize,
        /// Blocks that it needs.
        needed_blocks: usize,
        /// Blocks of the pool.
        num_blocks: usize,
        /// Tokens a block.
        block_size: usize,
        /// The longest that fits.
        largest_len: usize,
        /// What would work instead.
        advice: MemoryAdvice,
    },
    /// A pool of a given size, and what else is needed, are more than the device has.
    #[error(
        "a kv cache of {} beside {} of weights, scratch and row state is more than the {} of the device: {advice}",
        Size(*pool_bytes), Size(*fixed_bytes), Size(*total_bytes)
    )]
    PoolTooLarge {
        /// Bytes of the pool.
        pool_bytes: usize,
        /// Bytes of all the rest.
        fixed_bytes: usize,
        /// Bytes of the device.
        total_bytes: usize,
        /// What would work.
        advice: MemoryAdvice,
    },
    /// Others have taken part of what this process may use.
    #[error(
        "gpu_memory_utilization {share} of {} is {}, and {} are free, others have the rest: {advice}",
        Size(*total_bytes), Size(*budget_bytes), Size(*free_bytes)
    )]
    DeviceInUse {
        /// The share asked for.
        share: f64,
        /// That share in bytes.
        budget_bytes: usize,
        /// Bytes that are free.
        free_bytes: usize,
        /// Bytes of the device.
        total_bytes: usize,
        /// What would work.
        advice: MemoryAdvice,
    },
}

/// A number to change, and a value that works.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum MemoryAdvice {
    /// Share of the device's memory, in hundredths.
    GpuMemoryUtilization {
        /// The least that works.
        at_least_percent: u32,
    },
    /// Share of the device's memory, in hundredths.
    GpuMemoryUtilizationAtMost {
        /// The most that works.
        percent: u32,
    },
    /// Tokens a step.
    MaxNumBatchedTokens {
        /// The most that works.
        at_most: usize,
    },
    /// Rows a step.
    MaxNumSeqs {
        /// The most that works.
        at_most: usize,
    },
    /// Bytes of the pool, the least that works.
    KvCacheMemoryAtLeast {
        /// Bytes.
        num_bytes: usize,
    },
    /// Bytes of the pool, the most that works.
    KvCacheMemoryAtMost {
        /// Bytes.
        num_bytes: usize,
    },
    /// Blocks of the pool, the most that works.
    NumBlocksAtMost {
        /// Blocks.
        num_blocks: usize,
    },
    /// Nothing helps but a larger device, or a smaller model.
    LargerDevice {
        /// Bytes that the smallest plan needs.
        num_bytes: usize,
    },
}

impl fmt::Display for MemoryAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::GpuMemoryUtilization { at_least_percent: percent } => {
                write!(f, "set gpu_memory_utilization to at least {}.{:02}", percent / 100, percent % 100)
            }
            Self::GpuMemoryUtilizationAtMost { percent } => {
                write!(f, "set gpu_memory_utilization to at most {}.{:02}", percent / 100, percent % 100)
            }
            Self::MaxNumBatchedTokens { at_most } => {
                write!(f, "set max_num_batched_tokens to at most {at_most}")
            }
            Self::MaxNumSeqs { at_most } => write!(f, "set max_num_seqs to at most {at_most}"),
            Self::KvCacheMemoryAtLeast { num_bytes } => {
                write!(f, "set kv_cache_memory to at least {num_bytes} bytes ({})", Size(num_bytes))
            }
            Self::KvCacheMemoryAtMost { num_bytes } => {
                write!(f, "set kv_cache_memory to at most {num_bytes} bytes ({})", Size(num_bytes))
            }
            Self::NumBlocksAtMost { num_blocks } => {
                write!(f, "set num_gpu_blocks_override to at most {num_blocks}")
            }
            Self::LargerDevice { num_bytes } => {
                write!(f, "this model needs a device of at least {num_bytes} bytes ({})", Size(num_bytes))
            }
        }
    }
}
