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
}

/// The recorded steps of a device that can record; empty and idle on one that cannot.
pub(crate) struct GraphCache {
    sizes: Option<GraphSizes>,
    graphs: HashMap<ShapeKey, Box<dyn Graph>>,
}

impl GraphCache {
    /// Finds out by an empty recording whether the device records at all.
    pub(crate) fn new(ctx: &mut StepCtx, sizes: GraphSizes) -> Result<Self> {
        let records = ctx.capture(|_| Ok(()))?.is_some();
        Ok(Self { sizes: records.then_some(sizes), graphs: HashMap::new() })
    }

    /// One that never records.
    pub(crate) fn disabled() -> Self {
        Self { sizes: None, graphs: HashMap::new() }
    }

    /// How many steps were recorded.
    pub(crate) fn len(&self) -> usize {
        self.graphs.len()
    }

    /// The padded size of a decode step, where it is to be recorded.
    pub(crate) fn round_up(&self, num_rows: usize) -> Option<usize> {
        self.sizes.and_then(|sizes| sizes.round_up(num_rows))
    }

    /// Replays the step recorded for `key`, recording `work` first where it is new.
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
        tracing::debug!(
            target: "quire::executor",
            num_rows = key.num_rows,
            num_bytes = graph.num_bytes(),
            "recorded a decode step"
        );
        ctx.launch(graph.as_ref())?;
        self.graphs.insert(key, graph);
        Ok(())
    }
}

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
    }
}
