//! What can be wrong with a trace.

/// Why a trace cannot be used, with line and column.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// There is nothing in it.
    #[error("the trace holds no requests")]
    Empty,
    /// The header has no such column.
    #[error("the header has no column `{column}`, found are: {found}")]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// The columns that there are.
        found: String,
    },
    /// A line ends before a column that is needed, or has no such field.
    #[error("line {line}: no `{column}`")]
    MissingValue {
        /// The line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
    },
    /// A value that cannot be used.
    #[error("line {line}, column `{column}`: `{given}`, expected {expected}")]
    Value {
        /// The line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
        /// The value.
        given: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A line that is no JSON object.
    #[error("line {line}: not a JSON object: {reason}")]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// What the reader met.
        reason: String,
    },
    /// A quoted field that does not end on its line.
    #[error("line {line}: a quoted field does not end")]
    OpenQuote {
        /// The line, from 1.
        line: usize,
    },
    /// Arrivals in two units, or on some lines only.
    #[error("line {line}: `{column}` is on some lines only")]
    MixedArrivals {
        /// The line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
    },
}
