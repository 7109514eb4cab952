//! Memory and queues of a CUDA device, on a GPU.
#![cfg(feature = "cuda")]

mod gpu;

use std::sync::Arc;
use std::thread;

use quire_kernels::{DType, Device, Error, Kernels, Tensor};
use quire_kernels_cuda::{CudaConfig, kernels};

fn open() -> Option<Kernels> {
    gpu::open(|| kernels(CudaConfig::default()))
}

fn bytes(device: &dyn Device, dims: &[usize]) -> Tensor {
    let num_bytes = dims.iter().product();
    Tensor::new(device.allocate(num_bytes).expect("memory"), 0, DType::U8, dims)
}

/// SplitMix64, for inputs.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn the_device_says_what_it_is() {
    let Some(kernels) = open() else { return };
    let info = kernels.device().info().clone();
    assert_eq!((info.backend.as_str(), info.activation_dtype), ("cuda", DType::BF16));
    assert!(info.name.contains("compute capability"), "{}", info.name);
    assert!(info.total_bytes > 1 << 30 && kernels.device().free_bytes() <= info.total_bytes);
    println!("{}: {} of {} bytes free", info.name, kernels.device().free_bytes(), info.total_bytes);
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_its_number() {
    if open().is_none() {
        return;
    }
    let error = kernels(CudaConfig { ordinal: 1000, ..CudaConfig::default() }).err().expect("no such device");
    assert!(error.to_string().contains("no CUDA device 1000"), "{error}");
}

#[test]
fn a_reservation_is_all_that_there_is() {
    let Some(kernels) = open() else { return };
    let device = kernels.device();
    let before = device.free_bytes();
    device.reserve(64 << 20).unwrap();
    assert!(device.free_bytes() >= 64 << 20, "an unused reservation may be replaced by all there is");
    let num_allocations = device.num_allocations();
    let first = device.allocate(48 << 20).unwrap();
    match device.allocate(17 << 20).unwrap_err() {
        Error::OutOfMemory { wanted_bytes, free_bytes, .. } => {
            assert_eq!((wanted_bytes, free_bytes), (17 << 20, 16 << 20));
        }
        error => panic!("{error}"),
    }
    assert!(device.reserve(1 << 20).is_err(), "a reservation in use stays");
    drop(first);
    let whole = device.allocate(64 << 20).unwrap();
    assert_eq!((device.free_bytes(), device.num_allocations() - num_allocations), (0, 3));
    drop(whole);
    device.reserve(1 << 20).unwrap();
    assert!(device.allocate(2 << 20).is_err(), "the new reservation is all that there is");
    println!("{before} bytes were free");
}

#[test]
fn memory_that_is_used_again_is_zero_and_no_work_under_way_touches_it() {
    let Some(kernels) = open() else { return };
    let device = kernels.device();
    device.reserve(32 << 20).unwrap();
    let mut queue = device.queue().unwrap();
    for round in 0..20 {
        let used = bytes(device.as_ref(), &[32 << 20]);
        let row = used.rows(0, 4 << 20);
        let pattern = vec![0xa5 + round; 4 << 20];
        for _ in 0..4 {
            queue.write(&row, &pattern).unwrap();
        }
        drop((row, used));
        let again = bytes(device.as_ref(), &[4 << 20]);
        let read = queue.read(&again).unwrap().wait().unwrap();
        assert!(read.iter().all(|&b| b == 0), "round {round}");
    }
}

#[test]
fn a_tensor_may_be_dropped_before_what_was_written_to_it_is_there() {
    let Some(kernels) = open() else { return };
    let device = kernels.device();
    let mut queue = device.queue().unwrap();
    for reserved in [None, Some(1 << 20)] {
        reserved.map(|num_bytes| device.reserve(num_bytes)).transpose().unwrap();
        for i in 0..100 {
            queue.write(&bytes(device.as_ref(), &[1 << (i % 16)]), &vec![1; 1 << (i % 16)]).unwrap();
        }
        queue.synchronize().unwrap();
        let again = bytes(device.as_ref(), &[1 << 16]);
        assert_eq!(queue.read(&again).unwrap().wait().unwrap(), vec![0; 1 << 16]);
    }
}

#[test]
fn an_allocation_that_cannot_be_is_refused_with_numbers() {
    let Some(kernels) = open() else { return };
    match kernels.device().allocate(1 << 50).unwrap_err() {
        Error::OutOfMemory { device, wanted_bytes, free_bytes } => {
            assert_eq!((device.as_str(), wanted_bytes), ("cuda:0", 1 << 50));
            assert!(free_bytes > 0);
        }
        error => panic!("{error}"),
    }
}

/// Against the same operations on the host.
#[test]
fn writes_copies_and_reads_happen_in_order() {
    let Some(kernels) = open() else { return };
    let device = kernels.device();
    for (seed, width) in [(1, 1), (2, 16), (3, 37), (4, 4096), (5, 40_000), (6, 65_536)] {
        let mut rng = Rng(seed);
        let num_rows = 50;
        let tensor = bytes(device.as_ref(), &[num_rows, width]);
        let mut model = vec![0u8; num_rows * width];
        let mut queue = device.queue().unwrap();
        let mut reads = Vec::new();
        for _ in 0..400 {
            let (start, length) = (rng.below(num_rows), 1 + rng.below(5));
            let end = (start + length).min(num_rows);
            match rng.below(4) {
                0 | 1 => {
                    let values = rng.bytes((end - start) * width);
                    queue.write(&tensor.rows(start, end), &values).unwrap();
                    model[start * width..end * width].copy_from_slice(&values);
                }
                2 => {
                    let pairs = [(start as u32, ((start + 7) % num_rows) as u32)];
                    queue.copy_rows(&tensor, &pairs).unwrap();
                    let (from, to) = (pairs[0].0 as usize, pairs[0].1 as usize);
                    model.copy_within(from * width..(from + 1) * width, to * width);
                }
                _ => {
                    let read = queue.read(&tensor.rows(start, end)).unwrap();
                    reads.push((read, model[start * width..end * width].to_vec()));
                }
            }
        }
        // Some are dropped, the others are waited for on other threads.
        let reads: Vec<_> =
            reads.into_iter().enumerate().filter(|(i, _)| i % 5 != 0).map(|(_, r)| r).collect();
        thread::scope(|scope| {
            for (read, expected) in reads {
                scope.spawn(move || assert!(read.wait().unwrap() == expected, "rows of {width} bytes"));
            }
        });
        let all = queue.read(&tensor).unwrap().wait().unwrap();
        assert!(all == model, "rows of {width} bytes");
    }
}

#[test]
fn a_write_of_any_size_arrives_whole() {
    let Some(kernels) = open() else { return };
    let device = kernels.device();
    let mut queue = device.queue().unwrap();
    let mut rng = Rng(9);
    for num_bytes in [1, 15, 17, 100_003, (1 << 20) + 1, 5 << 20, (100 << 20) + 13] {
        let tensor = bytes(device.as_ref(), &[num_bytes]);
        let mut values = vec![0u8; num_bytes];
        for value in values.iter_mut().step_by(if num_bytes > 1 << 20 { 509 } else { 1 }) {
            *value = rng.next() as u8;
        }
        queue.write(&tensor, &values).unwrap();
        assert!(queue.read(&tensor).unwrap().wait().unwrap() == values, "{num_bytes} bytes");
    }
}

#[test]
fn queues_of_two_threads_do_not_disturb_each_other() {
    let Some(kernels) = open() else { return };
    let device = kernels.device();
    thread::scope(|scope| {
        for seed in 0..4 {
            let device = Arc::clone(device);
            scope.spawn(move || {
                let mut rng = Rng(seed);
                let mut queue = device.queue().unwrap();
                for _ in 0..50 {
                    let num_bytes = 1 + rng.below(1 << 18);
                    let tensor = bytes(device.as_ref(), &[num_bytes]);
                    let values = rng.bytes(num_bytes);
                    queue.write(&tensor, &values).unwrap();
                    assert!(queue.read(&tensor).unwrap().wait().unwrap() == values);
                }
            });
        }
    });
}

#[test]
fn a_recording_takes_nothing_from_the_host() {
    let Some(kernels) = open() else { return };
    let tensor = bytes(kernels.device().as_ref(), &[4, 64]);
    let mut ctx = kernels.step_ctx(1 << 20).unwrap();
    let refused = |ctx: &mut quire_kernels::StepCtx| {
        assert!(matches!(ctx.write(&tensor, &[1u8; 256]), Err(Error::NotInStep { .. })));
        assert!(matches!(ctx.read(&tensor), Err(Error::NotInStep { .. })));
        assert!(matches!(ctx.queue().copy_rows(&tensor, &[(0, 1)]), Err(Error::NotInStep { .. })));
        Ok(())
    };
    let graph = ctx.capture(refused).unwrap().expect("a CUDA device has graphs");
    ctx.launch(graph.as_ref()).unwrap();
    let failed = ctx.capture(|_| Err(Error::NotInStep { operation: "test" }));
    assert!(matches!(failed, Err(Error::NotInStep { operation: "test" })));
    // Both recordings are over.
    ctx.write(&tensor, &[7u8; 256]).unwrap();
    assert_eq!(ctx.read(&tensor).unwrap().wait().unwrap(), [7; 256]);
}
