//! Words that must not be generated.

use std::sync::Arc;

/// Sequences of two tokens or more, none of which must be completed by the output: in the order of their last token but one, so
/// that few are looked at behind a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BadSequences(Arc<[Vec<u32>]>);

impl BadSequences {
    pub(crate) fn new(mut sequences: Vec<Vec<u32>>) -> Self {
        debug_assert!(sequences.iter().all(|sequence| sequence.len() > 1));
        sequences.sort_by_key(|sequence| before_last(sequence));
        Self(sequences.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tokens that would complete one of them now, each once.
    pub(crate) fn forbidden_after(&self, output: &[u32]) -> Vec<u32> {
        let completing = |sequence: &Vec<u32>| {
            let (last, head) = sequence.split_last()?;
            output.ends_with(head).then_some(*last)
        };
        let newest = output.last().copied();
        let start = self.0.partition_point(|sequence| before_last(sequence) < newest);
        let behind = self.0[start..].iter().take_while(|sequence| before_last(sequence) == newest);
        let mut forbidden: Vec<u32> = behind.filter_map(completing).collect();
        forbidden.sort_unstable();
        forbidden.dedup();
        forbidden
    }
}

fn before_last(sequence: &[u32]) -> Option<u32> {
    sequence.iter().rev().nth(1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_token_is_forbidden_where_the_others_have_come() {
        let bad = BadSequences::new(vec![vec![1, 2], vec![1, 1, 3], vec![9, 1, 2], vec![1, 4]]);
        assert!(bad.forbidden_after(&[]).is_empty());
        assert_eq!(bad.forbidden_after(&[1]), [2, 4]);
        assert_eq!(bad.forbidden_after(&[5, 1, 1]), [2, 3, 4]);
        assert_eq!(bad.forbidden_after(&[9, 1]), [2, 4]);
        assert!(bad.forbidden_after(&[1, 2]).is_empty());
    }
}
