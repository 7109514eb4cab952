//! A device that fails while it works. In a file of its own, since the process loses the device for good.
#![cfg(feature = "cuda")]

mod gpu;

use quire_kernels::{DType, Error, Result, Tensor};
use quire_kernels_cuda::{CudaConfig, kernels, testing};

fn assert_lost<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::DeviceLost { device, reason }) => {
            println!("{what}: {reason}");
            assert_eq!(device, "cuda:0");
            assert!(reason.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{what}: {reason}");
        }
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} succeeded on a lost device"),
    }
}

#[test]
fn everything_on_a_lost_device_fails_with_its_error_and_nothing_hangs() {
    let Some(kernels) = gpu::open(|| kernels(CudaConfig::default())) else { return };
    let device = kernels.device().clone();
    let tensor = Tensor::new(device.allocate(1 << 20).unwrap(), 0, DType::U8, &[1 << 20]);
    let mut ctx = kernels.step_ctx(1 << 20).unwrap();
    let graph = ctx.capture(|_| Ok(())).unwrap().expect("a CUDA device has graphs");
    ctx.write(&tensor, &vec![1u8; 1 << 20]).unwrap();
    let finished = ctx.read(&tensor).unwrap();
    ctx.synchronize().unwrap();

    assert_lost("the kernel at fault", testing::lose_device(&kernels));
    // The copy was over before; whether the driver still says so is its business.
    if let Ok(bytes) = finished.wait() {
        assert_eq!(bytes, vec![1; 1 << 20]);
    }
    assert_lost("synchronize", ctx.synchronize());
    for (what, num_bytes) in
        [("a small write", 100), ("a write", 1 << 18), ("more than the ring holds", 7 << 20)]
    {
        let outcome = (0..4).try_for_each(|_| {
            let rows = tensor.rows(0, num_bytes.min(1 << 20));
            ctx.write(&rows, &vec![2u8; rows.span_bytes()])?;
            ctx.synchronize()
        });
        assert_lost(what, outcome);
    }
    assert_lost("a read", ctx.read(&tensor).and_then(|read| read.wait()));
    let rows = Tensor::new(tensor.buffer().clone(), 0, DType::U8, &[16, 1 << 16]);
    assert_lost("a copy", ctx.queue().copy_rows(&rows, &[(0, 1)]));
    assert_lost("a graph", ctx.launch(graph.as_ref()).and_then(|()| ctx.synchronize()));
    assert_lost("an allocation", device.allocate(100));
    assert_lost("a queue", device.queue().and_then(|mut queue| queue.synchronize()));
    drop((ctx, graph, rows, tensor));
}
