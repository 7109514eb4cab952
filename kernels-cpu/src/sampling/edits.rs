//! Changes to logits before sampling.

use quire_kernels::IN_PROMPT;

use crate::lanes::LANES;

/// Adds to a logit; minus infinity forbids whatever the logit is.
pub(super) fn add_bias(logit: &mut f32, value: f32) {
    *logit = if value == f32::NEG_INFINITY { value } else { *logit + value };
}

/// Forbids the tokens of a row whose bit is not set. Most words of a mask are all or nothing.
pub(super) fn mask(logits: &mut [f32], words: &[u32]) {
    for (logits, &word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// The penalties of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalties {
    pub(super) presence: f32,
    pub(super) frequency: f32,
    pub(super) repetition: f32,
}

impl Penalties {
    /// Changes the logits of the tokens that have a count. Most have none: those are passed over by vectors.
    pub(super) fn apply(self, logits: &mut [f32], counts: &[i32]) {
        if self.presence == 0.0 && self.frequency == 0.0 && self.repetition == 1.0 {
            return;
        }
        for (logits, counts) in logits.chunks_mut(LANES).zip(counts.chunks(LANES)) {
            if counts.iter().fold(0, |any, count| any | count) == 0 {
                continue;
            }
            for (logit, &count) in logits.iter_mut().zip(counts).filter(|(_, count)| **count != 0) {
                *logit = self.penalized(*logit, count);
            }
        }
    }

    /// The logit of a token that stands in prompt or output.
    fn penalized(self, logit: f32, count: i32) -> f32 {
        let repeated = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        let in_output = count & (IN_PROMPT - 1);
        if in_output == 0 { repeated } else { repeated - (self.frequency * in_output as f32 + self.presence) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_count_the_output_only_where_they_should() {
        let penalties = Penalties { presence: 0.5, frequency: 0.25, repetition: 2.0 };
        let mut logits = [4.0, 4.0, -4.0, 4.0];
        penalties.apply(&mut logits, &[0, IN_PROMPT, 2, IN_PROMPT | 1]);
        assert_eq!(logits, [4.0, 2.0, -9.0, 1.25]);
    }

    #[test]
    fn every_place_of_a_row_is_reached() {
        let penalties = Penalties { presence: 1.0, frequency: 0.0, repetition: 1.0 };
        for token in 0..40 {
            let (mut logits, mut counts) = ([0.0; 40], [0; 40]);
            counts[token] = 1;
            penalties.apply(&mut logits, &counts);
            assert!(logits.iter().enumerate().all(|(i, &l)| l == if i == token { -1.0 } else { 0.0 }));
        }
    }

    #[test]
    fn a_forbidden_token_is_forbidden_whatever_its_logit() {
        let mut logit = f32::INFINITY;
        add_bias(&mut logit, f32::NEG_INFINITY);
        assert_eq!(logit, f32::NEG_INFINITY);
        add_bias(&mut logit, 3.0);
        assert_eq!(logit, f32::NEG_INFINITY);
    }
}
