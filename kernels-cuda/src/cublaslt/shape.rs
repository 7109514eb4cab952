//! Shapes of products.

use std::fmt;

use quire_kernels::DType;

/// What the choice of an algorithm hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Of the weight.
    pub(crate) rows: usize,
    /// Of the weight.
    pub(crate) columns: usize,
    /// Rows of the input.
    pub(crate) num_tokens: usize,
    /// Type of weight and input.
    pub(crate) dtype: DType,
    /// Type of the output.
    pub(crate) out_dtype: DType,
    /// Whether a bias of the output's type is added.
    pub(crate) has_bias: bool,
}

impl Shape {
    /// The shape that it shares an algorithm with.
    pub(super) fn bucketed(self) -> Self {
        Self { num_tokens: bucket(self.num_tokens), ..self }
    }

    /// Elements between the rows of weight, input and output, where nothing lies between.
    pub(super) fn dense_strides(&self) -> [usize; 3] {
        [self.columns, self.columns, self.rows]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, columns, num_tokens, out_dtype, .. } = self;
        write!(f, "{rows}x{columns} of {num_tokens} tokens to {out_dtype}")
    }
}

/// Numbers of tokens that share an algorithm: that of the largest of them. Each number of a decode batch has its own.
fn bucket(num_tokens: usize) -> usize {
    let step = match num_tokens {
        0..=64 => 1,
        65..=512 => 16,
        513..=2048 => 64,
        _ => 256,
    };
    num_tokens.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_tokens_with_little_room() {
        for num_tokens in 1..10_000 {
            let bucket = bucket(num_tokens);
            assert!(bucket >= num_tokens && bucket - num_tokens < 16.max(num_tokens / 7), "{num_tokens}");
        }
        assert_eq!(bucket(37), 37, "a decode batch has its own");
    }
}
