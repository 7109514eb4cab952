//! Host memory behind tensors, and reading and writing it element by element.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::{Buffer, DType, DeviceId, Tensor, quant};

/// How much memory is taken, of how much.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) total_bytes: usize,
    used_bytes: AtomicUsize,
}

impl Account {
    pub(super) fn new(total_bytes: usize) -> Self {
        Self { total_bytes, used_bytes: AtomicUsize::new(0) }
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.total_bytes - self.used_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, num_bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(num_bytes).filter(|&sum| sum <= self.total_bytes);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// A run of host memory.
pub(super) struct HostBuffer {
    bytes: RwLock<Vec<u8>>,
    num_bytes: usize,
    device: DeviceId,
    account: Arc<Account>,
}

impl HostBuffer {
    /// Zero-filled memory, or `None` where the account does not cover it.
    pub(super) fn new(device: DeviceId, account: &Arc<Account>, num_bytes: usize) -> Option<Self> {
        account.take(num_bytes).then(|| Self {
            bytes: RwLock::new(vec![0; num_bytes]),
            num_bytes,
            device,
            account: account.clone(),
        })
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.account.used_bytes.fetch_sub(self.num_bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes on {})", self.num_bytes, self.device)
    }
}

impl Buffer for HostBuffer {
    fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    fn device(&self) -> DeviceId {
        self.device
    }
}

/// The bytes of a tensor, the gaps between its rows left out.
pub(super) fn load_bytes(tensor: &Tensor) -> Vec<u8> {
    let memory = host(tensor).bytes.read();
    row_ranges(tensor).flat_map(|range| &memory[range]).copied().collect()
}

/// Overwrites the bytes of a tensor, the gaps between its rows left alone.
pub(super) fn store_bytes(tensor: &Tensor, bytes: &[u8]) {
    let mut memory = host(tensor).bytes.write();
    let mut rest = bytes;
    for range in row_ranges(tensor) {
        let (row, tail) = rest.split_at(range.len());
        memory[range].copy_from_slice(row);
        rest = tail;
    }
    assert!(rest.is_empty(), "as many bytes as {tensor:?} holds");
}

/// The elements as f64.
pub(super) fn load(tensor: &Tensor) -> Vec<f64> {
    quant::decode(tensor.dtype(), &load_bytes(tensor)).into_iter().map(f64::from).collect()
}

/// Writes the elements, each rounded to the tensor's dtype.
pub(super) fn store(tensor: &Tensor, values: &[f64]) {
    let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
    store_bytes(tensor, &quant::encode(tensor.dtype(), &values));
}

/// The elements of an I32 tensor.
pub(super) fn load_i32(tensor: &Tensor) -> Vec<i32> {
    assert_eq!(tensor.dtype(), DType::I32, "indices and counts are I32");
    bytemuck::allocation::pod_collect_to_vec(&load_bytes(tensor))
}

/// Writes the elements of an I32 tensor.
pub(super) fn store_i32(tensor: &Tensor, values: &[i32]) {
    assert_eq!(tensor.dtype(), DType::I32, "indices and counts are I32");
    store_bytes(tensor, bytemuck::cast_slice(values));
}

/// Applies `f` to every row, each with its number, and writes what it returns to the same row of `out`.
pub(super) fn map_rows(x: &Tensor, out: &Tensor, f: impl Fn(usize, &[f64]) -> Vec<f64>) {
    let values = load(x);
    let columns = x.num_columns().max(1);
    let results: Vec<f64> = values.chunks(columns).enumerate().flat_map(|(i, row)| f(i, row)).collect();
    store(out, &results);
}

fn host(tensor: &Tensor) -> &HostBuffer {
    let buffer: &dyn Any = tensor.buffer().as_ref();
    buffer.downcast_ref().expect("a tensor of the reference device")
}

fn row_ranges(tensor: &Tensor) -> impl Iterator<Item = Range<usize>> {
    let bytes_for = |n: usize| tensor.dtype().bytes_for(n).expect("a row holds whole blocks");
    let (start, length) = (tensor.offset_bytes(), bytes_for(tensor.num_columns()));
    let stride = bytes_for(tensor.row_stride());
    (0..tensor.num_rows()).map(move |row| start + row * stride..start + row * stride + length)
}
