//! Recorded steps, and the sizes that decode steps are padded to so that few need to be recorded.

use std::collections::HashMap;

use quire_kernels::{Graph, Result, ShapeKey, StepCtx};

/// To which number of rows a decode step is padded.
///
/// Four sizes an octave: fewer than a quarter of the rows is padding, and 256 rows need 26 recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphSizes {
    max_rows: usize,
}

impl GraphSizes {
    /// Sizes up to `max_rows`.
    pub fn new(max_rows: usize) -> Self {
        Self { max_rows }
    }

    /// The smallest size that holds `num_rows`; `None` where that is none or more than any.
    pub fn round_up(&self, num_rows: usize) -> Option<usize> {
        if num_rows == 0 || num_rows > self.max_rows {
            return None;
        }
        let step = (num_rows.next_power_of_two() / 8).max(1);
        Some(num_rows.next_multiple_of(step).min(self.max_rows))
    }

    /// All sizes, the smallest first.
    pub fn all(&self) -> impl Iterator<Item = usize> + use<> {
        let sizes = *self;
        std::iter::successors(sizes.round_up(1), move |&size| sizes.round_up(size + 1))
    }
}

/// The recorded steps of a device that can record; empty and idle on one that cannot.
pub(crate) struct GraphCache {
    sizes: Option<GraphSizes>,
    graphs: HashMap<ShapeKey, Box<dyn Graph>>,
    budget_bytes: usize,
    num_bytes: usize,
}

impl GraphCache {
    /// Finds out by an empty recording whether the device records at all. The recordings may hold so many bytes.
    pub(crate) fn new(ctx: &mut StepCtx, sizes: GraphSizes, budget_bytes: usize) -> Result<Self> {
        let records = ctx.capture(|_| Ok(()))?.is_some();
        Ok(Self { sizes: records.then_some(sizes), budget_bytes, ..Self::disabled() })
    }

    /// One that never records.
    pub(crate) fn disabled() -> Self {
        Self { sizes: None, graphs: HashMap::new(), budget_bytes: 0, num_bytes: 0 }
    }

    /// How many steps were recorded.
    pub(crate) fn len(&self) -> usize {
        self.graphs.len()
    }

    /// Bytes that the recordings hold.
    pub(crate) fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// The sizes that may be recorded, the smallest first.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.sizes.map_or(Vec::new(), |sizes| sizes.all().collect())
    }

    /// The padded size of a decode step, where it is to be recorded.
    pub(crate) fn round_up(&self, num_rows: usize) -> Option<usize> {
        self.sizes.and_then(|sizes| sizes.round_up(num_rows))
    }

    /// Replays the step recorded for `key`, recording `work` first where it is new. What does not fit the budget is run
    /// this once and forgotten; the sizes above it are recorded no more.
    pub(crate) fn run(
        &mut self,
        ctx: &mut StepCtx,
        key: ShapeKey,
        work: impl FnOnce(&mut StepCtx) -> Result<()>,
    ) -> Result<()> {
        if let Some(graph) = self.graphs.get(&key) {
            return ctx.launch(graph.as_ref());
        }
        let Some(graph) = ctx.capture(work)? else { return Ok(()) };
        let num_bytes = graph.num_bytes();
        tracing::debug!(target: TARGET, num_rows = key.num_rows, num_bytes, "recorded a decode step");
        ctx.launch(graph.as_ref())?;
        match self.num_bytes.checked_add(num_bytes).filter(|&sum| sum <= self.budget_bytes) {
            Some(sum) => {
                self.num_bytes = sum;
                self.graphs.insert(key, graph);
            }
            None => self.shrink_below(key.num_rows),
        }
        Ok(())
    }

    fn shrink_below(&mut self, num_rows: usize) {
        let largest = self.sizes().into_iter().take_while(|&size| size < num_rows).last();
        tracing::warn!(
            target: TARGET,
            "graph_memory of {} bytes is full: decode steps of {num_rows} rows and more are enqueued each time",
            self.budget_bytes
        );
        self.sizes = largest.map(GraphSizes::new);
    }
}

const TARGET: &str = "quire::executor";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hold_their_rows_with_little_padding() {
        let sizes = GraphSizes::new(200);
        for num_rows in 1..=200 {
            let size = sizes.round_up(num_rows).unwrap();
            assert!(size >= num_rows && 4 * (size - num_rows) < num_rows.max(4), "{num_rows} in {size}");
            assert_eq!(sizes.round_up(size), Some(size), "a size is its own size");
        }
        assert_eq!([9, 17, 33, 199].map(|n| sizes.round_up(n).unwrap()), [10, 20, 40, 200]);
        assert_eq!((sizes.round_up(0), sizes.round_up(201)), (None, None));
        assert_eq!(GraphSizes::new(11).all().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]);
    }
}
