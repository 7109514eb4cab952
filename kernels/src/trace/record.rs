//! What is kept of a tensor.

use std::sync::Arc;

use crate::{DType, quant};

/// One output of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRecord {
    /// The step, counted from 0 over all queues of the device.
    pub step: u64,
    /// Which operation of the step it is, from 0; the outputs of one operation share it.
    pub op_idx: u32,
    /// The part and its method, e.g. `attention.forward`.
    pub op: &'static str,
    /// How many operations of that name came before it in the step: in most models, the layer.
    pub ordinal: u32,
    /// The names of the layer's weights in the checkpoint, for linear layers.
    pub weight: Option<Arc<str>>,
    /// Whether a fused form computed it.
    pub is_fused: bool,
    /// Which of the operation's tensors, by the name of the parameter.
    pub tensor: &'static str,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub dims: Vec<usize>,
    /// Its elements.
    pub stats: TensorStats,
}

/// Elements in a few numbers. Those that are no finite number are counted, and left out of the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorStats {
    /// Elements that are not a number.
    pub num_nan: usize,
    /// Infinite elements.
    pub num_inf: usize,
    /// The smallest; `None`, as for the next three, where no element is finite.
    pub min: Option<f32>,
    /// The largest.
    pub max: Option<f32>,
    /// The mean.
    pub mean: Option<f64>,
    /// The root of the mean square.
    pub rms: Option<f64>,
    /// The elements at [`sample_places`](Self::sample_places), finite or not.
    pub samples: Vec<f32>,
    /// A hash of the bytes: where two are equal, so are all elements, bit for bit.
    pub hash: u64,
}

impl TensorStats {
    /// Most samples that are taken.
    pub const MAX_SAMPLES: usize = 8;

    /// Of the elements of `dtype` in `bytes`, which follow each other without gaps.
    ///
    /// # Panics
    ///
    /// Where the bytes are no whole number of elements.
    pub fn of(dtype: DType, bytes: &[u8]) -> Self {
        let values = quant::decode(dtype, bytes);
        let num_nan = values.iter().filter(|v| v.is_nan()).count();
        let num_inf = values.iter().filter(|v| v.is_infinite()).count();
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let num_finite = (values.len() - num_nan - num_inf) as f64;
        let mean_of = |f: fn(f64) -> f64| {
            (num_finite > 0.0).then(|| finite().map(|v| f(f64::from(v))).sum::<f64>() / num_finite)
        };
        Self {
            num_nan,
            num_inf,
            min: finite().reduce(f32::min),
            max: finite().reduce(f32::max),
            mean: mean_of(|v| v),
            rms: mean_of(|v| v * v).map(f64::sqrt),
            samples: Self::sample_places(values.len()).map(|place| values[place]).collect(),
            hash: hash(bytes),
        }
    }

    /// Which of `num_elements` elements are sampled: at even distances from the first to the last.
    pub fn sample_places(num_elements: usize) -> impl Iterator<Item = usize> {
        let num_samples = num_elements.min(Self::MAX_SAMPLES);
        let last = num_elements.saturating_sub(1);
        (0..num_samples).map(move |i| i * last / num_samples.saturating_sub(1).max(1))
    }
}

/// FNV-1a over words of 8 bytes, the high half of each product folded into the low one: else the topmost bits of two
/// words could cancel.
fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let product = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        product ^ (product >> 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_counted_apart() {
        let values = [1.0, f32::NAN, -3.0, f32::INFINITY, 2.0, f32::NEG_INFINITY];
        let stats = TensorStats::of(DType::F32, &quant::encode(DType::F32, &values));
        assert_eq!((stats.num_nan, stats.num_inf), (1, 2));
        assert_eq!((stats.min, stats.max, stats.mean), (Some(-3.0), Some(2.0), Some(0.0)));
        assert_eq!(stats.rms, Some((14.0f64 / 3.0).sqrt()));
        assert_eq!(stats.samples[0], 1.0);
        assert!(stats.samples[1].is_nan());
    }

    #[test]
    fn nothing_has_no_mean() {
        let stats = TensorStats::of(DType::BF16, &[]);
        assert_eq!((stats.min, stats.mean, stats.rms, stats.samples.len()), (None, None, None, 0));
    }

    #[test]
    fn samples_reach_from_the_first_to_the_last() {
        let places = |n| TensorStats::sample_places(n).collect::<Vec<_>>();
        assert_eq!(places(1), [0]);
        assert_eq!(places(3), [0, 1, 2]);
        assert_eq!(places(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(places(701), [0, 100, 200, 300, 400, 500, 600, 700]);
    }

    #[test]
    fn two_flipped_signs_do_not_cancel_in_the_hash() {
        let hash = |values: &[f32]| TensorStats::of(DType::F32, &quant::encode(DType::F32, values)).hash;
        assert_ne!(hash(&[0.0, 1.0, 0.0, 1.0]), hash(&[0.0, -1.0, 0.0, -1.0]));
        assert_ne!(hash(&[1.0, 2.0]), hash(&[2.0, 1.0]));
        assert_eq!(hash(&[1.0, 2.0]), hash(&[1.0, 2.0]));
    }
}
