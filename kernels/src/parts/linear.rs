use std::fmt;
use std::sync::Arc;

use super::{EmbeddingTable, Part, SharedBytes};
use crate::{DType, Error, Result, StepCtx, Tensor, WeightError, quant};

/// A weight matrix in host memory, as the checkpoint holds it.
#[derive(Clone, Copy)]
pub struct HostWeight<'a> {
    /// The tensor's name, for error messages.
    pub name: &'a str,
    /// Type of the elements; a block type's blocks run along the columns.
    pub dtype: DType,
    /// Number of output features.
    pub rows: usize,
    /// Number of input features.
    pub columns: usize,
    /// The elements, row-major, `dtype.bytes_for(rows * columns)` bytes.
    pub data: &'a [u8],
    /// What the elements are multiplied with, where they do not say it themselves.
    pub scales: Option<WeightScales<'a>>,
    /// `[rows]`, added to the output.
    pub bias: Option<&'a [f32]>,
}

/// Scales that lie beside the elements of a weight, as those of GPTQ, AWQ, 8-bit floats and integers do:
/// `value = (element - zero) · scale`, both products of f32.
///
/// One scale is for a block of elements: `[1, 128]` are groups of a row, `[1, columns]` channels, `[128, 128]` squares,
/// `[rows, columns]` the whole tensor.
#[derive(Clone, Copy, Debug)]
pub struct WeightScales<'a> {
    /// Rows and columns of a block; the last blocks may reach past the edge.
    pub block: [usize; 2],
    /// `[⌈rows / block rows⌉, ⌈columns / block columns⌉]`, row-major.
    pub scales: &'a [f32],
    /// The zero points in the same shape; `None` for zeros of 0.
    pub zeros: Option<&'a [u8]>,
    /// Which block column each column belongs to, where that does not follow from its place: what GPTQ writes that
    /// quantized columns in the order of their activations (`g_idx`).
    pub column_groups: Option<&'a [u32]>,
}

impl WeightScales<'_> {
    /// Blocks that lie along the columns of a row.
    pub fn blocks_per_row(&self, columns: usize) -> usize {
        columns.div_ceil(self.block[1])
    }

    fn check(&self, rows: usize, columns: usize) -> Result<(), WeightError> {
        if self.block.contains(&0) {
            return Err(WeightError::ScaleBlock { block: self.block });
        }
        let blocks_per_row = self.blocks_per_row(columns);
        let expected = rows.div_ceil(self.block[0]) * blocks_per_row;
        let num_zeros = self.zeros.map_or(expected, <[u8]>::len);
        for given in [self.scales.len(), num_zeros] {
            if given != expected {
                return Err(WeightError::Scales { expected, given });
            }
        }
        let Some(groups) = self.column_groups else { return Ok(()) };
        if groups.len() != columns {
            return Err(WeightError::Scales { expected: columns, given: groups.len() });
        }
        match groups.iter().find(|&&group| group as usize >= blocks_per_row) {
            Some(&given) => Err(WeightError::ColumnGroup { given, num_groups: blocks_per_row }),
            None => Ok(()),
        }
    }
}

impl HostWeight<'_> {
    /// Checks that the bytes are what dtype and shape need.
    ///
    /// # Errors
    ///
    /// [`Error::Weight`].
    pub fn check(&self) -> Result<()> {
        let fail = |reason| Err(Error::Weight { name: self.name.to_owned(), reason });
        let (dtype, columns) = (self.dtype, self.columns);
        if !columns.is_multiple_of(dtype.block_len()) {
            return fail(WeightError::Blocks { dtype, block_len: dtype.block_len(), columns });
        }
        let elements = self.rows.checked_mul(columns);
        let expected = elements.and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
        if expected != self.data.len() {
            let shape = vec![self.rows, columns];
            return fail(WeightError::Size { dtype, shape, expected, given: self.data.len() });
        }
        match self.scales.map_or(Ok(()), |scales| scales.check(self.rows, columns)) {
            Ok(()) => Ok(()),
            Err(reason) => fail(reason),
        }
    }

    /// Writes the values of a row, exactly: what every backend's layer must compute with.
    ///
    /// # Panics
    ///
    /// Where the weight has not passed [`check`](Self::check), there is no such row or `out` is no row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns, "a row of the weight");
        let row_bytes = self.dtype.bytes_for(self.columns).expect("the weight was checked");
        quant::dequantize(self.dtype, &self.data[row * row_bytes..][..row_bytes], out);
        if let Some(scales) = &self.scales {
            quant::scale_row(scales, row, out);
        }
    }

    /// The values of all rows.
    ///
    /// # Panics
    ///
    /// As [`decode_row`](Self::decode_row).
    pub fn decode(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        let rows = values.chunks_exact_mut(self.columns.max(1)).enumerate();
        rows.for_each(|(row, out)| self.decode_row(row, out));
        values
    }

    /// Checks all of them, and that they read the same input.
    ///
    /// # Errors
    ///
    /// [`Error::Weight`].
    ///
    /// # Panics
    ///
    /// Where there are none.
    pub fn check_merged(weights: &[Self]) -> Result<()> {
        let expected = weights.first().expect("at least one weight is packed").columns;
        for weight in weights {
            weight.check()?;
            if weight.columns != expected {
                let reason = WeightError::Columns { expected, given: weight.columns };
                return Err(Error::Weight { name: weight.name.to_owned(), reason });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for HostWeight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}, {}]", self.name, self.dtype, self.rows, self.columns)
    }
}

/// The input of linear layers: the activations, and what the backend makes of them once for all the layers that
/// read them (quantized values and their scales, say).
#[derive(Clone, Debug)]
pub struct Activation {
    /// `[num_tokens, in_features]`, in the device's activation dtype.
    pub x: Tensor,
    /// The backend's own, empty where it needs none.
    pub prepared: Vec<Tensor>,
}

/// Linear layers: `y = x Wᵀ + b`.
pub trait LinearKernels: Part {
    /// Packs one or more weights that read the same input into one layer; its outputs are those of the weights,
    /// one after the other. The weights may differ in dtype.
    ///
    /// Not part of a step: it allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Weight`], [`Error::OutOfMemory`].
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>>;

    /// Makes a table of a weight that is looked up and never multiplied. `bytes` are the elements, `weight.data`: a backend
    /// that can read rows there keeps them in place of a copy.
    ///
    /// Not part of a step: it allocates.
    ///
    /// # Errors
    ///
    /// As [`pack`](Self::pack).
    fn pack_table(&self, weight: &HostWeight<'_>, bytes: SharedBytes) -> Result<Box<dyn EmbeddingTable>> {
        drop(bytes);
        Ok(Box::new(Arc::<dyn Linear>::from(self.pack(&[*weight])?)))
    }

    /// Bytes that [`pack`](Self::pack) makes of `num_bytes` of weights of this dtype, for the memory plan.
    fn packed_bytes(&self, dtype: DType, num_bytes: usize) -> usize {
        let _ = dtype;
        num_bytes
    }

    /// Whether weights of this dtype can be packed: what a model is refused for before any of them is read.
    fn supports(&self, dtype: DType) -> bool {
        let _ = dtype;
        true
    }

    /// Whether weights of this dtype can be packed that have [`WeightScales`] beside them.
    fn supports_scaled(&self, dtype: DType) -> bool {
        let _ = dtype;
        true
    }

    /// Lays out what [`prepare`](Self::prepare) will fill: takes scratch, enqueues nothing.
    ///
    /// # Errors
    ///
    /// [`Error::ScratchExhausted`].
    fn layout_activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        let _ = ctx;
        Ok(Activation { x: x.clone(), prepared: Vec::new() })
    }

    /// Fills `activation.prepared` from `activation.x`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn prepare(&self, ctx: &mut StepCtx, activation: &Activation) -> Result<()> {
        let _ = (ctx, activation);
        Ok(())
    }

    /// Lays out and prepares.
    ///
    /// # Errors
    ///
    /// [`Error::ScratchExhausted`] and those of the device.
    fn activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        let activation = self.layout_activation(ctx, x)?;
        self.prepare(ctx, &activation)?;
        Ok(activation)
    }

    /// Most bytes that a [`layout_activation`](Self::layout_activation) of this shape takes.
    fn activation_bytes(&self, num_tokens: usize, in_features: usize) -> usize {
        let _ = (num_tokens, in_features);
        0
    }
}

/// What a linear layer makes of its input before it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InputPrecision {
    /// It takes the elements as they are.
    Exact,
    /// It rounds each element to this floating-point type.
    Rounded(DType),
    /// It makes them symmetric 8-bit integers, with one scale for each run of `block_len` elements of a row.
    Int8 {
        /// Elements that share a scale.
        block_len: usize,
    },
}

/// A packed linear layer (or several that read the same input). Model code never asks what is in it.
pub trait Linear: Send + Sync {
    /// Columns of the weight.
    fn in_features(&self) -> usize;

    /// Rows of the weight: the sum over the merged ones.
    fn out_features(&self) -> usize;

    /// Device memory that the weight takes.
    fn num_bytes(&self) -> usize;

    /// The kernel that serves it, e.g. `q4_1 x q8 avx512-vnni`; equal layers give equal names.
    fn kernel(&self) -> String;

    /// How precisely the layer reads its input: what the conformance suite takes the error bound from.
    fn input_precision(&self) -> InputPrecision {
        InputPrecision::Exact
    }

    /// `out[t] = W x[t] + b` for each token. `out` is `[num_tokens, out_features]`; the dtype is the device's
    /// activation dtype, or F32.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn forward(&self, ctx: &mut StepCtx, x: &Activation, out: &Tensor) -> Result<()>;

    /// `out[t] = W[ids[t]]`: the weight as an embedding table (the tied head of a model is one object with its
    /// embedding). `ids` is `[num_tokens]` I32 within the rows, `out` `[num_tokens, in_features]` in the
    /// dtype of the residual stream, which begins with it. A bias is not added.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn embed(&self, ctx: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()>;
}
