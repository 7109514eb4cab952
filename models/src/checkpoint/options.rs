//! How a checkpoint is read.

use quire_kernels::DType;

/// How to read a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Where tensors come from.
    pub load_format: LoadFormat,
    /// What floating-point and quantized tensors are turned into; `None` leaves each as it is stored.
    pub dtype: Option<WeightDType>,
    /// What the dense weights of linear layers are quantized to while they are read; `None` leaves them.
    pub quantize: Option<OnlineQuantization>,
    /// Seed of random weights ([`LoadFormat::Dummy`]).
    pub seed: u64,
}

/// A format that dense weights can be quantized to while they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlineQuantization {
    /// 8-bit floats (4 exponent bits) with a scale for each row; embedding, head and routers stay as they are.
    Fp8,
}

/// Where tensors come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// A GGUF file, or the safetensors files of a folder: whichever is there.
    #[default]
    Auto,
    /// Random numbers: only `config.json` is read.
    Dummy,
}

/// A dtype that weights can be turned into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDType {
    /// 32 bits.
    Float32,
    /// 16 bits, IEEE half.
    Float16,
    /// 16 bits, the upper half of a float32.
    BFloat16,
}

impl WeightDType {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            Self::Float32 => DType::F32,
            Self::Float16 => DType::F16,
            Self::BFloat16 => DType::BF16,
        }
    }
}
