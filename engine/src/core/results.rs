//! From the executor's output to the scheduler's results. On the way, tokens become text and stop conditions are
//! looked at.

use quire_executor::{RowFault, RowOutput, StepOutput, Ticket};
use quire_scheduler::{
    Epoch, FinishReason, Scheduler, SeqId, SequenceResult, StepId, StepPlan, Time, TransferId,
};

use super::active::ActiveRequest;
use super::gate::GatedRow;
use super::requests::Requests;
use crate::frontend::guarded;
use crate::text::TextDecoder;
use crate::{Error, Result};

/// A step that was submitted and not collected.
pub(super) struct OpenStep {
    pub(super) step: StepId,
    pub(super) ticket: Ticket,
    pub(super) rows: Vec<OpenRow>,
    /// Those whose choice waits for masks that have not been made.
    pub(super) gated: Vec<GatedRow>,
}

/// What must be remembered of a row to understand its results.
pub(super) struct OpenRow {
    seq: SeqId,
    epoch: Epoch,
    start: u32,
    samples: bool,
}

impl OpenStep {
    pub(super) fn new(plan: &StepPlan, ticket: Ticket, gated: Vec<GatedRow>) -> Self {
        let row = |row: &quire_scheduler::PlannedRow| OpenRow {
            seq: row.seq,
            epoch: row.epoch,
            start: row.start,
            samples: row.samples,
        };
        Self { step: plan.step, ticket, rows: plan.rows.iter().map(row).collect(), gated }
    }
}

/// The rows of a step, still to be matched with its output.
pub(super) struct CollectedStep {
    pub(super) step: StepId,
    rows: Vec<OpenRow>,
    output: StepOutput,
}

impl CollectedStep {
    /// Checks that output and step belong together.
    pub(super) fn new(step: StepId, rows: Vec<OpenRow>, output: StepOutput) -> Result<Self> {
        let refuse = |reason| Err(Error::StepOutput { step: step.0, reason });
        if output.step != step.0 || output.rows.len() != rows.len() {
            return refuse("it has other rows than the step");
        }
        let is_right = |(row, output): (&OpenRow, &RowOutput)| {
            let num_answers = output.token_ids.len() + usize::from(output.fault.is_some());
            output.epoch == row.epoch.0 && num_answers == usize::from(row.samples)
        };
        if !rows.iter().zip(&output.rows).all(is_right) {
            return refuse("a row has another epoch or another number of tokens than planned");
        }
        Ok(Self { step, rows, output })
    }

    /// Feeds the tokens to their requests. Rows of an earlier epoch, and of sequences that have ended, are passed
    /// over: their tokens do not exist.
    pub(super) fn results(
        &self,
        scheduler: &Scheduler,
        requests: &mut Requests,
        decoder: &TextDecoder,
        now: Time,
    ) -> Vec<SequenceResult<'_>> {
        let mut results = Vec::with_capacity(self.rows.len());
        for (row, output) in self.rows.iter().zip(&self.output.rows) {
            let Some(request) =
                requests.get_mut(row.seq).filter(|_| scheduler.is_current(row.seq, row.epoch))
            else {
                continue;
            };
            let finish = take_over(request, row, output, decoder, now);
            if row.samples {
                results.push(SequenceResult {
                    seq: row.seq,
                    epoch: row.epoch,
                    tokens: if request.prompt_alone { &[] } else { &output.token_ids },
                    finish,
                });
            }
        }
        results
    }

    /// Transfers that are done.
    pub(super) fn transfers_done(&self) -> Vec<TransferId> {
        self.output.transfers_done.iter().copied().map(TransferId).collect()
    }

    /// The sequences of the step, in the order of rows.
    pub(super) fn seqs(&self) -> impl Iterator<Item = SeqId> {
        self.rows.iter().map(|row| row.seq)
    }
}

/// Why a row has no token. Where parameters forbid tokens they are the likely reason, and what the client can change.
fn no_token(request: &ActiveRequest, fault: RowFault) -> Error {
    let (request_id, fields) = (request.id.clone(), request.params.forbidding_fields());
    match fault {
        RowFault::NoFiniteLogit { position } if !fields.is_empty() => {
            Error::NoTokenLeft { request_id, position, fields }
        }
        source => Error::Row { request_id, source },
    }
}

/// A row without a token, or a panic in what serves one request, marks this request as failed, nothing more.
fn take_over(
    request: &mut ActiveRequest,
    row: &OpenRow,
    output: &RowOutput,
    decoder: &TextDecoder,
    now: Time,
) -> Option<FinishReason> {
    if let Some(fault) = output.fault {
        request.fail(no_token(request, fault));
        return Some(FinishReason::Error);
    }
    let taken = guarded("turning tokens into text", || {
        request.take_prompt_logprobs(row.start, &output.prompt_logprobs, decoder);
        let tokens = output.token_ids.iter().enumerate();
        Ok(tokens.fold(None, |_, (i, &token)| {
            request.take_token(row.seq, token, output.logprobs.get(i), decoder, now)
        }))
    });
    taken.unwrap_or_else(|error| {
        request.fail(error);
        None
    })
}
