//! What the tests of the kernels share.

use quire_kernels::random;

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
