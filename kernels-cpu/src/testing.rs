//! What the tests of the kernels share.

use bytemuck::{NoUninit, Pod};
use quire_kernels::{DType, Device, Tensor, random};

use crate::device::CpuDevice;

/// Reproducible values in (-1, 1).
pub(crate) fn noise(len: usize, seed: u32) -> Vec<f32> {
    let value = |i| random::philox4x32([i as u32, 0, 0, 0], [seed, 0])[0] as f32 / u32::MAX as f32;
    (0..len).map(|i| 2.0 * value(i) - 1.0).collect()
}

/// Bit patterns, which are equal where values and signs of zeros are.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Asserts that every element is within `tolerance * (1 + |want|)` of what it should be.
pub(crate) fn assert_close(got: &[f32], want: impl Fn(usize) -> f64, tolerance: f64) {
    for (i, &got) in got.iter().enumerate() {
        let want = want(i);
        let error = (f64::from(got) - want).abs();
        assert!(error <= tolerance * (1.0 + want.abs()), "element {i} is {got}, not {want}");
    }
}

/// Tensors from and to the host.
pub(crate) trait Memory {
    /// A tensor that holds the values.
    fn upload<T: NoUninit>(&self, dtype: DType, dims: &[usize], values: &[T]) -> Tensor;

    /// The values of a contiguous tensor.
    fn download<T: Pod>(&self, tensor: &Tensor) -> Vec<T>;
}

impl Memory for CpuDevice {
    fn upload<T: NoUninit>(&self, dtype: DType, dims: &[usize], values: &[T]) -> Tensor {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let tensor = Tensor::new(self.allocate(bytes.len()).unwrap(), 0, dtype, dims);
        self.queue().unwrap().write(&tensor, bytes).unwrap();
        tensor
    }

    fn download<T: Pod>(&self, tensor: &Tensor) -> Vec<T> {
        self.queue().unwrap().read(tensor).unwrap().wait_as().unwrap()
    }
}
