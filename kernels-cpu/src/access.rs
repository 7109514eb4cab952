//! How kernels reach the bytes of tensors.
//!
//! A [`Session`] is the right to work on a device: one exists at a time. [`Session::open`] turns the tensors of
//! one operation into views, after checking that each lies in a buffer of this device and that no output shares
//! an element with another tensor of the call; the views borrow the session, so they are gone before the next
//! ones are made. Hence no safe caller of a kernel can make two operations, or one operation with itself, alias.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use bytemuck::Pod;
use half::{bf16, f16};
use parking_lot::MutexGuard;
use quire_kernels::{DType, DeviceId, Tensor};

use crate::buffer::CpuBuffer;
use crate::pool::Pool;

/// The exclusive right to the buffers and the threads of a device. Taking a second one on the same thread
/// blocks for ever.
pub(crate) struct Session<'d> {
    pool: MutexGuard<'d, Pool>,
    device: DeviceId,
}

impl<'d> Session<'d> {
    pub(crate) fn new(pool: MutexGuard<'d, Pool>, device: DeviceId) -> Self {
        Self { pool, device }
    }

    /// The threads.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The threads, and views of the tensors that one operation reads and writes. What is updated in place is an
    /// output.
    ///
    /// # Panics
    ///
    /// Where an output overlaps another tensor of the call, or a tensor is not of this device.
    pub(crate) fn open<'v, const R: usize, const W: usize>(
        &'v mut self,
        inputs: [&'v Tensor; R],
        outputs: [&'v Tensor; W],
    ) -> (&'v Pool, [View<'v>; R], [ViewMut<'v>; W]) {
        for (i, out) in outputs.iter().enumerate() {
            let others = inputs.iter().chain(&outputs[i + 1..]);
            for other in others {
                assert!(!out.overlaps(other), "output {out:?} overlaps {other:?}");
            }
        }
        let inputs = inputs.map(|tensor| View { start: self.start_of(tensor), tensor });
        let outputs = outputs.map(|tensor| ViewMut { start: self.start_of(tensor), tensor });
        (&self.pool, inputs, outputs)
    }

    /// The address of the tensor's first element.
    fn start_of(&self, tensor: &Tensor) -> *mut u8 {
        let any: &dyn std::any::Any = tensor.buffer().as_ref();
        let buffer = any.downcast_ref::<CpuBuffer>().expect("a tensor of the CPU backend");
        let bytes = quire_kernels::Buffer::num_bytes(buffer);
        assert_eq!(quire_kernels::Buffer::device(buffer), self.device, "{tensor:?} is of another device");
        let end = tensor.offset_bytes().checked_add(tensor.span_bytes());
        // A slice of the columns of no rows starts behind what is not there.
        let is_inside = tensor.num_elements() == 0 || end.is_some_and(|end| end <= bytes);
        assert!(is_inside, "{tensor:?} leaves its buffer");
        assert!(tensor.row_stride() >= tensor.num_columns() || tensor.num_rows() <= 1, "rows overlap");
        buffer.start().wrapping_add(tensor.offset_bytes())
    }
}

/// A Rust type that holds an element of a tensor: `f32`, `f16`, `bf16`, `i8`, `u8`, `i32`, `u32`, `i64`.
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The dtype whose elements it holds.
    const DTYPE: DType;
}

/// A view reads memory as the type that the dtype promises, so nobody else may pair the two.
mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type { const DTYPE: DType = DType::$dtype; }
    )* };
}

elements!(f32 => F32, f16 => F16, bf16 => BF16, i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64);

/// An input of the open operation.
#[derive(Clone, Copy)]
pub struct View<'v> {
    start: *const u8,
    tensor: &'v Tensor,
}

impl<'v> View<'v> {
    /// Its rows.
    ///
    /// # Panics
    ///
    /// Where the elements are not of type `T`.
    pub fn rows<T: Element>(self) -> Rows<'v, T> {
        check_type::<T>(self.tensor, self.start);
        Rows { start: self.start.cast(), shape: Shape::of(self.tensor), lives: PhantomData }
    }

    /// The elements of a contiguous tensor.
    ///
    /// # Panics
    ///
    /// Where the elements are not of type `T` or not contiguous.
    pub fn slice<T: Element>(self) -> &'v [T] {
        check_type::<T>(self.tensor, self.start);
        assert!(self.tensor.is_contiguous(), "{:?} is no contiguous tensor", self.tensor);
        // SAFETY: the elements lie in a buffer of the session's device, which the borrowed session and tensor
        // keep alive and unwritten (no output overlaps them); they are aligned, and initialized since
        // allocation, and every bit pattern is a `T`.
        unsafe { slice::from_raw_parts(self.start.cast(), self.tensor.num_elements()) }
    }
}

/// An output of the open operation.
pub struct ViewMut<'v> {
    start: *mut u8,
    tensor: &'v Tensor,
}

impl<'v> ViewMut<'v> {
    /// Its rows.
    ///
    /// # Panics
    ///
    /// Where the elements are not of type `T`.
    pub fn rows<T: Element>(self) -> RowsMut<'v, T> {
        check_type::<T>(self.tensor, self.start);
        RowsMut { start: self.start.cast(), shape: Shape::of(self.tensor), lives: PhantomData }
    }

    /// The elements of a contiguous tensor.
    ///
    /// # Panics
    ///
    /// Where the elements are not of type `T` or not contiguous.
    pub fn slice<T: Element>(self) -> &'v mut [T] {
        check_type::<T>(self.tensor, self.start);
        assert!(self.tensor.is_contiguous(), "{:?} is no contiguous tensor", self.tensor);
        // SAFETY: as in `View::slice`; no other view of the session overlaps an output, and `self` is consumed.
        unsafe { slice::from_raw_parts_mut(self.start.cast(), self.tensor.num_elements()) }
    }
}

fn check_type<T: Element>(tensor: &Tensor, start: *const u8) {
    assert_eq!(tensor.dtype(), T::DTYPE, "elements of {tensor:?}");
    assert!(start.cast::<T>().is_aligned(), "{tensor:?} does not start at a multiple of its element size");
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
    stride: usize,
}

impl Shape {
    fn of(tensor: &Tensor) -> Self {
        Self { rows: tensor.num_rows(), columns: tensor.num_columns(), stride: tensor.row_stride() }
    }

    /// Elements before the row.
    fn offset(&self, row: usize) -> usize {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        row * self.stride
    }
}

/// The rows of an input.
#[derive(Clone, Copy)]
pub struct Rows<'v, T> {
    start: *const T,
    shape: Shape,
    lives: PhantomData<&'v [T]>,
}

// SAFETY: stands for shared slices of `T`.
unsafe impl<T: Sync> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}

impl<'v, T: Element> Rows<'v, T> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.shape.rows
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shape.rows == 0
    }

    /// A row.
    ///
    /// # Panics
    ///
    /// Where there is no such row.
    pub fn row(&self, row: usize) -> &'v [T] {
        // SAFETY: the row exists, so it lies in the tensor; see `View::slice` for the rest.
        unsafe { slice::from_raw_parts(self.start.add(self.shape.offset(row)), self.shape.columns) }
    }
}

/// The rows of an output.
pub struct RowsMut<'v, T> {
    start: *mut T,
    shape: Shape,
    lives: PhantomData<&'v mut [T]>,
}

// SAFETY: stands for exclusive slices of `T`.
unsafe impl<T: Send> Send for RowsMut<'_, T> {}
// SAFETY: a shared `RowsMut` gives shared slices only, but for `slice_mut`, whose caller answers for it.
unsafe impl<T: Send + Sync> Sync for RowsMut<'_, T> {}

impl<T: Element> RowsMut<'_, T> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.shape.rows
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// Its rows, to be read.
    pub fn as_rows(&self) -> Rows<'_, T> {
        Rows { start: self.start, shape: self.shape, lives: PhantomData }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shape.rows == 0
    }

    /// A row.
    ///
    /// # Panics
    ///
    /// Where there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        let columns = 0..self.shape.columns;
        // SAFETY: `self` is borrowed exclusively, so no other slice of it is alive.
        unsafe { self.slice_mut(row, columns) }
    }

    /// Calls `f` with every row, on all threads of the pool; `grain` rows at least go to a thread at a time.
    pub(crate) fn for_each<F: Fn(usize, &mut [T]) + Sync>(&mut self, pool: &Pool, grain: usize, f: F) {
        let rows = &*self;
        pool.for_each(rows.len(), grain, |range| {
            for row in range {
                // SAFETY: `self` is borrowed exclusively, and the pool visits each row once.
                f(row, unsafe { rows.slice_mut(row, 0..rows.columns()) });
            }
        });
    }

    /// A part of a row, for kernels whose threads share out an output in their own way.
    ///
    /// # Safety
    ///
    /// While the slice lives, no other slice of this output that shares an element with it does.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice_mut(&self, row: usize, columns: Range<usize>) -> &mut [T] {
        assert!(columns.start <= columns.end && columns.end <= self.shape.columns, "{columns:?} of a row");
        // SAFETY: row and columns exist, so the slice lies in the tensor; see `View::slice` for memory and
        // alignment. That nothing else aliases it is the caller's promise within this output, and
        // `Session::open`'s beyond it.
        unsafe {
            let start = self.start.add(self.shape.offset(row) + columns.start);
            slice::from_raw_parts_mut(start, columns.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use quire_kernels::Device;

    use super::*;
    use crate::device::CpuDevice;

    fn matrix(device: &CpuDevice, rows: usize, columns: usize) -> Tensor {
        Tensor::new(device.allocate(4 * rows * columns).unwrap(), 0, DType::F32, &[rows, columns])
    }

    #[test]
    fn column_slices_of_one_matrix_are_an_input_and_an_output() {
        let device = CpuDevice::new(2, crate::Isa::Scalar).unwrap();
        let qkv = matrix(&device, 3, 6);
        let (q, k) = (qkv.columns(0, 4), qkv.columns(4, 6));
        let mut session = device.session();
        let (pool, [q], [k]) = session.open([&q], [&k]);
        let (q, mut k) = (q.rows::<f32>(), k.rows::<f32>());
        k.for_each(pool, 1, |i, row| row.fill(1.0 + i as f32 + q.row(i)[0]));
        assert_eq!((q.row(2), k.row_mut(2)), (&[0.0; 4][..], &mut [3.0; 2][..]));
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn an_output_cannot_be_an_input() {
        let device = CpuDevice::new(1, crate::Isa::Scalar).unwrap();
        let x = matrix(&device, 3, 6);
        device.session().open([&x.rows(1, 2)], [&x]);
    }

    #[test]
    #[should_panic(expected = "of another device")]
    fn a_tensor_of_another_device_is_refused() {
        let device = || CpuDevice::new(1, crate::Isa::Scalar).unwrap();
        let x = matrix(&device(), 1, 1);
        device().session().open([&x], []);
    }

    #[test]
    #[should_panic(expected = "elements of f32[1, 1]")]
    fn a_view_has_the_type_of_its_tensor() {
        let device = CpuDevice::new(1, crate::Isa::Scalar).unwrap();
        let x = matrix(&device, 1, 1);
        device.session().open([&x], []).1[0].slice::<i32>();
    }
}
