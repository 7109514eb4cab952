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
    /// A header, or a JSON object, names a column twice: which of them is meant?
    #[error("line {line}: `{column}` is there twice")]
    Duplicate {
        /// The line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
    },
    /// Bytes that are no text.
    #[error("line {line}: not UTF-8")]
    NotUtf8 {
        /// The line, from 1.
        line: usize,
    },
    /// A request that would come later than time is counted.
    #[error("request {request} would come after {seconds:e} s, expected at most 1e9 s: is the rate right?")]
    TooLate {
        /// Its place in the trace, from 0.
        request: usize,
        /// When it would come, in whole seconds.
        seconds: u128,
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
