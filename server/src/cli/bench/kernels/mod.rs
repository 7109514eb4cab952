//! `quire bench kernels`: single operations, through the contract that every backend keeps.

mod attention;
mod ceiling;
mod elementwise;
pub(in crate::cli) mod linear;
mod random;
mod report;
mod sampling;
pub(in crate::cli) mod shapes;
mod timer;

use std::time::Duration;

use clap::{Args, ValueEnum};
use quire_kernels::{DType, Kernels, Limits, StepCtx};

use self::ceiling::Ceilings;
use self::shapes::Shapes;
use self::timer::Timer;
use super::limits::up_to;
use crate::backend::BackendOptions;
use crate::cli::Context;
use crate::error::Result;

/// What the rotated tensors of a case take together: more than the caches of any device.
const ROTATED_BYTES: usize = 256 << 20;

/// Limits of the numbers given: beyond what any step has.
const MAX_ROWS: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;
const MAX_BLOCK: usize = 1024;
const MAX_ROUNDS: usize = 100_000;
const MAX_ROUND_MS: usize = 600_000;
const MAX_THREADS: usize = 4096;

/// Each operation is enqueued many times over inputs that no cache holds, in one captured step where the device has
/// graphs; the time is that of a round over its calls. Shares are of ceilings measured in the same run: a copy of memory,
/// and a large dense product, the same whatever the rows and the shapes. A read can be faster than a copy, so a share may come to more than 1.
#[derive(Args)]
pub(crate) struct KernelsArgs {
    /// The sizes of the layers: those of Qwen2.5 0.5b or 7b, or of a model's config.json.
    #[arg(long, value_name = "0.5b|7b|FILE", default_value = "0.5b")]
    shapes: String,
    /// Which operations; all if not given.
    #[arg(long = "op", value_name = "OP,...", value_delimiter = ',')]
    ops: Vec<OpKind>,
    /// Rows of the inputs: tokens, or sequences that decode.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 8, 32, 64, 256, 2048],
          value_parser = up_to(MAX_ROWS))]
    rows: Vec<usize>,
    /// Tokens that the caches of attention hold.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1024, 4096, 32768],
          value_parser = up_to(MAX_CONTEXT))]
    contexts: Vec<usize>,
    /// What weights are stored in: bf16, f16, q4_k, ...; half precision if not given.
    #[arg(long, value_name = "DTYPE", value_parser = dtype_in(is_weight))]
    weight_dtype: Option<DType>,
    /// What keys and values are stored in; as activations if not given.
    #[arg(long, value_name = "DTYPE", value_parser = dtype_in(DType::is_float))]
    kv_cache_dtype: Option<DType>,
    /// Tokens a block of the KV cache.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = up_to(MAX_BLOCK))]
    block_size: usize,
    /// Measured rounds, of which the median is told.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = up_to(MAX_ROUNDS))]
    rounds: usize,
    /// Milliseconds that a round aims at.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = up_to(MAX_ROUND_MS))]
    round_ms: usize,
    /// The backend, perhaps with a number: cuda:1.
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto")]
    device: String,
    /// What activations are computed in, where the backend has a choice.
    #[arg(long, value_name = "DTYPE", value_parser = dtype_in(is_activation))]
    dtype: Option<DType>,
    /// Threads of the CPU backend; by default one a core.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_THREADS))]
    threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OpKind {
    /// Every product of the model.
    Linear,
    /// Decode and prefill.
    Attention,
    /// Add and normalize.
    Norm,
    /// Gate.
    Activation,
    /// Rotate, and write to the cache.
    Rope,
    /// Greedy, drawn, filtered.
    Sampling,
}

/// What all cases need.
struct KernelBench<'a> {
    kernels: Kernels,
    args: &'a KernelsArgs,
    shapes: Shapes,
    timer: Timer,
    ceilings: Ceilings,
}

pub(super) fn run(context: &Context<'_>, args: &KernelsArgs) -> Result<()> {
    let shapes = Shapes::open(&args.shapes)?;
    let options = BackendOptions { num_threads: args.threads, dtype: args.dtype, ..Default::default() };
    let kernels = context.app.backends.build(&args.device, &options)?;
    let timer = Timer { num_rounds: args.rounds, round: Duration::from_millis(args.round_ms as u64) };
    let mut bench = KernelBench { kernels, args, shapes, timer, ceilings: Ceilings::default() };
    bench.ceilings = ceiling::measure(&bench)?;
    for &op in OpKind::value_variants().iter().filter(|op| args.ops.is_empty() || args.ops.contains(op)) {
        match op {
            OpKind::Linear => linear::run(&bench)?,
            OpKind::Attention => attention::run(&bench)?,
            OpKind::Norm => elementwise::norm(&bench)?,
            OpKind::Activation => elementwise::activation(&bench)?,
            OpKind::Rope => elementwise::rope(&bench)?,
            OpKind::Sampling => sampling::run(&bench)?,
        }
    }
    Ok(())
}

impl KernelBench<'_> {
    fn activation_dtype(&self) -> DType {
        self.kernels.device().info().activation_dtype
    }

    fn weight_dtype(&self) -> DType {
        let default = if self.activation_dtype() == DType::F16 { DType::F16 } else { DType::BF16 };
        self.args.weight_dtype.unwrap_or(default)
    }

    fn kv_dtype(&self) -> DType {
        self.args.kv_cache_dtype.unwrap_or(self.activation_dtype())
    }

    /// The most that one case may take for its tensors.
    fn memory_bytes(&self) -> usize {
        self.kernels.device().free_bytes() / 3
    }

    /// A context for steps of these sizes, with room for the parts and for `extra_bytes`.
    fn ctx(&self, num_tokens: usize, num_rows: usize, extra_bytes: usize) -> quire_kernels::Result<StepCtx> {
        let limits = Limits {
            max_num_batched_tokens: num_tokens,
            max_num_seqs: num_rows,
            max_model_len: self.max_context(),
            block_size: self.args.block_size,
        };
        self.kernels.step_ctx(self.kernels.scratch_bytes(&limits) + extra_bytes)
    }

    fn max_context(&self) -> usize {
        self.args.contexts.iter().copied().chain([attention::PROMPT, self.args.block_size]).max().unwrap_or(1)
    }
}

/// How many tensors of this size are gone through in turn.
fn num_rotated(num_bytes: usize) -> usize {
    (ROTATED_BYTES / num_bytes.max(1)).clamp(1, 64)
}

/// One of the dtypes that will do.
pub(in crate::cli) fn dtype_in(
    will_do: impl Fn(DType) -> bool + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<DType, String> + Clone + Send + Sync + 'static {
    move |text| {
        let mut known = DType::ALL.into_iter().filter(|&dtype| will_do(dtype));
        known.clone().find(|dtype| dtype.name() == text).ok_or_else(|| {
            let first = known.next().map_or("none", DType::name).to_owned();
            let names = known.fold(first, |names, dtype| format!("{names}, {dtype}"));
            format!("expected one of {names}")
        })
    }
}

/// What matrices are stored in, without scales beside them.
fn is_weight(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_quantized()
}

/// What backends compute in.
fn is_activation(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dtypes_that_will_do_are_offered() {
        let error = dtype_in(is_weight)("i64").unwrap_err();
        assert!(error.contains("bf16") && error.contains("q4_k"), "{error}");
        for name in ["i64", "i32", "u8", "u32"] {
            assert!(!error.split([' ', ',']).any(|word| word == name), "{name}: {error}");
        }
        assert_eq!(dtype_in(is_weight)("q4_k"), Ok(DType::Q4K));
        assert!(dtype_in(DType::is_float)("q4_k").is_err());
        assert_eq!(dtype_in(is_activation)("x"), Err("expected one of f32, f16, bf16".to_owned()));
    }
}
