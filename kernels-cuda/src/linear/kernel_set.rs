//! The kernels of linear layers, loaded once.

use quire_kernels::DType;

use super::format::Format;
use crate::Error;
use crate::device::CudaDevice;
use crate::module::Kernel;

/// Tokens that the kernels for few tokens take at most.
pub(super) const TOKEN_TILES: [usize; 3] = [8, 16, 32];

/// A dense kernel for few tokens: what of it is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// Tokens at most.
    pub(super) tokens: usize,
    /// Rows that a warp owns.
    pub(super) rows: usize,
    /// Shared memory that a warp takes, in kB: its ring of chunks.
    pub(super) ring: usize,
}

/// Those that there are.
pub(super) const VARIANTS: [Variant; 6] = [
    Variant { tokens: 8, rows: 16, ring: 4 },
    Variant { tokens: 8, rows: 16, ring: 8 },
    Variant { tokens: 16, rows: 16, ring: 8 },
    Variant { tokens: 16, rows: 32, ring: 8 },
    Variant { tokens: 32, rows: 16, ring: 8 },
    Variant { tokens: 32, rows: 32, ring: 8 },
];

/// Dynamic shared memory that a block of them takes at most: sixteen warps with rings of 8 kB.
pub(super) const FEW_SHARED_BYTES: usize = 128 << 10;

/// Dynamic shared memory of the kernel for many tokens: three stages.
pub(super) const MANY_SHARED_BYTES: u32 = 96 << 10;

/// All kernels for one activation dtype.
pub(super) struct KernelSet {
    few: Vec<(Variant, Kernel)>,
    /// `[format][token tile]`.
    pub(super) quant_few: Vec<Vec<Kernel>>,
    pub(super) many: Kernel,
    pub(super) embed: Kernel,
    pub(super) add_bias: Kernel,
    convert: Vec<(DType, Kernel)>,
    repack: Vec<(DType, Kernel)>,
    /// By format, as the next.
    pub(super) dequantize: Vec<Kernel>,
    pub(super) quant_embed: Vec<Kernel>,
}

impl KernelSet {
    pub(super) fn load(device: &CudaDevice) -> Result<Self, Error> {
        let suffix = device.activation_dtype().name();
        let few_shared_bytes = device.max_shared_bytes().min(FEW_SHARED_BYTES as u32);
        let few = |variant: Variant| {
            let Variant { tokens, rows, ring } = variant;
            let name = format!("linear_few_t{tokens}_r{rows}_k{ring}_{suffix}");
            Ok((variant, large(device.kernel("linear_few", &name), few_shared_bytes)?))
        };
        let quant_few = |format: Format, t: usize| {
            let name = format!("linear_{}_few_t{t}_{suffix}", format.name());
            large(device.kernel("linear_quant_few", &name), few_shared_bytes)
        };
        let dequantize = |format: Format| {
            device.kernel("linear_quant", &format!("linear_dequantize_{}_{suffix}", format.name()))
        };
        let quant_embed =
            |format: Format| device.kernel("linear_quant", &format!("linear_embed_{}", format.name()));
        let row = |name: &str| device.kernel("linear_rows", &format!("linear_{name}_{suffix}"));
        let convert = |from: DType| Ok((from, row(&format!("convert_{from}_to"))?));
        let repack =
            |from: DType| Ok((from, device.kernel("linear_quant", &format!("linear_repack_{from}"))?));
        let quantized = DType::ALL.into_iter().filter(|dtype| Format::of(*dtype).is_some());
        let many = device.kernel("linear_many", &format!("linear_many_{suffix}"));
        Ok(Self {
            few: VARIANTS.map(few).into_iter().collect::<Result<_, Error>>()?,
            quant_few: Format::ALL
                .map(|f| TOKEN_TILES.map(|t| quant_few(f, t)).into_iter().collect())
                .into_iter()
                .collect::<Result<_, _>>()?,
            many: large(many, MANY_SHARED_BYTES)?,
            embed: row("embed")?,
            add_bias: row("add_bias")?,
            convert: [DType::F32, DType::F16, DType::BF16]
                .map(convert)
                .into_iter()
                .collect::<Result<_, Error>>()?,
            repack: quantized.map(repack).collect::<Result<_, Error>>()?,
            dequantize: Format::ALL.map(dequantize).into_iter().collect::<Result<_, _>>()?,
            quant_embed: Format::ALL.map(quant_embed).into_iter().collect::<Result<_, _>>()?,
        })
    }

    /// A dense kernel for few tokens.
    pub(super) fn few(&self, variant: Variant) -> &Kernel {
        let found = self.few.iter().find(|(other, _)| *other == variant);
        &found.expect("a plan names a variant that there is").1
    }

    /// The kernel that converts rows of `from` to the activation dtype.
    pub(super) fn convert(&self, from: DType) -> Option<&Kernel> {
        self.convert.iter().find(|(dtype, _)| *dtype == from).map(|(_, kernel)| kernel)
    }

    /// The kernel that repacks blocks of `from`.
    pub(super) fn repack(&self, from: DType) -> Option<&Kernel> {
        self.repack.iter().find(|(dtype, _)| *dtype == from).map(|(_, kernel)| kernel)
    }
}

/// A kernel that may have so much dynamic shared memory.
fn large(kernel: Result<Kernel, Error>, shared_bytes: u32) -> Result<Kernel, Error> {
    let kernel = kernel?;
    kernel.allow_shared_bytes(shared_bytes)?;
    Ok(kernel)
}
