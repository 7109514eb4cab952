//! Handles to device memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{DType, DeviceId};

/// Most dimensions a tensor has.
pub const MAX_DIMS: usize = 4;

/// A run of device memory. Backends downcast it (through [`Any`]) to their own type.
pub trait Buffer: Any + Send + Sync + fmt::Debug {
    /// Its size.
    fn num_bytes(&self) -> usize;
    /// The device it lives on.
    fn device(&self) -> DeviceId;
}

/// A shaped view of device memory: a handle, not the data.
///
/// Cloning a tensor clones the handle. Elements are row-major; the last dimension is contiguous and the rows of
/// a two-dimensional tensor may lie further apart than they are long ([`row_stride`](Self::row_stride)), so a
/// slice of columns is a view too. The host reads and writes the data through a
/// [`Queue`](crate::Queue) only; kernels order themselves by the queue that they are enqueued on.
#[derive(Clone)]
pub struct Tensor {
    buffer: Arc<dyn Buffer>,
    offset_bytes: usize,
    dtype: DType,
    dims: [usize; MAX_DIMS],
    num_dims: usize,
    row_stride: usize,
}

impl Tensor {
    /// A contiguous view of `buffer` that starts at `offset_bytes`.
    ///
    /// # Panics
    ///
    /// Where the view does not lie inside the buffer, `dims` are more than [`MAX_DIMS`] or none, or `dtype` is
    /// a block type whose blocks do not fill the rows: a bug of the caller, who planned this memory.
    pub fn new(buffer: Arc<dyn Buffer>, offset_bytes: usize, dtype: DType, dims: &[usize]) -> Self {
        assert!(
            (1..=MAX_DIMS).contains(&dims.len()),
            "a tensor has 1 to {MAX_DIMS} dimensions, not {}",
            dims.len()
        );
        let num_elements: usize = dims.iter().product();
        let num_bytes = dtype.bytes_for(num_elements).expect("a tensor holds whole blocks");
        assert!(
            offset_bytes.checked_add(num_bytes).is_some_and(|end| end <= buffer.num_bytes()),
            "a {dtype} view of {dims:?} at byte {offset_bytes} leaves its buffer of {} bytes",
            buffer.num_bytes()
        );
        let mut padded = [1; MAX_DIMS];
        padded[..dims.len()].copy_from_slice(dims);
        let row_stride = dims[dims.len() - 1];
        Self { buffer, offset_bytes, dtype, dims: padded, num_dims: dims.len(), row_stride }
    }

    /// The memory behind the view.
    pub fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }

    /// The same view of another buffer, for backends that wrap one.
    pub(crate) fn over(&self, buffer: Arc<dyn Buffer>) -> Self {
        Self { buffer, ..self.clone() }
    }

    /// Where in the buffer the first element lies.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.num_dims]
    }

    /// Number of elements seen through the view.
    pub fn num_elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn num_rows(&self) -> usize {
        self.dims()[..self.num_dims - 1].iter().product()
    }

    /// Length of a row: the last dimension.
    pub fn num_columns(&self) -> usize {
        self.dims[self.num_dims - 1]
    }

    /// Elements from the start of one row to the start of the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Whether rows follow each other without a gap.
    pub fn is_contiguous(&self) -> bool {
        self.row_stride == self.num_columns() || self.num_rows() <= 1
    }

    /// Bytes from the first element to the end of the last one, gaps between rows included.
    pub fn span_bytes(&self) -> usize {
        let rows = self.num_rows();
        if self.num_elements() == 0 {
            return 0;
        }
        let elements = (rows - 1) * self.row_stride + self.num_columns();
        self.dtype.bytes_for(elements).expect("a tensor holds whole blocks")
    }

    /// The rows `[start, end)` along the first dimension.
    ///
    /// # Panics
    ///
    /// Where the range leaves the first dimension.
    pub fn rows(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.dims[0], "rows {start}..{end} of {:?}", self.dims());
        let stride = match self.num_dims {
            1 => 1,
            _ => self.num_rows() / self.dims[0].max(1) * self.row_stride,
        };
        let mut view = self.clone();
        view.offset_bytes += self.dtype.bytes_for(start * stride).expect("a row holds whole blocks");
        view.dims[0] = end - start;
        if self.num_dims == 1 {
            view.row_stride = end - start;
        }
        view
    }

    /// The columns `[start, end)` of a two-dimensional tensor.
    ///
    /// # Panics
    ///
    /// Where the tensor has not two dimensions or the range leaves a row.
    pub fn columns(&self, start: usize, end: usize) -> Self {
        assert!(self.num_dims == 2, "only a matrix has columns, not {:?}", self.dims());
        assert!(start <= end && end <= self.dims[1], "columns {start}..{end} of {:?}", self.dims());
        let mut view = self.clone();
        view.offset_bytes += self.dtype.bytes_for(start).expect("a column slice starts at a block");
        view.dims[1] = end - start;
        view
    }

    /// The same memory under another shape of as many elements.
    ///
    /// # Panics
    ///
    /// Where the number of elements differs or the tensor is not contiguous.
    pub fn reshape(&self, dims: &[usize]) -> Self {
        assert!(self.is_contiguous(), "only contiguous memory can be reshaped");
        assert_eq!(self.num_elements(), dims.iter().product::<usize>(), "{:?} to {dims:?}", self.dims());
        Self::new(self.buffer.clone(), self.offset_bytes, self.dtype, dims)
    }

    /// Whether two views share a byte of the same buffer (column slices of one matrix count as sharing only
    /// where their columns do).
    pub fn overlaps(&self, other: &Self) -> bool {
        if !Arc::ptr_eq(&self.buffer, &other.buffer) || self.num_elements() == 0 || other.num_elements() == 0
        {
            return false;
        }
        let (a, b) = (self.offset_bytes, other.offset_bytes);
        let disjoint = a + self.span_bytes() <= b || b + other.span_bytes() <= a;
        !disjoint && !self.is_other_column_slice(other)
    }

    /// Whether the two are column slices of one matrix that have no column in common.
    fn is_other_column_slice(&self, other: &Self) -> bool {
        if self.row_stride != other.row_stride || self.dtype != other.dtype || self.dtype.is_quantized() {
            return false;
        }
        let element = self.dtype.block_bytes();
        let (first, second) =
            if self.offset_bytes <= other.offset_bytes { (self, other) } else { (other, self) };
        let delta = second.offset_bytes - first.offset_bytes;
        if !delta.is_multiple_of(element) {
            return false;
        }
        let shift = (delta / element) % self.row_stride.max(1);
        shift >= first.num_columns() && shift + second.num_columns() <= self.row_stride
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Bytes(usize);

    impl Buffer for Bytes {
        fn num_bytes(&self) -> usize {
            self.0
        }
        fn device(&self) -> DeviceId {
            DeviceId::new(0)
        }
    }

    fn matrix(rows: usize, columns: usize) -> Tensor {
        Tensor::new(Arc::new(Bytes(rows * columns * 4)), 0, DType::F32, &[rows, columns])
    }

    #[test]
    fn a_column_slice_keeps_the_stride_of_its_matrix() {
        let q = matrix(3, 10).columns(4, 8);
        assert_eq!((q.dims(), q.row_stride(), q.offset_bytes()), (&[3, 4][..], 10, 16));
        assert_eq!(q.span_bytes(), (2 * 10 + 4) * 4);
        assert_eq!(q.rows(1, 3).offset_bytes(), 16 + 40);
        assert!(!q.is_contiguous());
    }

    #[test]
    fn disjoint_columns_of_one_matrix_do_not_overlap() {
        let qkv = matrix(5, 12);
        let (q, k) = (qkv.columns(0, 8), qkv.columns(8, 12));
        assert!(!q.overlaps(&k) && !k.overlaps(&q));
        assert!(q.overlaps(&qkv.columns(7, 9)));
        assert!(q.overlaps(&qkv.rows(4, 5)));
        assert!(!qkv.rows(0, 2).overlaps(&qkv.rows(2, 5)));
    }

    #[test]
    #[should_panic(expected = "leaves its buffer")]
    fn a_view_must_lie_in_its_buffer() {
        Tensor::new(Arc::new(Bytes(15)), 0, DType::F32, &[4]);
    }
}
