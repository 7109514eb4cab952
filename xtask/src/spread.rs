//! Values of several rounds.

/// Minimum, median and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    min: f64,
    pub(crate) median: f64,
    max: f64,
}

impl Spread {
    /// None of no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Some(Self { min: *values.first()?, median: values[values.len() / 2], max: *values.last()? })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { min, median, max } = self;
        // Seconds need their thousandths, rates do not.
        let digits = if *max < 10.0 { 3 } else { 1 };
        f.pad(&format!("{min:.digits$} / {median:.digits$} / {max:.digits$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_value_is_the_median() {
        let spread = Spread::of([30.0, 10.0, 20.0]).expect("three values");
        assert_eq!(format!("{spread:>22}|"), "    10.0 / 20.0 / 30.0|");
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([0.25]).expect("a value").to_string(), "0.250 / 0.250 / 0.250");
    }
}
