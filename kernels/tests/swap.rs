//! Swapping on the deferred device, which does what it is not told to wait for at the worst time; and the suite, which
//! has to notice a backend that does not wait.

use std::sync::Arc;

use quire_kernels::conformance::{self, Report, RowIndependence};
use quire_kernels::{
    Buffer, DType, Device, DeviceId, DeviceInfo, Error, Fence, KernelParts, Kernels, Queue, Result, StepCtx,
    SwapLayer, SwapRows, Tensor, TransferQueue, reference, testing,
};

#[test]
fn a_swap_out_that_waits_for_nothing_takes_what_was_there_before() -> Result<()> {
    let mut swap = Swap::new()?;
    let start = swap.ctx.queue().fence()?;
    swap.ctx.write(&swap.layer.device, &[2_u8; 2])?;
    swap.out((0, 0), start.as_ref())?.wait()?;
    assert_eq!(swap.host_row_0()?, 1);
    swap.ctx.write(&swap.layer.device, &[2_u8; 2])?;
    let written = swap.ctx.queue().fence()?;
    swap.out((0, 0), written.as_ref())?;
    assert_eq!(swap.host_row_0()?, 2);
    Ok(())
}

#[test]
fn a_step_that_does_not_wait_for_a_swap_in_reads_what_was_there_before() -> Result<()> {
    let mut swap = Swap::new()?;
    let written = swap.ctx.queue().fence()?;
    swap.out((0, 0), written.as_ref())?;
    swap.ctx.write(&swap.layer.device.rows(1, 2), &[7_u8])?;
    let written = swap.ctx.queue().fence()?;
    let is_in = swap.back((1, 0), written.as_ref())?;
    assert_eq!(swap.ctx.read(&swap.layer.device)?.wait()?, [1, 7]);
    swap.ctx.queue().wait_for(is_in.as_ref())?;
    assert_eq!(swap.ctx.read(&swap.layer.device)?.wait()?, [1, 1]);
    Ok(())
}

#[test]
fn fences_and_swaps_are_refused_inside_a_step() -> Result<()> {
    let mut swap = Swap::new()?;
    let fence = swap.ctx.queue().fence()?;
    swap.ctx.queue().set_in_step(true);
    let is_refused = |error: Option<Error>| matches!(error, Some(Error::NotInStep { .. }));
    assert!(is_refused(swap.ctx.queue().fence().err()));
    assert!(is_refused(swap.ctx.queue().wait_for(fence.as_ref()).err()));
    assert!(is_refused(swap.out((0, 0), fence.as_ref()).err()));
    assert!(is_refused(swap.back((0, 0), fence.as_ref()).err()));
    assert!(is_refused(swap.kernels.device().host_memory(1).err()));
    swap.ctx.queue().set_in_step(false);
    Ok(())
}

#[test]
fn who_waits_for_failed_work_is_told_its_error() -> Result<()> {
    let mut swap = Swap::new()?;
    swap.ctx.queue().copy_rows(&swap.layer.device, &[(0, 9)])?;
    let failed = swap.ctx.queue().fence()?;
    let out = swap.out((0, 0), failed.as_ref())?;
    for fence in [failed, out] {
        assert!(matches!(fence.wait(), Err(Error::DeviceLost { .. })));
        assert!(matches!(fence.is_reached(), Err(Error::DeviceLost { .. })));
    }
    Ok(())
}

#[test]
fn a_fence_outlives_its_queue() -> Result<()> {
    let mut swap = Swap::new()?;
    let fence = swap.ctx.queue().fence()?;
    drop(swap);
    assert!(fence.is_reached()?);
    Ok(())
}

#[test]
#[should_panic(expected = "a tensor of the deferred device")]
fn kernels_refuse_memory_of_the_host() {
    let mut swap = Swap::new().expect("memory");
    let _ = swap.ctx.write(&swap.layer.host, &[0_u8; 2]);
}

#[test]
fn a_backend_that_does_not_wait_for_fences_is_noticed() {
    let kernels = testing::deferred(&reference::kernels());
    let parts = kernels.parts().clone();
    let device = Arc::new(Hasty(parts.device.clone()));
    let mut report = Report::new(RowIndependence::Bitwise);
    let hasty = Kernels::new(KernelParts { device, ..parts }).expect("the same device");
    conformance::swap(&hasty, &mut report);
    let failed: Vec<_> =
        report.ops().iter().filter(|op| op.num_failures > 0).map(|op| op.op.as_str()).collect();
    assert!(failed.contains(&"swap.out") && failed.contains(&"swap.in"), "{report}");
}

/// One layer of two rows of a byte, all 1, on a deferred device.
struct Swap {
    kernels: Kernels,
    ctx: StepCtx,
    transfers: Box<dyn TransferQueue>,
    layer: SwapLayer,
}

impl Swap {
    fn new() -> Result<Self> {
        let kernels = testing::deferred(&reference::kernels());
        let (device, dims) = (kernels.device(), [2, 1]);
        let host = Tensor::new(device.host_memory(2)?, 0, DType::U8, &dims);
        let layer = SwapLayer { device: kernels.upload(DType::U8, &dims, &[1_u8; 2])?, host };
        let (ctx, transfers) = (kernels.step_ctx(0)?, device.transfers()?);
        Ok(Self { kernels, ctx, transfers, layer })
    }

    fn out(&mut self, pair: (u32, u32), after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        let layers = std::slice::from_ref(&self.layer);
        self.transfers.swap_out(SwapRows { layers, pairs: &[pair] }, after)
    }

    fn back(&mut self, pair: (u32, u32), after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        let layers = std::slice::from_ref(&self.layer);
        self.transfers.swap_in(SwapRows { layers, pairs: &[pair] }, after)
    }

    /// Swaps it in to row 1 to see it.
    fn host_row_0(&mut self) -> Result<u8> {
        let after = self.ctx.queue().fence()?;
        self.back((1, 0), after.as_ref())?.wait()?;
        Ok(self.ctx.read(&self.layer.device.rows(1, 2))?.wait()?[0])
    }
}

/// A device whose transfers start at once.
#[derive(Debug)]
struct Hasty(Arc<dyn Device>);

impl Device for Hasty {
    fn id(&self) -> DeviceId {
        self.0.id()
    }

    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn free_bytes(&self) -> usize {
        self.0.free_bytes()
    }

    fn allocate(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.0.allocate(num_bytes)
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.0.queue()
    }

    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.0.host_memory(num_bytes)
    }

    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        let at_once = self.0.queue()?.fence()?;
        Ok(Box::new(HastyTransfers { inner: self.0.transfers()?, at_once }))
    }
}

struct HastyTransfers {
    inner: Box<dyn TransferQueue>,
    at_once: Arc<dyn Fence>,
}

impl TransferQueue for HastyTransfers {
    fn swap_out(&mut self, rows: SwapRows<'_>, _: &dyn Fence) -> Result<Arc<dyn Fence>> {
        self.inner.swap_out(rows, self.at_once.as_ref())
    }

    fn swap_in(&mut self, rows: SwapRows<'_>, _: &dyn Fence) -> Result<Arc<dyn Fence>> {
        self.inner.swap_in(rows, self.at_once.as_ref())
    }
}
