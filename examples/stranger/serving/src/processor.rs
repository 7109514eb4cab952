use quire::{LogitsProcessor, RowLogits};
use serde_json::Value;

/// Lowers the last tokens of an output by a number that the request gives, so that it does not stutter.
pub struct NoStutter;

/// How many of them.
const NUM_LAST: usize = 4;

impl LogitsProcessor for NoStutter {
    fn check_args(&self, args: &Value) -> Result<(), String> {
        args.as_f64().map(drop).ok_or_else(|| "a number to subtract".to_owned())
    }

    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        for row in rows {
            let by = row.args.as_f64().unwrap_or_default() as f32;
            for &token_id in row.output().iter().rev().take(NUM_LAST) {
                row.logits[token_id as usize] -= by;
            }
        }
    }
}
