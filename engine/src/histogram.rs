//! Distributions of what was measured.

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Most bounds that a histogram can have.
const MAX_BOUNDS: usize = 31;

/// How many values lie in which range, as Prometheus counts them. It has a fixed size, so that a copy allocates nothing.
///
/// ```
/// use quire_engine::Histogram;
///
/// let mut seconds = Histogram::new(&[0.1, 1.0]);
/// for value in [0.05, 0.1, 3.0] {
///     seconds.observe(value);
/// }
/// assert_eq!(seconds.cumulative().collect::<Vec<_>>(), [(0.1, 2), (1.0, 2)]);
/// assert_eq!((seconds.count(), seconds.sum()), (3, 3.15));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Values up to each bound and above the one before; those above the last come behind.
    counts: [u64; MAX_BOUNDS + 1],
    sum: f64,
}

impl Histogram {
    /// An empty one with these upper bounds, in rising order; at most 31.
    ///
    /// # Panics
    ///
    /// Where there are more bounds.
    pub const fn new(bounds: &'static [f64]) -> Self {
        assert!(bounds.len() <= MAX_BOUNDS, "a histogram has at most 31 bounds");
        Self { bounds, counts: [0; MAX_BOUNDS + 1], sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += 1;
        self.sum += value;
    }

    /// Each bound, with how many values are not above it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().copied().zip(counts)
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

impl Serialize for Histogram {
    /// `{"count": ..., "sum": ...}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Histogram", 2)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("sum", &self.sum)?;
        fields.end()
    }
}
