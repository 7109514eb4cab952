//! Sixteen cached tokens of one head.

use super::stored::Stored;
use crate::lanes::LANES;

/// A matrix whose rows may lie further apart than they are long.
///
/// Of keys a row is an element of the head and the columns are the tokens; of values a row is a token and the
/// columns are the elements, padded to whole vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip<'a, E> {
    elements: &'a [E],
    stride: usize,
}

impl<'a, E: Stored> Strip<'a, E> {
    /// No rows.
    pub(super) const EMPTY: Self = Self { elements: &[], stride: 0 };

    /// Rows that start every `stride` elements.
    pub(super) fn new(elements: &'a [E], stride: usize) -> Self {
        Self { elements, stride }
    }

    /// Asserts that there are so many rows of so many columns.
    #[inline(always)]
    pub(super) fn check(&self, rows: usize, columns: usize) {
        let last = rows.saturating_sub(1) * self.stride;
        assert!(last + columns <= self.elements.len(), "a strip of {rows} by {columns}");
    }

    /// The vector of a row that starts at `column`.
    ///
    /// # Safety
    ///
    /// The strip was [checked](Self::check) to have the row and the columns.
    #[inline(always)]
    pub(super) unsafe fn vector(&self, row: usize, column: usize) -> &'a [E; LANES] {
        let start = row * self.stride + column;
        debug_assert!(start + LANES <= self.elements.len());
        // SAFETY: the vector lies in the strip, by the caller's promise.
        unsafe { &*self.elements.as_ptr().add(start).cast() }
    }
}
