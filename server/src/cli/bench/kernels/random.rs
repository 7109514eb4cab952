//! Random elements, fast: a tile of them, over and over.

use quire_kernels::{DType, Kernels, Result, Tensor, quant};

/// Elements of the tile: whole blocks of every dtype, too many for a cache to see the repetition.
const TILE: usize = 1 << 18;

/// The bytes of `num_elements` elements, nearly normal with this deviation.
pub(super) fn bytes(dtype: DType, num_elements: usize, deviation: f32) -> Vec<u8> {
    let mut state = 1;
    let tile: Vec<f32> = (0..TILE.min(num_elements)).map(|_| deviation * normal(&mut state)).collect();
    let tile = quant::encode(dtype, &tile);
    let num_bytes = dtype.bytes_for(num_elements).expect("whole blocks: the caller rounded up to them");
    let mut bytes = tile.repeat(num_bytes.div_ceil(tile.len().max(1)));
    bytes.truncate(num_bytes);
    bytes
}

/// A new tensor of such elements.
pub(super) fn tensor(kernels: &Kernels, dtype: DType, dims: &[usize], deviation: f32) -> Result<Tensor> {
    kernels.upload(dtype, dims, &bytes(dtype, dims.iter().product(), deviation))
}

/// New tensors of such elements.
pub(super) fn tensors(kernels: &Kernels, count: usize, dtype: DType, dims: &[usize]) -> Result<Vec<Tensor>> {
    let bytes = bytes(dtype, dims.iter().product(), 1.0);
    (0..count).map(|_| kernels.upload(dtype, dims, &bytes)).collect()
}

/// New tensors that nothing was written to.
pub(super) fn outputs(kernels: &Kernels, count: usize, dtype: DType, dims: &[usize]) -> Result<Vec<Tensor>> {
    let num_bytes = dtype.bytes_for(dims.iter().product()).expect("a plain dtype");
    (0..count).map(|_| Ok(Tensor::new(kernels.device().allocate(num_bytes)?, 0, dtype, dims))).collect()
}

/// The numbers below `n` in random order (Fisher and Yates).
pub(super) fn permutation(n: usize) -> Vec<usize> {
    let (mut order, mut state): (Vec<usize>, u64) = ((0..n).collect(), 2);
    (1..n).rev().for_each(|i| order.swap(i, (next(&mut state) % (i as u64 + 1)) as usize));
    order
}

/// The sum of four uniform numbers, of variance 1.
fn normal(state: &mut u64) -> f32 {
    let word = next(state);
    let sum: f32 = (0..4).map(|i| (word >> (16 * i) & 0xffff) as f32 / 65_536.0 - 0.5).sum();
    sum * 3.0f32.sqrt()
}

/// SplitMix64 (Steele et al., 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_fill_any_shape_and_have_the_deviation_asked_for() {
        for dtype in [DType::F32, DType::BF16, DType::Q4K, DType::Q8_0] {
            let values = quant::decode(dtype, &bytes(dtype, 2 * TILE + 256, 3.0));
            assert_eq!(values.len(), 2 * TILE + 256);
            let mean_square = values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64;
            assert!((mean_square.sqrt() - 3.0).abs() < 0.1, "{dtype}: {mean_square}");
        }
    }

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut order = permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
