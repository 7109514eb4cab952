//! The end of a step: results are taken over.

use quire_kvcache::StepId;

use crate::error::CommitError;
use crate::ids::SeqId;
use crate::policy::EventKind;
use crate::result::{CommitReport, SequenceResult};
use crate::scheduler::Scheduler;
use crate::sequence::{FinishReason, SeqStatus, Sequence};
use crate::state::{OpenRow, OpenStep, State};

/// Tokens that a row without drafts brings.
const MAX_TOKENS_PER_ROW: u32 = 1;

impl Scheduler {
    /// Ends the oldest open step. `results` holds one result for every row that sampled, in the order of rows; those
    /// of an earlier epoch may be left out, and are dropped if they are there.
    ///
    /// Sequences advance, full blocks enter the prefix cache, those that have ended give up their blocks at once, and
    /// blocks that were retiring with this step come free.
    ///
    /// # Errors
    /// A [`CommitError`] if the results do not belong to the step; nothing has changed then.
    pub fn commit(
        &mut self,
        step: StepId,
        results: &[SequenceResult<'_>],
    ) -> Result<CommitReport, CommitError> {
        let open = self.state.next_to_commit(step)?;
        let matched = match_results(&self.state, open, results)?;
        self.state.open.pop_front();
        let mut report = CommitReport { step, accepted: Vec::new(), finished: Vec::new(), num_dropped: 0 };
        for (row, result) in matched {
            self.commit_row(row, result, &mut report);
        }
        self.state.cache.commit(step);
        #[cfg(debug_assertions)]
        self.state.check().expect("the tables of the sequences account for all references");
        Ok(report)
    }

    fn commit_row(&mut self, row: OpenRow, result: Option<SequenceResult<'_>>, report: &mut CommitReport) {
        let State { sequences, cache, .. } = &mut self.state;
        let Some(seq) = sequences.get_mut(row.seq).filter(|seq| is_current(seq, row)) else {
            report.num_dropped += 1;
            return;
        };
        seq.num_in_flight_tokens -= row.num_tokens;
        seq.num_computed_tokens += row.num_tokens;
        let finish = result.and_then(|result| {
            let num_accepted = seq.take_over(&result);
            report.accepted.push((seq.id, num_accepted));
            seq.finish(&result)
        });
        // What a row computed that ended in an error is nothing that another should go on from.
        if cache.config().enable_prefix_caching && finish != Some(FinishReason::Error) {
            cache.hasher().extend(&mut seq.hashes, &seq.tokens);
            let num_known = seq.table.num_registered_blocks();
            cache.register(&mut seq.table, &seq.tokens, &seq.hashes, seq.num_computed_tokens);
            if seq.table.num_registered_blocks() > num_known {
                let num_tokens = seq.table.num_registered_blocks() * cache.config().block_size;
                self.event(row.seq, EventKind::Cached { num_tokens });
            }
        }
        if let Some(reason) = finish {
            report.finished.extend(self.end(row.seq, reason));
        }
    }
}

impl State {
    fn next_to_commit(&self, step: StepId) -> Result<&OpenStep, CommitError> {
        let expected = self.open.front();
        expected
            .filter(|open| open.id == step)
            .ok_or(CommitError::OutOfOrder { given: step, expected: expected.map(|open| open.id) })
    }
}

impl Sequence {
    /// Appends a result's tokens, up to the bound on output, and returns how many.
    fn take_over(&mut self, result: &SequenceResult<'_>) -> u32 {
        self.num_unread_tokens -= 1;
        let room = (self.max_output_tokens - self.num_output_tokens()) as usize;
        let accepted = &result.tokens[..result.tokens.len().min(room)];
        self.tokens.extend_from_slice(accepted);
        accepted.len() as u32
    }

    /// Whether the sequence has ended with a result just taken over: the engine's reason goes first.
    fn finish(&self, result: &SequenceResult<'_>) -> Option<FinishReason> {
        let at_bound = self.num_output_tokens() >= self.max_output_tokens;
        result.finish.or(at_bound.then_some(FinishReason::Length))
    }
}

fn is_current(seq: &Sequence, row: OpenRow) -> bool {
    seq.status == SeqStatus::Running && seq.epoch == row.epoch
}

/// Pairs rows with results, before anything is changed.
fn match_results<'a>(
    state: &State,
    open: &OpenStep,
    results: &[SequenceResult<'a>],
) -> Result<Vec<(OpenRow, Option<SequenceResult<'a>>)>, CommitError> {
    let mut left = results.iter().copied().peekable();
    let mut matched = Vec::with_capacity(open.rows.len());
    for &row in &open.rows {
        let result = left.next_if(|result| row.samples && (result.seq, result.epoch) == (row.seq, row.epoch));
        let counts = state.sequences.get(row.seq).is_some_and(|seq| is_current(seq, row));
        if counts && row.samples {
            check_tokens(row.seq, result)?;
        }
        matched.push((row, result));
    }
    match left.next() {
        Some(result) => Err(CommitError::Unexpected(result.seq)),
        None => Ok(matched),
    }
}

fn check_tokens(seq: SeqId, result: Option<SequenceResult<'_>>) -> Result<(), CommitError> {
    let result = result.ok_or(CommitError::Missing(seq))?;
    let (given, max) = (result.tokens.len(), MAX_TOKENS_PER_ROW);
    let min = usize::from(result.finish.is_none());
    if (min..=max as usize).contains(&given) {
        Ok(())
    } else {
        Err(CommitError::NumTokens { seq, given, max })
    }
}
