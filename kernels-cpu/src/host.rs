//! The elements of this device's tensors, for parts of one's own.
//!
//! A part replaces one of the backend's ([`Kernels::with_attention`](quire_kernels::Kernels::with_attention)), and
//! works on tensors in the device's memory. [`run`] is an operation written as a closure: it is enqueued like a
//! kernel, and gets slices of the tensors that it named before.
//!
//! ```
//! use quire_kernels::DType;
//! use quire_kernels_cpu::{CpuConfig, host, kernels};
//!
//! let kernels = kernels(CpuConfig { threads: Some(2), ..CpuConfig::default() })?;
//! let mut ctx = kernels.step_ctx(0)?;
//! let x = kernels.upload(DType::F32, &[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let sums = kernels.upload(DType::F32, &[3, 1], &[0.0f32; 3])?;
//! host::run(&mut ctx, [&x], [&sums], |threads, [x], [sums]| {
//!     let x = x.rows::<f32>();
//!     threads.for_each_row(&mut sums.rows::<f32>(), 1, |row, sum| sum[0] = x.row(row).iter().sum());
//! })?;
//! assert_eq!(ctx.read(&sums)?.wait_as::<f32>()?, [3.0, 7.0, 11.0]);
//! # Ok::<(), quire_kernels::Error>(())
//! ```

use quire_kernels::{Error, Result, StepCtx, Tensor};

pub use crate::access::{Element, Rows, RowsMut, View as Input, ViewMut as Output};
use crate::device::{BACKEND, CpuDevice};
use crate::pool::Pool;

/// The threads of the device, for the length of one operation.
#[derive(Clone, Copy)]
pub struct Threads<'v>(&'v Pool);

/// Runs `work` as one operation of the queue of `ctx`: it reads `inputs` and writes `outputs`. What it updates in
/// place is an output.
///
/// The device runs one operation at a time, and `work` is one: it must not use the device in another way, which
/// would wait for itself.
///
/// # Errors
///
/// [`Error::Unsupported`] where `ctx` is not of this backend.
///
/// # Panics
///
/// Where an output overlaps another tensor of the call, or a tensor is of another device.
pub fn run<const R: usize, const W: usize>(
    ctx: &mut StepCtx,
    inputs: [&Tensor; R],
    outputs: [&Tensor; W],
    work: impl FnOnce(Threads<'_>, [Input<'_>; R], [Output<'_>; W]),
) -> Result<()> {
    let device = CpuDevice::of(ctx).ok_or_else(|| Error::Unsupported {
        backend: BACKEND.to_owned(),
        part: "host",
        what: "a context of another backend".to_owned(),
    })?;
    let mut session = device.session();
    let (pool, inputs, outputs) = session.open(inputs, outputs);
    work(Threads(pool), inputs, outputs);
    Ok(())
}

impl Threads<'_> {
    /// How many there are, the caller's included.
    pub fn count(&self) -> usize {
        self.0.threads()
    }

    /// Calls `f` with each row and its number, on all threads; at least `grain` rows go to a thread at a time.
    pub fn for_each_row<T: Element>(
        &self,
        rows: &mut RowsMut<'_, T>,
        grain: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        rows.for_each(self.0, grain, f);
    }
}

#[cfg(test)]
mod tests {
    use quire_kernels::DType;

    use super::*;
    use crate::{CpuConfig, kernels};

    #[test]
    fn a_context_of_another_backend_is_refused() {
        let reference = quire_kernels::reference::kernels();
        let mut ctx = reference.step_ctx(0).unwrap();
        let error = run(&mut ctx, [], [], |_, [], []| unreachable!("it is refused")).unwrap_err();
        assert!(matches!(error, Error::Unsupported { part: "host", .. }), "{error}");
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn an_operation_cannot_read_what_it_writes() {
        let kernels = kernels(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap();
        let x = kernels.upload(DType::F32, &[2, 2], &[0.0f32; 4]).unwrap();
        let mut ctx = kernels.step_ctx(0).unwrap();
        let _ = run(&mut ctx, [&x.rows(0, 1)], [&x], |_, _, _| ());
    }
}
