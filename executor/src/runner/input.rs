//! The flat input of a step: from rows to token ids, positions, slots and lengths.

use quire_kernels::{Limits, Result, SamplingKernels, ShapeKey, StepBuffers, StepCtx, StepRows, write_head};

use super::pack::{Upload, view};
use crate::row::{RowStep, RowTable};
use crate::{RowId, graphs::GraphCache};

/// A step's input on the host; reused from step to step.
#[derive(Debug, Default)]
pub(super) struct StepInput {
    token_ids: Vec<i32>,
    positions: Vec<i32>,
    slot_mapping: Vec<i32>,
    logits_idx: Vec<i32>,
    /// Lengths, also for attention's plan.
    pub(super) rows: StepRows,
    /// Inputs that lie on the device: the row, and where in the flat input its token belongs.
    from_device: Vec<(RowId, i32)>,
    /// Prompt positions whose logits are asked for: the token that stands after each, by row.
    pub(super) prompt_targets: Vec<u32>,
}

/// The shape of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepShape {
    pub(super) key: ShapeKey,
    /// Whether the step is padded to a size that is recorded.
    pub(super) recorded: bool,
}

impl StepInput {
    /// Lays the rows out one after the other. Of `logits_idx` the sampled rows come first.
    pub(super) fn build(&mut self, steps: &[RowStep], rows: &RowTable, block_size: usize) {
        self.clear();
        for step in steps {
            self.push_row(step, rows, block_size);
        }
        for (r, step) in steps.iter().enumerate() {
            if step.sample {
                self.logits_idx.push(self.rows.query_start[r + 1] - 1);
            }
        }
        for (r, step) in steps.iter().enumerate() {
            self.push_prompt_targets(step, rows, self.rows.query_start[r]);
        }
    }

    /// Pads a step that is to be recorded, and says what shape it has.
    pub(super) fn shape(&mut self, steps: &[RowStep], graphs: &GraphCache) -> StepShape {
        let is_decode = steps.iter().all(|step| step.num_tokens == 1 && step.sample);
        let padded =
            if is_decode && self.prompt_targets.is_empty() { graphs.round_up(steps.len()) } else { None };
        match padded {
            Some(num_rows) => self.padded_shape(num_rows),
            None => StepShape { key: self.key(), recorded: false },
        }
    }

    /// Pads a decode step to so many rows.
    pub(super) fn padded_shape(&mut self, num_rows: usize) -> StepShape {
        self.pad(num_rows);
        StepShape { key: self.key(), recorded: true }
    }

    fn key(&self) -> ShapeKey {
        ShapeKey {
            num_tokens: self.token_ids.len(),
            num_rows: self.rows.num_rows(),
            max_query_len: self.rows.max_query_len(),
            num_logits: self.logits_idx.len(),
        }
    }

    /// Enqueues the transfer, and the copy of what was sampled before.
    pub(super) fn send(
        &self,
        ctx: &mut StepCtx,
        buffers: &StepBuffers,
        sampling: &dyn SamplingKernels,
        last_sampled: &quire_kernels::Tensor,
    ) -> Result<()> {
        write_head(ctx, &buffers.token_ids, &self.token_ids)?;
        write_head(ctx, &buffers.positions, &self.positions)?;
        write_head(ctx, &buffers.slot_mapping, &self.slot_mapping)?;
        write_head(ctx, &buffers.query_start, &self.rows.query_start)?;
        write_head(ctx, &buffers.seq_lens, &self.rows.seq_lens)?;
        write_head(ctx, &buffers.logits_idx, &self.logits_idx)?;
        if self.from_device.is_empty() {
            return Ok(());
        }
        ctx.scope(|ctx| {
            let mut upload = Upload::default();
            let src = upload.push(self.from_device.iter().map(|&(row, _)| row.0 as i32));
            let dst = upload.push(self.from_device.iter().map(|&(_, at)| at));
            let idx = upload.send(ctx)?;
            sampling.scatter(ctx, last_sampled, &view(&idx, &src), &buffers.token_ids, &view(&idx, &dst))
        })
    }

    fn clear(&mut self) {
        let Self { token_ids, positions, slot_mapping, logits_idx, rows, from_device, prompt_targets } = self;
        [token_ids, positions, slot_mapping, logits_idx].into_iter().for_each(Vec::clear);
        rows.query_start.clear();
        rows.query_start.push(0);
        rows.seq_lens.clear();
        from_device.clear();
        prompt_targets.clear();
    }

    fn push_row(&mut self, step: &RowStep, rows: &RowTable, block_size: usize) {
        let row = rows.get(step.row).expect("a planned row is there");
        if step.from_device {
            self.from_device.push((step.row, self.token_ids.len() as i32));
        }
        for position in step.start..step.end() {
            let slot = row.blocks[position / block_size] as usize * block_size + position % block_size;
            self.token_ids.push(row.known_id(position).unwrap_or(0) as i32);
            self.positions.push(position as i32);
            self.slot_mapping.push(slot as i32);
        }
        self.rows.query_start.push(self.token_ids.len() as i32);
        self.rows.seq_lens.push(step.end() as i32);
    }

    /// Position `i` predicts token `i + 1`; the last of the prompt predicts what is sampled.
    fn push_prompt_targets(&mut self, step: &RowStep, rows: &RowTable, query_start: i32) {
        let row = rows.get(step.row).expect("a planned row is there");
        for position in row.predicting_positions(step) {
            self.logits_idx.push(query_start + (position - step.start) as i32);
            let target =
                row.known_id(position + 1).expect("the prompt is known while part of it is computed");
            self.prompt_targets.push(target);
        }
    }

    fn pad(&mut self, num_rows: usize) {
        self.token_ids.resize(num_rows, 0);
        self.positions.resize(num_rows, 0);
        self.slot_mapping.resize(num_rows, -1);
        self.logits_idx.resize(num_rows, 0);
        self.rows.seq_lens.resize(num_rows, 0);
        self.rows.query_start.extend(self.rows.query_start.len() as i32..=num_rows as i32);
    }
}

/// Which table stands at a row of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldTable {
    serial: u64,
    num_replacements: u64,
    len: usize,
}

/// The block tables as the device has them, so that only those that changed travel.
#[derive(Debug)]
pub(super) struct BlockTables {
    width: usize,
    values: Vec<i32>,
    held: Vec<Option<HeldTable>>,
}

impl BlockTables {
    pub(super) fn new(limits: &Limits) -> Self {
        let (rows, width) = (limits.max_num_seqs, limits.max_blocks_per_row());
        Self { width, values: vec![0; rows * width], held: vec![None; rows] }
    }

    /// Enqueues the transfer of the tables that changed, neighbours together.
    pub(super) fn send(
        &mut self,
        ctx: &mut StepCtx,
        buffers: &StepBuffers,
        steps: &[RowStep],
        rows: &RowTable,
    ) -> Result<()> {
        let mut start = None;
        for (r, step) in steps.iter().enumerate() {
            let changed = self.update(r, step, rows);
            match (changed, start) {
                (true, None) => start = Some(r),
                (false, Some(first)) => {
                    self.send_rows(ctx, buffers, first, r)?;
                    start = None;
                }
                _ => {}
            }
        }
        start.map_or(Ok(()), |first| self.send_rows(ctx, buffers, first, steps.len()))
    }

    /// Brings one table up to date; whether it changed.
    fn update(&mut self, r: usize, step: &RowStep, rows: &RowTable) -> bool {
        let row = rows.get(step.row).expect("a planned row is there");
        let now =
            HeldTable { serial: row.serial, num_replacements: row.num_replacements, len: row.blocks.len() };
        let kept = match self.held[r].replace(now) {
            Some(before) if before == now => return false,
            // The same table, longer by now.
            Some(before) if HeldTable { len: now.len, ..before } == now => before.len,
            _ => 0,
        };
        let table = &mut self.values[r * self.width..];
        for (value, &block) in table[kept..].iter_mut().zip(&row.blocks[kept..]) {
            *value = block as i32;
        }
        true
    }

    fn send_rows(&self, ctx: &mut StepCtx, buffers: &StepBuffers, first: usize, end: usize) -> Result<()> {
        let values = &self.values[first * self.width..end * self.width];
        ctx.write(&buffers.block_tables.rows(first, end), values)
    }
}
