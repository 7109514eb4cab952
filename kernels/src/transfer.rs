//! Blocks on their way between the device and the host, beside the work of steps.
//!
//! ```text
//!   steps      | step 7 writes block 3 | fence A |        step 8        | wait for B | step 9 reads block 5 |
//!   transfers             (after A)    swap out 3 -> host 0 | swap in host 1 -> 5 | fence B
//! ```
//!
//! Nothing on either side waits but for the fences that it was given, and the host for none.

use std::any::Any;
use std::sync::Arc;

use crate::{Fence, Result, Tensor};

/// An ordered run of copies between the memory of a device and that of the host, beside the device's other queues.
/// Made by [`Device::transfers`](crate::Device::transfers).
///
/// The caller owes the order: from the call until the fence that it returns is reached, the rows that are read are
/// not written and those that are written are not touched, by anything but transfers of this queue. To let blocks be
/// swapped out behind the last step that wrote them, pass a fence of that step's queue; to let a step read blocks that
/// are swapped in, let its queue [wait](crate::Queue::wait_for) for the returned fence.
pub trait TransferQueue: Any + Send {
    /// Enqueues copies from the device to the host, which start once `after` is reached.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn swap_out(&mut self, rows: SwapRows<'_>, after: &dyn Fence) -> Result<Arc<dyn Fence>>;

    /// Enqueues copies from the host to the device, which start once `after` is reached: a fence behind the last
    /// work that used the rows which are overwritten.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn swap_in(&mut self, rows: SwapRows<'_>, after: &dyn Fence) -> Result<Arc<dyn Fence>>;
}

/// The rows of one layer on the device, and where they go on the host.
#[derive(Clone, Debug)]
pub struct SwapLayer {
    /// `[num_blocks, block_bytes]`, contiguous, in memory of the device.
    pub device: Tensor,
    /// `[num_host_blocks, block_bytes]`, contiguous, in memory of [`Device::host_memory`](crate::Device::host_memory).
    pub host: Tensor,
}

/// Which rows are copied.
#[derive(Clone, Copy, Debug)]
pub struct SwapRows<'a> {
    /// The layers, each copied alike.
    pub layers: &'a [SwapLayer],
    /// (row on the device, row on the host). No row stands twice on the side that is written.
    pub pairs: &'a [(u32, u32)],
}

impl SwapRows<'_> {
    /// The copies, (on the device, on the host) each, as few as there can be.
    ///
    /// # Panics
    ///
    /// As [`check`](Self::check).
    pub fn copies(&self) -> impl Iterator<Item = (Tensor, Tensor)> {
        self.check();
        let runs = SwapRun::merge(self.pairs);
        self.layers.iter().flat_map(move |layer| {
            let copy = |run: &SwapRun| {
                let device = layer.device.rows(run.device_row, run.device_row + run.num_rows);
                (device, layer.host.rows(run.host_row, run.host_row + run.num_rows))
            };
            runs.iter().map(copy).collect::<Vec<_>>()
        })
    }

    /// Looks at what [`TransferQueue`] takes for granted.
    ///
    /// # Panics
    ///
    /// With the invariant in words where a row leaves its layer or a layer's two sides do not fit.
    pub fn check(&self) {
        let (device_rows, host_rows) = self.ends();
        for SwapLayer { device, host } in self.layers {
            assert!(device.is_contiguous() && host.is_contiguous(), "rows are swapped of whole tensors");
            assert!(
                device.dtype() == host.dtype() && device.num_columns() == host.num_columns(),
                "rows alike"
            );
            let is_inside = device_rows <= device.num_rows() && host_rows <= host.num_rows();
            assert!(
                is_inside,
                "row {device_rows} or host row {host_rows} lies outside of {device:?}, {host:?}"
            );
        }
    }

    fn ends(&self) -> (usize, usize) {
        let end = |last: Option<u32>| last.map_or(0, |row| row as usize + 1);
        (end(self.pairs.iter().map(|p| p.0).max()), end(self.pairs.iter().map(|p| p.1).max()))
    }
}

/// Rows that follow each other on both sides, so that one copy moves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRun {
    /// The first row on the device.
    pub device_row: usize,
    /// The first row on the host.
    pub host_row: usize,
    /// How many.
    pub num_rows: usize,
}

impl SwapRun {
    /// The pairs in as few runs as there can be.
    pub fn merge(pairs: &[(u32, u32)]) -> Vec<Self> {
        let mut sorted = pairs.to_vec();
        sorted.sort_unstable();
        let mut runs: Vec<Self> = Vec::new();
        for (device_row, host_row) in sorted.into_iter().map(|(d, h)| (d as usize, h as usize)) {
            match runs.last_mut() {
                Some(run) if run.is_followed_by(device_row, host_row) => run.num_rows += 1,
                _ => runs.push(Self { device_row, host_row, num_rows: 1 }),
            }
        }
        runs
    }

    fn is_followed_by(&self, device_row: usize, host_row: usize) -> bool {
        device_row == self.device_row + self.num_rows && host_row == self.host_row + self.num_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: &[(u32, u32)], expected: &[(usize, usize, usize)]) {
        let runs = SwapRun::merge(pairs);
        let runs: Vec<_> = runs.iter().map(|run| (run.device_row, run.host_row, run.num_rows)).collect();
        assert_eq!(runs, expected, "{pairs:?}");
    }

    #[test]
    fn rows_that_follow_each_other_on_both_sides_are_one_run() {
        check(&[], &[]);
        check(&[(5, 1), (3, 9), (4, 0), (6, 2)], &[(3, 9, 1), (4, 0, 3)]);
        check(&[(0, 1), (1, 0)], &[(0, 1, 1), (1, 0, 1)]);
    }
}
