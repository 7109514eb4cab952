//! Where two traces part.

use std::fmt;

use serde::Serialize;

use super::TraceLine;
use crate::error::Result;

/// How two traces compare, line by line in their order.
#[derive(Debug, Serialize)]
pub(crate) struct Diff {
    pub(crate) tolerance: f64,
    /// Outputs that both have, up to where the two stop doing the same.
    pub(crate) num_compared: usize,
    /// Of these, how many are equal bit for bit.
    pub(crate) num_identical: usize,
    /// How many differ by more than the tolerance.
    pub(crate) num_beyond: usize,
    /// The first that does.
    pub(crate) first: Option<Difference>,
    /// Those that differ most, the worst first.
    pub(crate) worst: Vec<Difference>,
    /// Where the two stop doing the same.
    pub(crate) parting: Option<Parting>,
}

/// Two outputs of the same operation that are not the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    /// Relative to the root mean square of the tensor; `null` in JSON where it is infinite: other elements that are
    /// not finite, other integers.
    pub(crate) by: f64,
    /// What differs by that: `rms`, `mean`, `samples`, `not_finite` or `integers`.
    pub(crate) what: &'static str,
    pub(crate) a: TraceLine,
    pub(crate) b: TraceLine,
}

/// Two runs that do different things from here on; `None` for one that has ended.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Parting {
    pub(crate) a: Option<TraceLine>,
    pub(crate) b: Option<TraceLine>,
}

impl Diff {
    /// Compares two traces, and keeps the `max_worst` worst differences.
    ///
    /// # Errors
    ///
    /// Those of the readers.
    pub(crate) fn of(
        mut a: impl Iterator<Item = Result<TraceLine>>,
        mut b: impl Iterator<Item = Result<TraceLine>>,
        tolerance: f64,
        max_worst: usize,
    ) -> Result<Self> {
        let mut diff = Self {
            tolerance,
            num_compared: 0,
            num_identical: 0,
            num_beyond: 0,
            first: None,
            worst: Vec::new(),
            parting: None,
        };
        loop {
            match (a.next().transpose()?, b.next().transpose()?) {
                (Some(a), Some(b)) if a.matches(&b) => diff.compare(a, b, max_worst),
                (None, None) => return Ok(diff),
                (a, b) => {
                    diff.parting = Some(Parting { a, b });
                    return Ok(diff);
                }
            }
        }
    }

    /// Whether nothing differs beyond the tolerance, from the beginning to both ends.
    pub(crate) fn agrees(&self) -> bool {
        self.num_beyond == 0 && self.parting.is_none()
    }

    fn compare(&mut self, a: TraceLine, b: TraceLine, max_worst: usize) {
        self.num_compared += 1;
        let Some(difference) = Difference::of(a, b) else {
            self.num_identical += 1;
            return;
        };
        if difference.by > self.tolerance {
            self.num_beyond += 1;
            self.first.get_or_insert_with(|| difference.clone());
        }
        // Of equal ones the earlier stays in front.
        let place = self.worst.partition_point(|other| other.by >= difference.by);
        if place < max_worst {
            self.worst.truncate(max_worst - 1);
            self.worst.insert(place, difference);
        }
    }
}

impl Difference {
    /// `None` where all elements are the same.
    fn of(a: TraceLine, b: TraceLine) -> Option<Self> {
        if a.hash == b.hash && a.dtype == b.dtype {
            return None;
        }
        let (what, by) = measure(&a, &b);
        Some(Self { by, what, a, b })
    }
}

/// What differs most, and by how much.
fn measure(a: &TraceLine, b: &TraceLine) -> (&'static str, f64) {
    let (rms_a, rms_b) = (a.rms.unwrap_or(0.0), b.rms.unwrap_or(0.0));
    let (mean_a, mean_b) = (a.mean.unwrap_or(0.0), b.mean.unwrap_or(0.0));
    let rms = rms_a.max(rms_b);
    if (a.num_nan, a.num_inf) != (b.num_nan, b.num_inf) || is_finite(a) != is_finite(b) {
        return ("not_finite", f64::INFINITY);
    }
    if is_integer(a) && is_integer(b) {
        return ("integers", f64::INFINITY);
    }
    let samples = a.samples.iter().zip(&b.samples).filter_map(|(&a, &b)| Some((a?.into(), b?.into())));
    let by_samples = samples.map(|(a, b): (f64, f64)| relative(a, b, rms.max(a.abs()).max(b.abs())));
    let measures = [
        ("rms", relative(rms_a, rms_b, rms)),
        ("mean", relative(mean_a, mean_b, rms)),
        ("samples", by_samples.fold(0.0, f64::max)),
    ];
    let by = measures.iter().map(|measure| measure.1).fold(0.0, f64::max);
    // Of measures that differ by rounding alone the coarsest is named.
    let what = measures.iter().find(|measure| measure.1 >= 0.99 * by).map_or("rms", |measure| measure.0);
    (what, by)
}

fn relative(a: f64, b: f64, scale: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / scale }
}

/// Which samples are finite.
fn is_finite(line: &TraceLine) -> Vec<bool> {
    line.samples.iter().map(Option::is_some).collect()
}

/// Ids and counts have no rounding.
fn is_integer(line: &TraceLine) -> bool {
    line.dtype.starts_with(['i', 'u'])
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tolerance, num_compared, num_identical, num_beyond, .. } = self;
        writeln!(
            f,
            "{num_compared} outputs compared, {num_identical} identical, {num_beyond} beyond {tolerance}"
        )?;
        if let Some(first) = &self.first {
            writeln!(f, "\nfirst beyond {tolerance}:\n{first}")?;
        }
        if !self.worst.is_empty() {
            writeln!(f, "\nworst:")?;
        }
        self.worst.iter().try_for_each(|difference| writeln!(f, "{difference}"))?;
        match &self.parting {
            Some(parting) => writeln!(f, "\nnot compared further, the runs do different things:\n{parting}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, what, a, b } = self;
        write!(f, "  {by:<9.3e} {what:<10} {a}")?;
        let number = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.6e}"));
        let stats = |line: &TraceLine| {
            let fused = if line.fused { ", fused" } else { "" };
            let TraceLine { dtype, num_nan, num_inf, .. } = line;
            let (mean, rms) = (number(line.mean), number(line.rms));
            format!("{dtype}{fused}, rms {rms}, mean {mean}, {num_nan} nan, {num_inf} inf")
        };
        write!(f, "\n            a: {}\n            b: {}", stats(a), stats(b))
    }
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |line: &Option<TraceLine>| line.as_ref().map_or("has ended".to_owned(), |l| l.to_string());
        write!(f, "  a: {}\n  b: {}", line(&self.a), line(&self.b))
    }
}

#[cfg(test)]
mod tests {
    use quire_kernels::DType;
    use quire_kernels::quant::encode;
    use quire_kernels::trace::{TensorStats, TraceRecord};

    use super::*;

    fn line(op_idx: u32, dtype: DType, values: &[f32]) -> TraceLine {
        TraceLine::from(&TraceRecord {
            step: 0,
            op_idx,
            op: "norm.add",
            ordinal: op_idx,
            weight: None,
            is_fused: false,
            tensor: "residual",
            dtype,
            dims: vec![values.len()],
            stats: TensorStats::of(dtype, &encode(dtype, values)),
        })
    }

    fn diff(a: Vec<TraceLine>, b: Vec<TraceLine>) -> Diff {
        Diff::of(a.into_iter().map(Ok), b.into_iter().map(Ok), 0.01, 2).unwrap()
    }

    #[track_caller]
    fn check(a: &[f32], b: &[f32], what: &'static str, by: f64) {
        let (what_is, by_is) = measure(&line(0, DType::F32, a), &line(0, DType::F32, b));
        assert_eq!(what_is, what);
        assert!(by == by_is || (by - by_is).abs() < 1e-6, "{by_is} for {by}");
    }

    #[test]
    fn what_differs_most_is_named() {
        check(&[1.0, -1.0], &[1.02, -1.02], "rms", 0.02 / 1.02);
        check(&[1.0, -1.0], &[-1.0, 1.0], "samples", 2.0);
        check(&[1.0, f32::NAN], &[1.0, 1.0], "not_finite", f64::INFINITY);
        check(&[1.0, f32::NEG_INFINITY], &[f32::NEG_INFINITY, 1.0], "not_finite", f64::INFINITY);
        check(&[0.0; 2], &[0.0; 2], "rms", 0.0);
        // Rounding of an outlier is small beside it, however large beside the rest.
        let (mut a, mut b) = (vec![0.0f32; 15], vec![0.0f32; 15]);
        (a[0], b[0]) = (1000.0, 1001.0);
        check(&a, &b, "rms", 1.0 / 1001.0);
        check(&[1.0, 0.0, 1.0], &[1.0, 0.1, 1.0], "samples", 0.1 / 0.67f64.sqrt());
    }

    #[test]
    fn the_first_and_the_worst_are_found() {
        let of = |scales: [f32; 4]| -> Vec<TraceLine> {
            (0..).zip(scales).map(|(i, scale)| line(i, DType::F32, &[scale, -2.0 * scale])).collect()
        };
        let diff = diff(of([1.0; 4]), of([1.0, 1.001, 1.02, 1.1]));
        assert_eq!((diff.num_compared, diff.num_identical, diff.num_beyond), (4, 1, 2));
        assert_eq!(diff.first.as_ref().unwrap().a.op_idx, 2);
        let worst: Vec<u32> = diff.worst.iter().map(|difference| difference.a.op_idx).collect();
        assert_eq!(worst, [3, 2]);
        assert!(!diff.agrees() && diff.parting.is_none());
    }

    #[test]
    fn other_dtypes_are_compared_by_value_and_integers_must_be_equal() {
        let values = [0.5, 1.0];
        let lines = |dtype| vec![line(0, dtype, &values)];
        assert!(diff(lines(DType::F32), lines(DType::BF16)).agrees());
        let ids = |id| vec![line(0, DType::I32, &[id])];
        assert!(diff(ids(7.0), ids(7.0)).agrees());
        let other = diff(ids(7.0), ids(8.0));
        assert_eq!((other.num_beyond, other.worst[0].what), (1, "integers"));
    }

    #[test]
    fn runs_that_do_different_things_part() {
        let lines = |lengths: &[usize]| -> Vec<TraceLine> {
            (0..).zip(lengths).map(|(i, &n)| line(i, DType::F32, &vec![1.0; n])).collect()
        };
        assert!(diff(lines(&[2, 3]), lines(&[2, 3])).agrees());
        let longer = diff(lines(&[2, 3]), lines(&[2])).parting.unwrap();
        assert_eq!((longer.a.unwrap().op_idx, longer.b), (1, None));
        let other = diff(lines(&[2, 3]), lines(&[2, 4]));
        assert_eq!(other.num_compared, 1);
        assert!(other.to_string().contains("a: step 0, op 1: norm.add[1] residual [3]"), "{other}");
    }
}
