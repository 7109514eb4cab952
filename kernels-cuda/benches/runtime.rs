//! What the runtime costs: copies to the device, small writes, reads, launches. Needs a GPU, and says so without.
#![allow(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use quire_kernels::{DType, Device, Kernels, Result, StepCtx, SwapLayer, SwapRows, Tensor};
use quire_kernels_cuda::{CudaConfig, kernels};

fn main() -> Result<(), Box<dyn Error>> {
    let kernels = match kernels(CudaConfig::default()) {
        Ok(kernels) => kernels,
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    println!("{}", kernels.device().info().name);
    large_copies(&kernels)?;
    a_mapped_file(&kernels)?;
    small_writes(&kernels)?;
    reads(&kernels)?;
    row_copies(&kernels)?;
    swaps(&kernels)?;
    launches(&kernels)?;
    Ok(())
}

fn tensor(device: &dyn Device, dims: &[usize]) -> Result<Tensor> {
    Ok(Tensor::new(device.allocate(dims.iter().product())?, 0, DType::U8, dims))
}

/// The median of some runs.
fn median(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut times = (0..runs).map(|_| {
        let start = Instant::now();
        run().map(|()| start.elapsed())
    });
    let mut times = times.by_ref().collect::<Result<Vec<_>>>()?;
    times.sort();
    Ok(times[runs / 2])
}

fn large_copies(kernels: &Kernels) -> Result<()> {
    let device = kernels.device();
    let mut queue = device.queue()?;
    for num_bytes in [16 << 20, 32 << 20, 128 << 20, 1 << 30] {
        let bytes: Vec<u8> = (0..num_bytes).map(|i| i as u8).collect();
        let dst = tensor(device.as_ref(), &[num_bytes])?;
        let first = median(1, || queue.write(&dst, &bytes))?;
        let time = median(7, || queue.write(&dst, &bytes))?;
        let rate = |time: Duration| num_bytes as f64 / time.as_secs_f64() / 1e9;
        println!(
            "to the device, {:>4} MiB: {:5.1} GB/s, the first time {:5.1}",
            num_bytes >> 20,
            rate(time),
            rate(first)
        );
    }
    Ok(())
}

/// What a checkpoint is: pages that are in memory, and that this process has not touched.
fn a_mapped_file(kernels: &Kernels) -> Result<(), Box<dyn Error>> {
    let num_bytes = 1 << 30;
    let file = tempfile::tempfile()?;
    (&file).write_all(&vec![1; num_bytes])?;
    let dst = tensor(kernels.device().as_ref(), &[num_bytes])?;
    let mut queue = kernels.device().queue()?;
    let time = median(3, || {
        // SAFETY: the file has no name, so nobody changes it.
        let bytes = unsafe { memmap2::Mmap::map(&file) }.expect("a file of this process can be mapped");
        queue.write(&dst, &bytes)
    })?;
    println!("to the device, from a mapped file: {:5.1} GB/s", num_bytes as f64 / time.as_secs_f64() / 1e9);
    kernels.device().finish_loading();
    Ok(())
}

fn small_writes(kernels: &Kernels) -> Result<()> {
    let device = kernels.device();
    let mut queue = device.queue()?;
    let targets = tensor(device.as_ref(), &[12, 4096])?;
    for num_bytes in [64, 1024, 4096] {
        let bytes = vec![1u8; num_bytes];
        let step = |queue: &mut dyn quire_kernels::Queue| -> Result<()> {
            (0..12).try_for_each(|i| queue.write(&targets.rows(i, i + 1).columns(0, num_bytes), &bytes))
        };
        let enqueued = median(101, || step(queue.as_mut()))?;
        queue.synchronize()?;
        let done = median(101, || step(queue.as_mut()).and_then(|()| queue.synchronize()))?;
        println!("12 writes of {num_bytes:>4} bytes: {enqueued:?} enqueued, {done:?} done");
    }
    let nothing = median(101, || queue.synchronize())?;
    println!("synchronize an idle queue: {nothing:?}");
    Ok(())
}

fn reads(kernels: &Kernels) -> Result<()> {
    let device = kernels.device();
    let mut queue = device.queue()?;
    for num_bytes in [1024, 1 << 20, 64 << 20] {
        let src = tensor(device.as_ref(), &[num_bytes])?;
        let time = median(21, || {
            black_box(queue.read(&src)?.wait()?);
            Ok(())
        })?;
        println!("read {num_bytes:>8} bytes: {time:?}");
    }
    Ok(())
}

fn row_copies(kernels: &Kernels) -> Result<()> {
    let device = kernels.device();
    let mut queue = device.queue()?;
    let row_bytes = 2 << 20;
    let rows = tensor(device.as_ref(), &[2048, row_bytes])?;
    for num_pairs in [1, 16, 1024] {
        let pairs: Vec<(u32, u32)> = (0..num_pairs).map(|i| (i, 1024 + i)).collect();
        let time = median(21, || {
            queue.copy_rows(&rows, &pairs)?;
            queue.synchronize()
        })?;
        let small = rows.rows(0, 1).columns(0, 1024);
        let read = median(21, || {
            queue.copy_rows(&rows, &pairs)?;
            black_box(queue.read(&small)?.wait()?);
            Ok(())
        })?;
        let moved = 2.0 * f64::from(num_pairs) * row_bytes as f64;
        println!(
            "copy {num_pairs:>4} rows of 2 MiB: {time:?}, {:.0} GB/s read and written; with a read behind {read:?}",
            moved / time.as_secs_f64() / 1e9
        );
    }
    Ok(())
}

/// Small kernels, one by one and recorded.
/// Blocks of a model of 28 layers (16 tokens, 4 heads of 128, bf16: 32 KiB in each), as they follow each other.
fn swaps(kernels: &Kernels) -> Result<()> {
    const NUM_ROWS: usize = 2048;
    const NUM_HOST_ROWS: usize = 512;
    let (device, row_bytes) = (kernels.device(), 32 << 10);
    let start = Instant::now();
    let space = device.host_memory(28 * NUM_HOST_ROWS * row_bytes)?;
    println!("pin {} MiB: {:?}", (28 * NUM_HOST_ROWS * row_bytes) >> 20, start.elapsed());
    let layer = |i: usize| {
        let host_dims = [NUM_HOST_ROWS, row_bytes];
        let host = Tensor::new(space.clone(), i * NUM_HOST_ROWS * row_bytes, DType::U8, &host_dims);
        Ok(SwapLayer { device: tensor(device.as_ref(), &[NUM_ROWS, row_bytes])?, host })
    };
    let layers = (0..28).map(layer).collect::<Result<Vec<_>>>()?;
    let (mut queue, mut transfers) = (device.queue()?, device.transfers()?);
    for (num_rows, run) in
        [(1, 1), (32, 1), (32, 2), (32, 3), (32, 4), (32, 8), (32, 32), (512, 1), (512, 512)]
    {
        let pair = |i: u32| ((i + i / run) % NUM_ROWS as u32, i);
        let pairs: Vec<(u32, u32)> = (0..num_rows).map(pair).collect();
        let rows = SwapRows { layers: &layers, pairs: &pairs };
        let after = queue.fence()?;
        let mut enqueued = Duration::ZERO;
        let mut timed = |out: bool| {
            median(9, || {
                let start = Instant::now();
                let after = after.as_ref();
                let fence =
                    if out { transfers.swap_out(rows, after)? } else { transfers.swap_in(rows, after)? };
                enqueued = start.elapsed();
                fence.wait()
            })
        };
        let (out, back) = (timed(true)?, timed(false)?);
        let rate = |time: Duration| (pairs.len() * 28 * row_bytes) as f64 / time.as_secs_f64() / 1e9;
        println!(
            "swap {num_rows:>3} blocks in runs of {run:>3}: out {out:?} ({:.1} GB/s), in {back:?} ({:.1} GB/s), \
             enqueued in {enqueued:?}",
            rate(out),
            rate(back)
        );
    }
    Ok(())
}

fn launches(kernels: &Kernels) -> Result<()> {
    let mut ctx = kernels.step_ctx(1 << 20)?;
    let info = kernels.device().info();
    let x = kernels.upload(info.activation_dtype, &[1, 64], &[0u16; 64])?;
    let sum = kernels.upload(info.residual_dtype, &[1, 64], &[0f32; 64])?;
    let hundred = |ctx: &mut StepCtx| (0..100).try_for_each(|_| kernels.norm().add(ctx, &x, &sum));
    let graph = ctx.capture(hundred)?.expect("a CUDA device has graphs");
    let time = median(21, || ctx.step(hundred))?;
    ctx.synchronize()?;
    println!("launch a kernel: {:?}", time / 100);
    let time = median(21, || ctx.launch(graph.as_ref()))?;
    ctx.synchronize()?;
    println!("launch a graph: {time:?}");
    let time = median(21, || ctx.launch(graph.as_ref()).and_then(|()| ctx.synchronize()))?;
    println!("run a graph of 100 small kernels: {time:?}; it takes {} bytes", graph.num_bytes());
    Ok(())
}
