//! The products of a model.

use quire_kernels::{Activation, DType, HostWeight, Linear, Result as KernelResult, StepCtx, Tensor};
use quire_kernels_cuda::ProductShape;

use super::report::Case;
use super::shapes::Shapes;
use super::timer::{Timing, Work};
use super::{KernelBench, num_rotated, random};
use crate::error::Result;

/// Views of scratch are aligned to this.
const SCRATCH_ALIGN: usize = 256;

pub(super) fn run(bench: &KernelBench<'_>) -> Result<()> {
    for product in Product::all(&bench.shapes) {
        let product = product.of_dtype(bench.weight_dtype());
        let num_bytes = product.num_bytes();
        if num_bytes > bench.memory_bytes() {
            bench.skip(&product.case(bench.args.rows[0]), num_bytes)?;
            continue;
        }
        match Packed::new(bench, &product, num_rotated(num_bytes)) {
            Ok(packed) => bench.args.rows.iter().try_for_each(|&rows| {
                let case = packed.case(bench, rows);
                // The inputs on both sides, and what is prepared of them.
                bench.measure(&case, 3 * case.bytes, || packed.time(bench, rows))
            })?,
            Err(error) => bench.tell(&product.case(bench.args.rows[0]), Err(error))?,
        }
    }
    Ok(())
}

/// A linear layer of the model.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Product {
    pub(in crate::cli) name: &'static str,
    /// Outputs of each of the weights that are merged.
    merged: Vec<usize>,
    columns: usize,
    has_bias: bool,
    /// Logits are F32, other outputs activations.
    pub(in crate::cli) is_head: bool,
    dtype: DType,
}

impl Product {
    /// Those of a model's layers, and of its head.
    pub(in crate::cli) fn all(shapes: &Shapes) -> Vec<Self> {
        let (hidden, q, kv) = (shapes.hidden_size, shapes.q_size(), shapes.kv_size());
        let plain = |name, merged: &[usize], columns| Self {
            name,
            merged: merged.to_vec(),
            columns,
            has_bias: false,
            is_head: false,
            dtype: DType::BF16,
        };
        vec![
            Self { has_bias: shapes.qkv_bias, ..plain("qkv", &[q, kv, kv], hidden) },
            plain("o", &[hidden], q),
            Self::gate_up(shapes),
            plain("down", &[hidden], shapes.intermediate_size),
            Self { is_head: true, ..plain("lm_head", &[shapes.vocab_size], hidden) },
        ]
    }

    /// The largest one that is not the head.
    fn gate_up(shapes: &Shapes) -> Self {
        Self {
            name: "gate_up",
            merged: vec![shapes.intermediate_size; 2],
            columns: shapes.hidden_size,
            has_bias: false,
            is_head: false,
            dtype: DType::BF16,
        }
    }

    /// A square one, of no model.
    pub(super) fn square(size: usize) -> Self {
        Self {
            name: "square",
            merged: vec![size],
            columns: size,
            has_bias: false,
            is_head: false,
            dtype: DType::BF16,
        }
    }

    /// The same with weights stored so.
    pub(super) fn of_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// The product as a library sees it, of weights and activations of one dtype.
    pub(in crate::cli) fn dense(&self, num_tokens: usize, dtype: DType) -> ProductShape {
        ProductShape {
            rows: self.num_outputs(),
            columns: self.columns,
            num_tokens,
            dtype,
            out_dtype: if self.is_head { DType::F32 } else { dtype },
            has_bias: self.has_bias,
        }
    }

    fn num_outputs(&self) -> usize {
        self.merged.iter().sum()
    }

    /// Bytes of the weights as they are stored; none where rows are no whole blocks.
    fn num_bytes(&self) -> usize {
        self.dtype.bytes_for(self.num_outputs() * self.columns).unwrap_or(0)
    }

    pub(super) fn case(&self, rows: usize) -> Case {
        let elements = self.num_outputs() * self.columns;
        Case {
            op: "linear",
            case: format!("{} {}x{}", self.name, self.num_outputs(), self.columns),
            dtype: self.dtype.to_string(),
            rows,
            flops: 2.0 * rows as f64 * elements as f64,
            ..Case::default()
        }
    }
}

/// A product on the device, as often as no cache holds its weights.
pub(super) struct Packed<'p> {
    product: &'p Product,
    layers: Vec<Box<dyn Linear>>,
}

impl<'p> Packed<'p> {
    pub(super) fn new(bench: &KernelBench<'_>, product: &'p Product, count: usize) -> KernelResult<Self> {
        let num_outputs = product.merged.iter().copied().max().unwrap_or(0);
        let num_columns = product.columns.next_multiple_of(product.dtype.block_len());
        let data = random::bytes(product.dtype, num_outputs * num_columns, 0.02);
        let bias = vec![0.5f32; num_outputs];
        let weights: Vec<HostWeight<'_>> = product
            .merged
            .iter()
            .map(|&rows| HostWeight {
                name: product.name,
                dtype: product.dtype,
                rows,
                columns: product.columns,
                // A size that is no whole number of blocks is for the backend to refuse.
                data: &data[..product.dtype.bytes_for(rows * product.columns).unwrap_or(0)],
                scales: None,
                bias: product.has_bias.then_some(&bias[..rows]),
            })
            .collect();
        let layers =
            (0..count).map(|_| bench.kernels.linear().pack(&weights)).collect::<KernelResult<_>>()?;
        Ok(Self { product, layers })
    }

    pub(super) fn case(&self, bench: &KernelBench<'_>, rows: usize) -> Case {
        let layer = &self.layers[0];
        let element = bench.activation_dtype().block_bytes();
        let out = if self.product.is_head { DType::F32 } else { bench.activation_dtype() };
        let outputs = layer.out_features() * out.block_bytes();
        Case {
            kernel: Some(layer.kernel()),
            bytes: layer.num_bytes() + rows * (layer.in_features() * element + outputs),
            ..self.product.case(rows)
        }
    }

    /// The inputs are prepared beforehand: one preparation serves several layers.
    pub(super) fn time(&self, bench: &KernelBench<'_>, rows: usize) -> KernelResult<Timing> {
        let layer = &self.layers[0];
        let (kernels, dtype) = (&bench.kernels, bench.activation_dtype());
        let out_dtype = if self.product.is_head { DType::F32 } else { dtype };
        let (in_dims, out_dims) = ([rows, layer.in_features()], [rows, layer.out_features()]);
        let io_bytes = rows * (in_dims[1] * dtype.block_bytes() + out_dims[1] * out_dtype.block_bytes());
        let count = num_rotated(io_bytes).min(16);
        let inputs = random::tensors(kernels, count, dtype, &in_dims)?;
        let outputs = random::outputs(kernels, count, out_dtype, &out_dims)?;
        let prepared = kernels.linear().activation_bytes(rows, layer.in_features()) + SCRATCH_ALIGN;
        let mut ctx = bench.ctx(rows, rows, count * prepared)?;
        let inputs = inputs.iter().map(|x| kernels.linear().activation(&mut ctx, x));
        let inputs = inputs.collect::<KernelResult<_>>()?;
        bench.timer.time(&mut ctx, &Forward { layers: &self.layers, inputs, outputs })
    }
}

struct Forward<'a> {
    layers: &'a [Box<dyn Linear>],
    inputs: Vec<Activation>,
    outputs: Vec<Tensor>,
}

impl Work for Forward<'_> {
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> KernelResult<()> {
        let io = turn % self.inputs.len();
        self.layers[turn % self.layers.len()].forward(ctx, &self.inputs[io], &self.outputs[io])
    }
}
