//! Short vectors side by side in one tensor, so that a step makes one transfer of them and not ten.

use std::ops::Range;

use quire_kernels::{DType, Result, StepCtx, Tensor};

/// Vectors start at multiples of this many 32-bit values.
const ALIGN: usize = 16;

/// Bytes at most that `num_values` in `num_vectors` vectors take.
pub(super) fn packed_bytes(num_vectors: usize, num_values: usize) -> usize {
    4 * (num_values + (num_vectors + 1) * ALIGN)
}

/// Places of vectors of 32-bit values in one tensor.
#[derive(Debug, Default)]
pub(super) struct Places {
    len: usize,
}

impl Places {
    pub(super) fn push(&mut self, num_values: usize) -> Range<usize> {
        let start = self.len.next_multiple_of(ALIGN);
        self.len = start + num_values;
        start..self.len
    }

    /// A tensor that holds them all, and at least one value.
    pub(super) fn alloc(&self, ctx: &mut StepCtx) -> Result<Tensor> {
        ctx.alloc(DType::I32, &[self.len.max(1)])
    }
}

/// Vectors of indices on their way to the device.
#[derive(Debug, Default)]
pub(super) struct Upload {
    places: Places,
    values: Vec<i32>,
}

impl Upload {
    pub(super) fn push(&mut self, values: impl ExactSizeIterator<Item = i32>) -> Range<usize> {
        let place = self.places.push(values.len());
        self.values.resize(place.start, 0);
        self.values.extend(values);
        place
    }

    /// Enqueues the transfer; the places are [`view`]s of the result.
    pub(super) fn send(mut self, ctx: &mut StepCtx) -> Result<Tensor> {
        let tensor = self.places.alloc(ctx)?;
        self.values.resize(tensor.num_elements(), 0);
        ctx.write(&tensor, &self.values)?;
        Ok(tensor)
    }
}

/// The vector at `place`.
pub(super) fn view(packed: &Tensor, place: &Range<usize>) -> Tensor {
    packed.rows(place.start, place.end)
}

/// The values at `place` under another type and shape.
pub(super) fn view_as(packed: &Tensor, place: &Range<usize>, dtype: DType, dims: &[usize]) -> Tensor {
    assert_eq!((dtype.block_bytes(), dims.iter().product()), (4, place.len()), "a view of 32-bit values");
    Tensor::new(packed.buffer().clone(), packed.offset_bytes() + 4 * place.start, dtype, dims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_aligned_and_do_not_overlap() {
        let mut upload = Upload::default();
        assert_eq!([upload.push([1, 2, 3].into_iter()), upload.push([4].into_iter())], [0..3, 16..17]);
        assert_eq!((upload.values[2], upload.values[16]), (3, 4));
        assert!(4 * upload.places.len <= packed_bytes(2, 4));
    }
}
