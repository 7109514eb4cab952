//! What the suite found.

use std::fmt;

use crate::{Error, WeightError};

/// Failures kept in words for one operation; the rest is counted.
const MAX_FAILURES: usize = 8;

/// Whether a row's result may depend on the other rows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowIndependence {
    /// A row gives the same bits alone, in any batch, and for attention in any chunking.
    Bitwise,
    /// It stays within the tolerance only; for backends that document it.
    WithinTolerance,
}

/// The findings, one entry an operation.
#[derive(Clone, Debug)]
pub struct Report {
    rows: RowIndependence,
    /// Which share of the cases is checked, of how many.
    share: (usize, usize),
    ops: Vec<OpReport>,
}

/// The findings on one operation.
#[derive(Clone, Debug)]
pub struct OpReport {
    /// The operation.
    pub op: String,
    /// Comparisons made.
    pub num_cases: usize,
    /// Values compared.
    pub num_values: usize,
    /// The worst error of all values.
    pub worst: WorstError,
    /// Cases that failed.
    pub num_failures: usize,
    /// The first of them, in words.
    pub failures: Vec<String>,
    /// What the backend has no kernel for.
    pub unsupported: Vec<String>,
}

/// The value that came closest to its bound, or went furthest beyond it.
#[derive(Clone, Debug, Default)]
pub struct WorstError {
    /// The distance from the reference.
    pub error: f64,
    /// That distance over the tolerance: above 1 is a failure.
    pub share_of_tolerance: f64,
    /// The case it happened in.
    pub case: String,
}

impl Report {
    /// An empty report; it tells the checks what to demand.
    pub fn new(rows: RowIndependence) -> Self {
        Self { rows, share: (0, 1), ops: Vec::new() }
    }

    /// Cuts the shapes of attention, by far the longest part, into `num_shares` and asks for one of them, counted from
    /// 0: for tools that watch every access to memory, and take minutes for what takes a second.
    pub fn with_share(self, share: usize, num_shares: usize) -> Self {
        Self { share: (share, num_shares.max(1)), ..self }
    }

    /// Whether a case, by its number, is in the share that was asked for.
    pub(super) fn wants(&self, case_idx: usize) -> bool {
        case_idx % self.share.1 == self.share.0
    }

    /// The operations, in the order in which they were checked.
    pub fn ops(&self) -> &[OpReport] {
        &self.ops
    }

    /// Whether nothing failed.
    pub fn is_ok(&self) -> bool {
        self.ops.iter().all(|op| op.num_failures == 0)
    }

    /// # Panics
    ///
    /// With the whole report, where something failed.
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "the backend does not conform\n{self}");
    }

    /// Compares with the reference; `bound(i)` is how far value `i` may be from it.
    pub(super) fn compare(
        &mut self,
        at: At<'_>,
        actual: &[f32],
        expected: &[f64],
        bound: impl Fn(usize) -> f64,
    ) {
        let mut failure = None;
        let entry = self.count(at, expected.len());
        if actual.len() != expected.len() {
            failure = Some(format!("{} values instead of {}", actual.len(), expected.len()));
        }
        for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
            let error = distance(f64::from(actual), expected);
            let share = if error == 0.0 { 0.0 } else { error / bound(i) };
            if share > entry.worst.share_of_tolerance {
                entry.worst = WorstError { error, share_of_tolerance: share, case: at.case.to_owned() };
            }
            if share > 1.0 && failure.is_none() {
                failure = Some(format!("value {i} is {actual}, not {expected} (within {:e})", bound(i)));
            }
        }
        if let Some(reason) = failure {
            self.fail(at, &reason);
        }
    }

    /// Compares values that must be the same.
    pub(super) fn equal<T: PartialEq + fmt::Debug>(&mut self, at: At<'_>, actual: &[T], expected: &[T]) {
        self.count(at, expected.len());
        if actual != expected {
            let differ = actual.iter().zip(expected).enumerate().find(|(_, (a, b))| a != b);
            let reason = match differ {
                Some((i, (a, b))) => format!("value {i} is {a:?}, not {b:?}"),
                None => format!("{} values instead of {}", actual.len(), expected.len()),
            };
            self.fail(at, &reason);
        }
    }

    /// Compares a row's results in two surroundings, where the backend owes independence.
    pub(super) fn same_row(&mut self, at: At<'_>, actual: &[f32], expected: &[f32]) {
        if self.rows == RowIndependence::Bitwise {
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            self.equal(at, &bits(actual), &bits(expected));
        }
    }

    /// Notes a failed case.
    pub(super) fn fail(&mut self, at: At<'_>, reason: &str) {
        let entry = self.entry(at.op);
        entry.num_failures += 1;
        if entry.failures.len() < MAX_FAILURES {
            entry.failures.push(format!("{}: {reason}", at.case));
        }
    }

    /// Notes an error of the backend: a kernel it lacks is reported, anything else is a failure.
    pub(super) fn error(&mut self, at: At<'_>, error: &Error) {
        let lacking = match error {
            Error::Unsupported { what, .. } => Some(what.clone()),
            Error::Weight { reason: WeightError::DType(dtype), .. } => Some(dtype.to_string()),
            _ => None,
        };
        match lacking {
            Some(what) => {
                let entry = self.entry(at.op);
                if !entry.unsupported.contains(&what) {
                    entry.unsupported.push(what);
                }
            }
            None => self.fail(at, &error.to_string()),
        }
    }

    fn count(&mut self, at: At<'_>, num_values: usize) -> &mut OpReport {
        let entry = self.entry(at.op);
        entry.num_cases += 1;
        entry.num_values += num_values;
        entry
    }

    fn entry(&mut self, op: &str) -> &mut OpReport {
        let index = self.ops.iter().position(|entry| entry.op == op).unwrap_or_else(|| {
            self.ops.push(OpReport {
                op: op.to_owned(),
                num_cases: 0,
                num_values: 0,
                worst: WorstError::default(),
                num_failures: 0,
                failures: Vec::new(),
                unsupported: Vec::new(),
            });
            self.ops.len() - 1
        });
        &mut self.ops[index]
    }
}

/// Where a comparison is made.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) op: &'a str,
    pub(super) case: &'a str,
}

/// Infinite where one of them is NaN; 0 for equal infinities.
fn distance(actual: f64, expected: f64) -> f64 {
    if actual == expected {
        return 0.0;
    }
    let error = (actual - expected).abs();
    if error.is_nan() { f64::INFINITY } else { error }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>6} {:>9}  {:>10} {:>9}", "operation", "cases", "values", "error", "of bound")?;
        for op in &self.ops {
            let WorstError { error, share_of_tolerance, case } = &op.worst;
            let verdict = if op.num_failures == 0 { "ok" } else { "FAILED" };
            write!(f, "{:<24} {:>6} {:>9}  ", op.op, op.num_cases, op.num_values)?;
            writeln!(f, "{error:>10.2e} {share_of_tolerance:>9.3} {verdict} {case}")?;
            for failure in &op.failures {
                writeln!(f, "    {failure}")?;
            }
            if op.num_failures > op.failures.len() {
                writeln!(f, "    and {} more", op.num_failures - op.failures.len())?;
            }
            if !op.unsupported.is_empty() {
                writeln!(f, "    no kernel for: {}", op.unsupported.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: At<'static> = At { op: "op", case: "case" };

    fn report() -> Report {
        Report::new(RowIndependence::Bitwise)
    }

    #[test]
    fn a_value_beyond_its_bound_fails() {
        let mut report = report();
        report.compare(AT, &[1.0, 2.5], &[1.0, 2.0], |_| 0.4);
        assert!(!report.is_ok());
        assert_eq!(report.ops()[0].worst.error, 0.5);
        assert!(report.to_string().contains("FAILED"));
    }

    #[test]
    fn poison_that_was_left_fails_whatever_the_bound() {
        let mut report = report();
        report.compare(AT, &[f32::NAN], &[1.0], |_| 1e30);
        assert!(!report.is_ok());
    }

    #[test]
    fn a_missing_kernel_is_told_and_does_not_fail() {
        let mut report = report();
        let backend = "some".to_owned();
        report.error(AT, &Error::Unsupported { backend, part: "attention", what: "odd heads".to_owned() });
        assert!(report.is_ok());
        assert!(report.to_string().contains("no kernel for: odd heads"));
        report.error(AT, &Error::NotInStep { operation: "allocate" });
        assert!(!report.is_ok());
    }

    #[test]
    fn shares_cover_every_case_once() {
        let wanting = |case| (0..3).filter(|&share| report().with_share(share, 3).wants(case)).count();
        assert!((0..10).all(|case| wanting(case) == 1 && report().wants(case)));
    }

    #[test]
    #[should_panic(expected = "does not conform")]
    fn assert_ok_panics_with_the_report() {
        let mut report = report();
        report.equal(AT, &[1], &[2]);
        report.assert_ok();
    }
}
