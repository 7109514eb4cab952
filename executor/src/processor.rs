//! Logits processors: code of a user's that edits logits on the host.

use serde_json::Value;

use crate::RowId;

/// Edits the logits of the rows that ask for it, before a token is chosen from them.
///
/// It runs on the worker's thread, between the forward pass and the choice, and the device waits meanwhile: that is what
/// it costs, in a step in which any row asks for one. Other steps pay nothing. It sees the model's logits; biases, what
/// `min_tokens`, grammars and bad words forbid, and penalties come after it, so that what is forbidden stays so. Raw
/// log-probabilities are those of the logits before it, processed ones of what is left at the end.
///
/// A row keeps its place while it runs: rows come and go, and never move. A processor is made anew when the device is
/// reset, and is told of all rows again; so is a row's state when the row comes back after a preemption. It must not draw
/// random numbers of its own, since a row's output would hang on when it was preempted.
///
/// A panic in it, a NaN or an infinity that is not negative, ends the requests of the rows that it was given, and no other.
///
/// ```
/// use quire_executor::{LogitsProcessor, RowId, RowLogits};
///
/// /// Never the same token twice in a row.
/// struct NoStutter;
///
/// impl LogitsProcessor for NoStutter {
///     fn process(&mut self, rows: &mut [RowLogits<'_>]) {
///         for row in rows {
///             if let [.., last] = row.output() {
///                 row.logits[*last as usize] = f32::NEG_INFINITY;
///             }
///         }
///     }
/// }
///
/// let (args, mut logits) = (serde_json::Value::Null, [0.5, 2.0, 1.0]);
/// let token_ids = &[2, 0, 1];
/// let row = RowLogits { row: RowId(0), token_ids, num_prompt_tokens: 2, args: &args, logits: &mut logits };
/// NoStutter.process(&mut [row]);
/// assert_eq!(logits, [0.5, f32::NEG_INFINITY, 1.0]);
/// ```
pub trait LogitsProcessor: Send {
    /// Whether it may change which token has the best logit. Greedy rows are not shown to one that may not.
    fn may_change_argmax(&self) -> bool {
        true
    }

    /// Whether a request may give these arguments. Asked of a processor that is made for it, before the request is queued.
    ///
    /// # Errors
    ///
    /// What is expected instead, as the end of a sentence: "a number from 0 to 1".
    fn check_args(&self, args: &Value) -> Result<(), String> {
        let _ = args;
        Ok(())
    }

    /// A row that asks for it starts, or starts again after a preemption, with these tokens.
    fn added(&mut self, row: RowId, token_ids: &[u32], num_prompt_tokens: usize, args: &Value) {
        let _ = (row, token_ids, num_prompt_tokens, args);
    }

    /// A row that it was told of is gone. Its place may be another sequence's at once.
    fn released(&mut self, row: RowId) {
        let _ = row;
    }

    /// Edits the logits of a step, all rows at once: those that ask for it and have a token chosen. Minus infinity forbids
    /// a token.
    fn process(&mut self, rows: &mut [RowLogits<'_>]);
}

/// The logits of one row, for a [`LogitsProcessor`].
#[derive(Debug)]
pub struct RowLogits<'a> {
    /// Whose they are.
    pub row: RowId,
    /// All tokens of the sequence so far.
    pub token_ids: &'a [u32],
    /// How many of them are the prompt.
    pub num_prompt_tokens: usize,
    /// What the request gave the processor; null where it gave nothing.
    pub args: &'a Value,
    /// `[vocab_size]`.
    pub logits: &'a mut [f32],
}

impl<'a> RowLogits<'a> {
    /// The tokens that were generated so far.
    pub fn output(&self) -> &'a [u32] {
        &self.token_ids[self.num_prompt_tokens..]
    }
}
