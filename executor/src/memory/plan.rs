//! The sum of what a model and its cache take.

use quire_kernels::{DType, DeviceInfo, Kernels, KvGroupSpec, Limits};
use quire_kvcache::Capacity;
use quire_models::{Architecture, ModelConfig};

use super::{MemoryAdvice, MemoryError};
use crate::{ExecutorError, KvPool, LogprobsMode, RunnerConfig};

/// Tokens and rows that advice does not go below.
const LEAST_TOKENS: usize = 16;

/// What a few thousand allocations leave between each other on a device that aligns them to 512 bytes.
const ALIGNMENT_BYTES: usize = 4 << 20;

/// How the size of the block pool is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolSize {
    /// What is left of this share of the device's memory, in (0, 1].
    Utilization(f64),
    /// This many bytes.
    Bytes(usize),
    /// This many blocks, be it less than the longest sequence needs.
    Blocks(usize),
    /// What `max_num_seqs` sequences of `max_model_len` need, at most so many bytes and half of the device's memory.
    Sequences {
        /// The limit.
        max_bytes: usize,
    },
}

/// The longest sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxModelLen {
    /// This many tokens; refused where the pool is smaller.
    Exactly(usize),
    /// As many as the pool holds, at most these.
    FitUpTo(usize),
}

/// What is known of a model before it is loaded.
#[derive(Clone, Copy)]
pub struct ModelSizes<'a> {
    /// Sums up activations, and names the KV groups.
    pub architecture: &'a dyn Architecture,
    /// Its configuration.
    pub config: &'a ModelConfig,
    /// Bytes of the weights, as [`Checkpoint::check`](quire_models::Checkpoint::check) sums them.
    pub weight_bytes: usize,
}

/// What memory is planned for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRequest {
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Most rows in a step.
    pub max_num_seqs: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Most tokens of a sequence.
    pub max_model_len: MaxModelLen,
    /// Size of the pool.
    pub pool: PoolSize,
    /// Memory of the host for blocks that are swapped out; what does not fill a block is left.
    pub swap_bytes: usize,
    /// Type of cached keys and values.
    pub kv_dtype: DType,
    /// Most log-probabilities that may be asked for beside a token's own.
    pub max_logprobs: u32,
    /// What they are of.
    pub logprobs_mode: LogprobsMode,
    /// Never record steps.
    pub enforce_eager: bool,
    /// Bytes set aside for recorded steps; `None` sets nothing aside and does not limit them.
    pub graph_bytes: Option<usize>,
}

/// The memory of one device, before anything is allocated. All that a worker is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// The device.
    pub device: DeviceInfo,
    /// The limits in force; `max_model_len` is the fitted one.
    pub runner: RunnerConfig,
    /// The groups of layers that share a block table.
    pub kv_groups: Vec<KvGroupSpec>,
    /// Weights, and the tables that the model makes for itself.
    pub weight_bytes: usize,
    /// Scratch of a step: activations, logits, the kernels' own.
    pub scratch_bytes: usize,
    /// Row state and step metadata.
    pub row_state_bytes: usize,
    /// Set aside for recorded steps.
    pub graph_bytes: usize,
    /// A block over all layers.
    pub block_bytes: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Blocks of the swap space, on the host.
    pub num_swap_blocks: usize,
}

impl MemoryPlan {
    /// Plans, or says which number to change.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Memory`]; what attention does not support.
    pub fn new(
        kernels: &Kernels,
        model: ModelSizes<'_>,
        request: &MemoryRequest,
    ) -> Result<Self, ExecutorError> {
        check(request)?;
        let kv_groups = model.architecture.kv_groups(model.config, request.kv_dtype);
        let block_bytes = KvPool::block_bytes(kernels.attention(), &kv_groups, request.block_size)?;
        let num_plans = KvPool::num_plans(kernels.attention(), &kv_groups, request.block_size)?;
        let planner = Planner { kernels, model, request, block_bytes, num_plans };
        let mut plan = planner.fixed(request.limits(), kv_groups);
        plan.num_blocks = planner.num_blocks(&plan)?;
        planner.fit_length(&mut plan)?;
        Ok(plan)
    }

    /// The pool.
    pub fn pool_bytes(&self) -> usize {
        self.num_blocks * self.block_bytes
    }

    /// All but the pool.
    pub fn fixed_bytes(&self) -> usize {
        self.weight_bytes + self.scratch_bytes + self.row_state_bytes + self.graph_bytes
    }

    /// Everything.
    pub fn total_bytes(&self) -> usize {
        self.fixed_bytes() + self.pool_bytes()
    }

    /// What is taken from the device at once: everything but recorded steps, which the device keeps for itself, with
    /// room for the gaps between allocations.
    pub fn reserved_bytes(&self) -> usize {
        self.total_bytes() - self.graph_bytes + ALIGNMENT_BYTES
    }

    /// Tokens that the pool holds.
    pub fn num_pool_tokens(&self) -> usize {
        self.num_blocks * self.runner.limits.block_size
    }

    /// How many sequences of `max_model_len` fit at once.
    pub fn concurrency(&self) -> f64 {
        let Limits { block_size, max_model_len, .. } = self.runner.limits;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let capacity = Capacity {
            num_blocks: number(self.num_blocks),
            block_size: number(block_size),
            watermark_blocks: 0,
            pinnable_blocks: 0,
        };
        capacity.concurrency_at(number(max_model_len))
    }
}

impl MemoryRequest {
    fn limits(&self) -> Limits {
        let (MaxModelLen::Exactly(max_model_len) | MaxModelLen::FitUpTo(max_model_len)) = self.max_model_len;
        Limits {
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_seqs: self.max_num_seqs,
            max_model_len,
            block_size: self.block_size,
        }
    }
}

fn check(request: &MemoryRequest) -> Result<(), MemoryError> {
    let limits = request.limits();
    for (field, given) in [
        ("max_num_batched_tokens", limits.max_num_batched_tokens),
        ("max_num_seqs", limits.max_num_seqs),
        ("max_model_len", limits.max_model_len),
        ("block_size", limits.block_size),
    ] {
        // Positions and slots are 32-bit numbers on the device.
        if given == 0 || i32::try_from(given).is_err() {
            return Err(out_of_range(field, given, "from 1 to 2147483647"));
        }
    }
    match request.pool {
        PoolSize::Utilization(share) if !(share > 0.0 && share <= 1.0) => {
            Err(out_of_range("gpu_memory_utilization", share, "more than 0 and at most 1"))
        }
        PoolSize::Blocks(0) => Err(out_of_range("num_gpu_blocks_override", 0, "at least 1")),
        _ => Ok(()),
    }
}

fn out_of_range(field: &'static str, given: impl ToString, expected: &'static str) -> MemoryError {
    MemoryError::OutOfRange { field, given: given.to_string(), expected }
}

/// What the steps of planning have in common.
struct Planner<'a> {
    kernels: &'a Kernels,
    model: ModelSizes<'a>,
    request: &'a MemoryRequest,
    block_bytes: usize,
    /// Plans of attention that a step holds.
    num_plans: usize,
}

impl Planner<'_> {
    /// The plan without a pool.
    fn fixed(&self, limits: Limits, kv_groups: Vec<KvGroupSpec>) -> MemoryPlan {
        let Self { kernels, model, request, block_bytes, num_plans } = *self;
        let mut runner = RunnerConfig::new(limits);
        runner.max_logprobs = request.max_logprobs;
        runner.logprobs_mode = request.logprobs_mode;
        runner.enforce_eager = request.enforce_eager;
        runner.graph_bytes = request.graph_bytes.unwrap_or(usize::MAX);
        let vocab_size = model.config.vocab_size;
        let scratch_bytes = kernels.scratch_bytes(&limits)
            + num_plans.saturating_sub(1) * kernels.attention().scratch_bytes(&limits)
            + model.architecture.scratch_bytes(model.config, kernels, &limits)
            + runner.scratch_bytes(vocab_size);
        MemoryPlan {
            device: kernels.device().info().clone(),
            row_state_bytes: runner.row_state_bytes(vocab_size),
            runner,
            kv_groups,
            weight_bytes: model.weight_bytes + model.architecture.table_bytes(model.config, &limits),
            scratch_bytes,
            graph_bytes: request.graph_bytes.unwrap_or(0),
            block_bytes,
            num_blocks: 0,
            num_swap_blocks: (request.swap_bytes / block_bytes).min(i32::MAX as usize),
        }
    }

    fn num_blocks(&self, plan: &MemoryPlan) -> Result<usize, MemoryError> {
        let (fixed, total) = (plan.fixed_bytes(), plan.device.total_bytes);
        let limits = &plan.runner.limits;
        let num_blocks = match self.request.pool {
            PoolSize::Utilization(share) => {
                let budget = (total as f64 * share) as usize;
                self.check_free(share, budget)?;
                budget.saturating_sub(fixed) / self.block_bytes
            }
            PoolSize::Bytes(num_bytes) => num_bytes / self.block_bytes,
            PoolSize::Blocks(num_blocks) => num_blocks,
            PoolSize::Sequences { max_bytes } => {
                let wanted = limits.max_num_seqs.saturating_mul(limits.max_blocks_per_row());
                wanted.min(max_bytes.min(total / 2).min(total.saturating_sub(fixed)) / self.block_bytes)
            }
        };
        if num_blocks == 0 {
            return Err(self.no_room(plan));
        }
        // Slots are 32-bit numbers on the device.
        let num_blocks = num_blocks.min(i32::MAX as usize / limits.block_size);
        match num_blocks.checked_mul(self.block_bytes).and_then(|pool| pool.checked_add(fixed)) {
            Some(all) if all <= total => Ok(num_blocks),
            _ => Err(self.pool_too_large(plan, num_blocks)),
        }
    }

    /// A share of a device is only there where nobody else has it.
    fn check_free(&self, share: f64, budget_bytes: usize) -> Result<(), MemoryError> {
        let device = self.kernels.device();
        let (free_bytes, total_bytes) = (device.free_bytes(), device.info().total_bytes);
        if budget_bytes <= free_bytes {
            return Ok(());
        }
        let percent = (100.0 * free_bytes as f64 / total_bytes as f64) as u32;
        let advice = MemoryAdvice::GpuMemoryUtilizationAtMost { percent };
        Err(MemoryError::DeviceInUse { share, budget_bytes, free_bytes, total_bytes, advice })
    }

    /// Checks that the longest sequence fits, or makes it fit.
    fn fit_length(&self, plan: &mut MemoryPlan) -> Result<(), MemoryError> {
        let limits = plan.runner.limits;
        let largest_len = plan.num_pool_tokens();
        match self.request.max_model_len {
            MaxModelLen::FitUpTo(_) => {
                let limits = Limits { max_model_len: limits.max_model_len.min(largest_len), ..limits };
                let num_blocks = plan.num_blocks;
                *plan = self.fixed(limits, std::mem::take(&mut plan.kv_groups));
                plan.num_blocks = num_blocks;
                Ok(())
            }
            MaxModelLen::Exactly(_) if matches!(self.request.pool, PoolSize::Blocks(_)) => Ok(()),
            MaxModelLen::Exactly(max_model_len) if max_model_len > largest_len => {
                let needed_blocks = limits.max_blocks_per_row();
                Err(MemoryError::SequenceTooLong {
                    max_model_len,
                    needed_blocks,
                    num_blocks: plan.num_blocks,
                    block_size: limits.block_size,
                    largest_len,
                    advice: self.advice(plan, needed_blocks),
                })
            }
            MaxModelLen::Exactly(_) => Ok(()),
        }
    }

    fn no_room(&self, plan: &MemoryPlan) -> MemoryError {
        let total = plan.device.total_bytes;
        // What works must hold the longest sequence too, where its length is not for the plan to choose.
        let num_blocks = match self.request.max_model_len {
            MaxModelLen::Exactly(_) => plan.runner.limits.max_blocks_per_row(),
            MaxModelLen::FitUpTo(_) => 1,
        };
        if let PoolSize::Bytes(num_bytes) = self.request.pool {
            let advice = self.advice(plan, num_blocks);
            return MemoryError::PoolTooSmall { num_bytes, block_bytes: self.block_bytes, advice };
        }
        let budget_bytes = match self.request.pool {
            PoolSize::Utilization(share) => (total as f64 * share) as usize,
            _ => total,
        };
        MemoryError::NoRoom {
            weight_bytes: plan.weight_bytes,
            scratch_bytes: plan.scratch_bytes + plan.graph_bytes,
            row_state_bytes: plan.row_state_bytes,
            budget_bytes,
            advice: self.advice(plan, num_blocks),
        }
    }

    fn pool_too_large(&self, plan: &MemoryPlan, num_blocks: usize) -> MemoryError {
        let (fixed_bytes, total_bytes) = (plan.fixed_bytes(), plan.device.total_bytes);
        let room = total_bytes.saturating_sub(fixed_bytes) / self.block_bytes;
        let advice = match self.request.pool {
            _ if room == 0 => self.advice(plan, 1),
            PoolSize::Blocks(_) => MemoryAdvice::NumBlocksAtMost { num_blocks: room },
            _ => MemoryAdvice::KvCacheMemoryAtMost { num_bytes: room * self.block_bytes },
        };
        let pool_bytes = num_blocks.saturating_mul(self.block_bytes);
        MemoryError::PoolTooLarge { pool_bytes, fixed_bytes, total_bytes, advice }
    }

    /// What to change so that `num_blocks` blocks fit.
    fn advice(&self, plan: &MemoryPlan, num_blocks: usize) -> MemoryAdvice {
        let total = plan.device.total_bytes;
        let pool_bytes = num_blocks.saturating_mul(self.block_bytes);
        let fits = |fixed: usize| fixed.saturating_add(pool_bytes) <= total;
        if fits(plan.fixed_bytes()) {
            return match self.request.pool {
                PoolSize::Utilization(_) => {
                    let share = (plan.fixed_bytes() + pool_bytes) as f64 / total as f64;
                    MemoryAdvice::GpuMemoryUtilization { at_least_percent: (share * 100.0).ceil() as u32 }
                }
                _ => MemoryAdvice::KvCacheMemoryAtLeast { num_bytes: pool_bytes },
            };
        }
        let limits = plan.runner.limits;
        let fixed = |limits| self.fixed(limits, Vec::new()).fixed_bytes();
        let tokens = |n| Limits { max_num_batched_tokens: n, ..limits };
        let most = limits.max_num_batched_tokens;
        let least = LEAST_TOKENS.min(most);
        let most_tokens = largest(limits.max_num_batched_tokens, |n| fits(fixed(tokens(n))));
        if let Some(at_most) = most_tokens.filter(|&n| n >= LEAST_TOKENS) {
            return MemoryAdvice::MaxNumBatchedTokens { at_most };
        }
        // Where the tokens of a step follow the number of rows, they become fewer with it.
        let as_it_is = largest(limits.max_num_seqs, |n| fits(fixed(Limits { max_num_seqs: n, ..limits })));
        let following = |n: usize| Limits { max_num_seqs: n, ..tokens(n.clamp(least, most)) };
        let with_fewer_tokens = || largest(limits.max_num_seqs, |n| fits(fixed(following(n))));
        match as_it_is.or_else(with_fewer_tokens) {
            Some(at_most) => MemoryAdvice::MaxNumSeqs { at_most },
            None => MemoryAdvice::LargerDevice { num_bytes: fixed(following(1)).saturating_add(pool_bytes) },
        }
    }
}

/// The largest number from 1 to `max` for which `fits` holds, which does so up to some number.
fn largest(max: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    (low > 0).then_some(low)
}
