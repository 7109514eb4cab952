//! Sampling from the logits of a batch.

use quire_kernels::{DType, Kernels, Result as KernelResult, SamplingRows, SamplingState, StepCtx, Tensor};

use super::report::Case;
use super::timer::{Timing, Work};
use super::{KernelBench, random};
use crate::error::Result;

/// The most rows that are sampled at once.
const MAX_ROWS: usize = 512;

/// What logits may take: they are used up, so each call of a round has its own.
const LOGITS_BYTES: usize = 2 << 30;

/// Where logits may begin.
const BATCH_ALIGN: usize = 256;

/// How a row is sampled.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    temperature: f32,
    top_k: i32,
    top_p: f32,
}

const WAYS: [Way; 4] = [
    Way { name: "greedy", temperature: 0.0, top_k: 0, top_p: 1.0 },
    Way { name: "drawn", temperature: 0.8, top_k: 0, top_p: 1.0 },
    Way { name: "top-p 0.95", temperature: 0.8, top_k: 0, top_p: 0.95 },
    Way { name: "top-k 50, top-p 0.95", temperature: 0.8, top_k: 50, top_p: 0.95 },
];

pub(super) fn run(bench: &KernelBench<'_>) -> Result<()> {
    let vocab_size = bench.shapes.vocab_size;
    for way in WAYS {
        for &rows in bench.args.rows.iter().filter(|&&rows| rows <= MAX_ROWS) {
            let case = Case {
                op: "sampling",
                case: way.name.to_owned(),
                dtype: DType::F32.to_string(),
                rows,
                bytes: rows * vocab_size * DType::F32.block_bytes(),
                ..Case::default()
            };
            // The original on both sides, and a copy at least.
            bench.measure(&case, 3 * case.bytes, || time(bench, way, rows))?;
        }
    }
    Ok(())
}

fn time(bench: &KernelBench<'_>, way: Way, rows: usize) -> KernelResult<Timing> {
    let (kernels, vocab_size) = (&bench.kernels, bench.shapes.vocab_size);
    let mut original = random::bytes(DType::F32, rows * vocab_size, 3.0);
    original.resize(original.len().next_multiple_of(BATCH_ALIGN), 0);
    let batch_bytes = original.len();
    // The first is the original.
    let count = (LOGITS_BYTES.min(bench.memory_bytes()) / batch_bytes).clamp(2, 65);
    let batches = random::outputs(kernels, 1, DType::U8, &[count, batch_bytes])?.remove(0);
    let mut ctx = bench.ctx(rows, rows, 0)?;
    ctx.write(&batches.rows(0, 1), &original)?;
    let slots: Vec<i32> = (0..rows as i32).collect();
    let work = Sample {
        kernels,
        state: state(kernels, &mut ctx, way, rows, vocab_size)?,
        slots: kernels.upload(DType::I32, &[rows], &slots)?,
        positions: kernels.upload(DType::I32, &[rows], &slots)?,
        out: random::outputs(kernels, 1, DType::I32, &[rows])?.remove(0),
        logits: (1..count)
            .map(|i| Tensor::new(batches.buffer().clone(), i * batch_bytes, DType::F32, &[rows, vocab_size]))
            .collect(),
        batches,
    };
    bench.timer.time(&mut ctx, &work)
}

fn state(
    kernels: &Kernels,
    ctx: &mut StepCtx,
    way: Way,
    rows: usize,
    vocab_size: usize,
) -> KernelResult<SamplingState> {
    let state = SamplingState::new(kernels.device().as_ref(), rows, vocab_size)?;
    ctx.write(&state.temperature, &vec![way.temperature; rows])?;
    ctx.write(&state.top_k, &vec![way.top_k; rows])?;
    ctx.write(&state.top_p, &vec![way.top_p; rows])?;
    ctx.write(&state.repetition_penalty, &vec![1.0f32; rows])?;
    let keys: Vec<u32> = (0..rows as u32).flat_map(|row| [row, 0, 0]).collect();
    ctx.write(&state.keys, &keys)?;
    Ok(state)
}

struct Sample<'a> {
    kernels: &'a Kernels,
    state: SamplingState,
    slots: Tensor,
    positions: Tensor,
    /// `[num_batches, batch_bytes]` U8, the original first.
    batches: Tensor,
    /// The others, as logits.
    logits: Vec<Tensor>,
    out: Tensor,
}

impl Work for Sample<'_> {
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> KernelResult<()> {
        let logits = &self.logits[turn % self.logits.len()];
        let rows = SamplingRows { logits, slots: &self.slots, positions: &self.positions };
        self.kernels.sampling().sample(ctx, &self.state, &rows, &self.out)
    }

    fn restore(&self, ctx: &mut StepCtx) -> KernelResult<()> {
        let pairs: Vec<(u32, u32)> = (1..=self.logits.len() as u32).map(|to| (0, to)).collect();
        ctx.queue().copy_rows(&self.batches, &pairs)
    }

    fn max_calls(&self) -> usize {
        self.logits.len()
    }
}
