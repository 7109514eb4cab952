//! Looking for numbers that are none.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_kernels::{DType, quant};

use super::Depth;
use crate::checkpoint::{Checkpoint, StoredPart, TensorSpec};
use crate::error::Error;

/// Elements looked at in one go.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// How much of the weights was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Tensors that were looked into.
    pub num_tensors: usize,
    /// Bytes of them that were read.
    pub num_bytes: u64,
}

/// Reads tensors, on all cores, and adds an error for each that holds NaN or infinity.
pub(super) fn scan(
    checkpoint: &Checkpoint,
    specs: &[&TensorSpec],
    depth: Depth,
    errors: &mut Vec<Error>,
) -> ScanSummary {
    if depth == Depth::Headers {
        return ScanSummary::default();
    }
    let num_bytes = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    let queue = Mutex::new(specs.iter().enumerate());
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                loop {
                    // The lock is released before the work starts.
                    let next = queue.lock().expect("taking a tensor cannot panic").next();
                    let Some((at, spec)) = next else { break };
                    for part in checkpoint.stored_parts(spec) {
                        let (read, bad) = look_at(&part, depth);
                        num_bytes.fetch_add(read, Ordering::Relaxed);
                        if let Some(error) = bad {
                            found.lock().expect("adding an error cannot panic").push((at, error));
                        }
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().expect("the threads have ended well");
    found.sort_by_key(|(at, _)| *at);
    errors.extend(found.into_iter().map(|(_, error)| error));
    ScanSummary { num_tensors: specs.len(), num_bytes: num_bytes.into_inner() }
}

/// Bytes read, and what is wrong.
fn look_at(part: &StoredPart, depth: Depth) -> (u64, Option<Error>) {
    if !(part.dtype.is_float() || part.dtype.is_quantized()) {
        return (0, None);
    }
    let (mut num_bytes, mut num_bad, mut first) = (0, 0, None);
    for place in places(part, depth) {
        let bytes = part.elements(&place);
        num_bytes += bytes.len() as u64;
        if all_finite(part.dtype, bytes) {
            continue;
        }
        for (at, value) in quant::decode(part.dtype, bytes).into_iter().enumerate() {
            if !value.is_finite() {
                num_bad += 1;
                first.get_or_insert((place.start + at, value));
            }
        }
    }
    let error = first.map(|(at, value)| Error::NotFinite {
        tensor: part.name.clone(),
        path: part.path.clone(),
        value,
        at: at as u64,
        num_bad,
        num_bytes: part.bytes.len() as u64,
    });
    (num_bytes, error)
}

/// What is read, in elements; whole blocks.
fn places(part: &StoredPart, depth: Depth) -> Vec<Range<usize>> {
    match depth {
        Depth::Full => part.runs(CHUNK_ELEMENTS, CHUNK_ELEMENTS),
        _ => part.samples(),
    }
}

/// The quick look at floats: an exponent of all ones is infinite or NaN.
fn all_finite(dtype: DType, bytes: &[u8]) -> bool {
    let halves = |mask: u16| {
        bytes.as_chunks::<2>().0.iter().fold(true, |ok, raw| ok & (u16::from_le_bytes(*raw) & mask != mask))
    };
    match dtype {
        DType::BF16 => halves(0x7f80),
        DType::F16 => halves(0x7c00),
        DType::F32 => bytes
            .as_chunks::<4>()
            .0
            .iter()
            .fold(true, |ok, raw| ok & (u32::from_le_bytes(*raw) & 0x7f80_0000 != 0x7f80_0000)),
        _ => false,
    }
}
