//! Linear layers.

use std::sync::Arc;

use super::bench::{Bench, Placement, epsilon, tolerance, widen};
use super::report::At;
use crate::{
    Activation, DType, HostWeight, InputPrecision, Linear, Result, StepCtx, Tensor, WeightScales, math, quant,
};

const WEIGHT_DTYPES: [DType; 17] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::IQ4NL,
    DType::IQ4XS,
];

/// Dtypes with scales beside them: shape, and rows and columns of a block of scales.
const SCALED: [(DType, [usize; 2], [usize; 2]); 9] = [
    (DType::U4, [1, 2], [1, 2]),
    (DType::U4, [33, 256], [1, 128]),
    (DType::U4, [130, 96], [1, 32]),
    (DType::U8, [40, 128], [1, 64]),
    (DType::I8, [33, 70], [1, 70]),
    (DType::F8E4M3, [48, 100], [48, 100]),
    (DType::F8E4M3, [33, 65], [1, 65]),
    (DType::F8E4M3, [150, 200], [128, 128]),
    (DType::F8E5M2, [17, 64], [16, 32]),
];

const BATCHES: [usize; 7] = [0, 1, 2, 5, 16, 33, 70];

/// A weight on the host, with its values as the reference sees them.
pub(super) struct TestWeight {
    dtype: DType,
    rows: usize,
    columns: usize,
    data: Vec<u8>,
    scales: Option<TestScales>,
    bias: Option<Vec<f32>>,
}

/// Scales that lie beside a weight.
struct TestScales {
    block: [usize; 2],
    scales: Vec<f32>,
    zeros: Option<Vec<u8>>,
    column_groups: Option<Vec<u32>>,
}

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    for dtype in WEIGHT_DTYPES {
        let shapes = match dtype.block_len() {
            1 => [(1, 1), (7, 33), (130, 64), (96, 577)],
            32 => [(1, 32), (7, 96), (130, 64), (96, 576)],
            _ => [(1, 256), (7, 512), (130, 256), (96, 1536)],
        };
        for (rows, columns) in shapes {
            let bias = rows % 2 == 1;
            let weight = TestWeight::random(bench, dtype, [rows, columns], bias);
            check_layer(bench, &format!("linear.{dtype}"), &[weight])?;
        }
    }
    for (dtype, [rows, columns], block) in SCALED {
        // Zero points and a mixed order are what grouped integers have.
        for shifted in [false, true].into_iter().take(if dtype.is_float() { 1 } else { 2 }) {
            let mut weight = TestWeight::random(bench, DType::F32, [rows, columns], rows % 2 == 1);
            weight.put_scales(bench, dtype, block, shifted);
            check_layer(bench, &format!("linear.scaled.{dtype}"), &[weight])?;
        }
    }
    for parts in [
        vec![(DType::Q4_1, 64, true), (DType::Q8_0, 32, false), (DType::F32, 7, true)],
        vec![(DType::Q4K, 96, false), (DType::Q6K, 33, true), (DType::Q5_0, 16, false)],
        vec![(DType::F16, 40, true), (DType::F16, 8, true), (DType::BF16, 8, false)],
    ] {
        let weights: Vec<_> =
            parts.iter().map(|&(d, rows, bias)| TestWeight::random(bench, d, [rows, 512], bias)).collect();
        check_layer(bench, "linear.merged", &weights)?;
    }
    Ok(())
}

impl TestWeight {
    pub(super) fn random(
        bench: &mut Bench<'_>,
        dtype: DType,
        [rows, columns]: [usize; 2],
        bias: bool,
    ) -> Self {
        let scale = 1.0 / (columns as f64).sqrt();
        let values: Vec<f32> = (0..rows * columns).map(|_| (bench.rng.normal() * scale) as f32).collect();
        let bias = bias.then(|| (0..rows).map(|_| bench.rng.normal() as f32).collect());
        Self { dtype, rows, columns, data: quant::encode(dtype, &values), scales: None, bias }
    }

    /// Gives it random elements of `dtype` with scales for blocks.
    fn put_scales(&mut self, bench: &mut Bench<'_>, dtype: DType, block: [usize; 2], shifted: bool) {
        let blocks_per_row = self.columns.div_ceil(block[1]);
        let num_blocks = self.rows.div_ceil(block[0]) * blocks_per_row;
        let (center, spread) = match dtype {
            DType::U4 => (7.5, 4.0),
            DType::U8 => (128.0, 50.0),
            DType::I8 => (0.0, 50.0),
            _ => (0.0, 1.0),
        };
        let mut random = |center: f64, spread: f64| (center + spread * bench.rng.normal()) as f32;
        let elements: Vec<f32> = (0..self.rows * self.columns).map(|_| random(center, spread)).collect();
        let scale = 1.0 / spread / (self.columns as f64).sqrt();
        let scales = (0..num_blocks).map(|_| random(scale, scale / 3.0)).collect();
        let zeros = shifted.then(|| (0..num_blocks).map(|_| random(center, spread).round() as u8).collect());
        let groups = blocks_per_row as u32;
        let column_groups = shifted.then(|| (0..self.columns as u32).map(|c| (c * 7 + 3) % groups).collect());
        self.data = quant::encode(dtype, &elements);
        self.scales = Some(TestScales { block, scales, zeros, column_groups });
        self.dtype = dtype;
    }

    pub(super) fn host(&self) -> HostWeight<'_> {
        HostWeight {
            name: "test.weight",
            dtype: self.dtype,
            rows: self.rows,
            columns: self.columns,
            data: &self.data,
            scales: self.scales.as_ref().map(TestScales::as_scales),
            bias: self.bias.as_deref(),
        }
    }

    /// The rows with their biases.
    pub(super) fn reference_rows(&self) -> Vec<(Vec<f64>, f64)> {
        let values = widen(&self.host().decode());
        let bias = |i: usize| self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
        values.chunks(self.columns).enumerate().map(|(i, row)| (row.to_vec(), bias(i))).collect()
    }
}

impl TestScales {
    fn as_scales(&self) -> WeightScales<'_> {
        WeightScales {
            block: self.block,
            scales: &self.scales,
            zeros: self.zeros.as_deref(),
            column_groups: self.column_groups.as_deref(),
        }
    }
}

/// A packed layer and what it should compute.
pub(super) struct TestLayer {
    pub(super) layer: Box<dyn Linear>,
    rows: Vec<(Vec<f64>, f64)>,
}

impl TestLayer {
    pub(super) fn pack(bench: &Bench<'_>, weights: &[TestWeight]) -> Result<Self> {
        let host: Vec<_> = weights.iter().map(TestWeight::host).collect();
        let layer = bench.kernels.linear().pack(&host)?;
        Ok(Self { layer, rows: weights.iter().flat_map(TestWeight::reference_rows).collect() })
    }

    /// The outputs for one token, each with the error that it may have when the input is exact.
    pub(super) fn expect(&self, x: &[f64], activation: DType, out: DType) -> Vec<(f64, f64)> {
        let precision = self.layer.input_precision();
        let output = |(w, bias): &(Vec<f64>, f64)| {
            let value = math::dot(x, w) + bias;
            let magnitudes: f64 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
            let rounding = magnitudes * (2.0 * epsilon(activation)).max(4e-6) + tolerance(out, value);
            (value, rounding + input_error(precision, x, w))
        };
        self.rows.iter().map(output).collect()
    }
}

/// How much rounding the input can change `x · w`.
fn input_error(precision: InputPrecision, x: &[f64], w: &[f64]) -> f64 {
    let magnitudes = || x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum::<f64>();
    match precision {
        InputPrecision::Exact => 0.0,
        InputPrecision::Rounded(dtype) => epsilon(dtype) * magnitudes(),
        InputPrecision::Int8 { block_len } => {
            let blocks = x.chunks(block_len).zip(w.chunks(block_len));
            let half_steps = blocks.map(|(x, w)| {
                let largest = x.iter().fold(0.0f64, |a, x| a.max(x.abs()));
                largest / 254.0 * w.iter().map(|w| w.abs()).sum::<f64>()
            });
            // The scale may be kept as an f16, and the quotient x / scale be rounded before it is an integer.
            1.01 * half_steps.sum::<f64>() + 2.0 * epsilon(DType::F16) * magnitudes()
        }
    }
}

fn check_layer(bench: &mut Bench<'_>, op: &str, weights: &[TestWeight]) -> Result<()> {
    let layer = match TestLayer::pack(bench, weights) {
        Ok(layer) => layer,
        Err(error) => {
            bench.report.error(At { op, case: "pack" }, &error);
            return Ok(());
        }
    };
    let features = [layer.layer.in_features(), layer.layer.out_features()];
    let expected = [weights[0].columns, weights.iter().map(|w| w.rows).sum()];
    bench.report.equal(At { op, case: "features" }, &features, &expected);
    for (i, num_tokens) in BATCHES.into_iter().enumerate() {
        let placement = Placement::BOTH[i % 2];
        let out_dtype = if i % 3 == 0 { DType::F32 } else { bench.activation() };
        check_forward(bench, op, &layer, num_tokens, placement, out_dtype)?;
    }
    check_what_is_no_number(bench, op, &layer)?;
    check_embed(bench, op, &layer)?;
    weights.iter().try_for_each(|weight| check_table(bench, op, weight))
}

/// A row with a value that is not finite has no finite output, so that nothing hides it; rows beside it do.
fn check_what_is_no_number(bench: &mut Bench<'_>, op: &str, layer: &TestLayer) -> Result<()> {
    let [columns, rows] = [layer.layer.in_features(), layer.layer.out_features()];
    for wrong in [f32::NAN, f32::INFINITY] {
        let case = format!("a row with {wrong} x [{rows}, {columns}]");
        let at = At { op, case: &case };
        let mut values = inputs(bench, 3, columns);
        values[columns + columns / 2] = wrong;
        let outputs = forward(bench, at, layer, &values, Placement::Whole, DType::F32)?;
        let is_hidden = |row: usize| outputs[row * rows..][..rows].iter().any(|value| value.is_finite());
        let is_shared = |row: usize| outputs[row * rows..][..rows].iter().any(|value| !value.is_finite());
        bench.report.equal(at, &[is_shared(0), is_hidden(1), is_shared(2)], &[false; 3]);
    }
    Ok(())
}

fn check_forward(
    bench: &mut Bench<'_>,
    op: &str,
    layer: &TestLayer,
    num_tokens: usize,
    placement: Placement,
    out_dtype: DType,
) -> Result<()> {
    let [columns, rows] = [layer.layer.in_features(), layer.layer.out_features()];
    let case = format!("{num_tokens} x [{rows}, {columns}] {placement:?} to {out_dtype}");
    let at = At { op, case: &case };
    let values = inputs(bench, num_tokens, columns);
    let expected: Vec<_> =
        widen(&values).chunks(columns).flat_map(|x| layer.expect(x, bench.activation(), out_dtype)).collect();
    let (outputs, bounds): (Vec<f64>, Vec<f64>) = expected.into_iter().unzip();
    let together = forward(bench, at, layer, &values, placement, out_dtype)?;
    bench.report.compare(at, &together, &outputs, |i| bounds[i]);
    for token in [0, num_tokens / 2, num_tokens.saturating_sub(1)] {
        if let Some(x) = values.chunks(columns).nth(token) {
            let x = x.to_vec();
            let alone = forward(bench, at, layer, &x, placement, out_dtype)?;
            let at = At { op, case: &format!("row {token} of {case} alone") };
            bench.report.same_row(at, &together[token * rows..(token + 1) * rows], &alone);
        }
    }
    Ok(())
}

/// Rows with an outlier, of zeros, and plain ones.
fn inputs(bench: &mut Bench<'_>, num_tokens: usize, columns: usize) -> Vec<f32> {
    let mut values = bench.normals(num_tokens * columns);
    for (token, row) in values.chunks_mut(columns).enumerate() {
        match token % 4 {
            1 => row[token % columns] = 96.0,
            2 => row.fill(0.0),
            _ => {}
        }
    }
    values
}

fn forward(
    bench: &mut Bench<'_>,
    at: At<'_>,
    layer: &TestLayer,
    values: &[f32],
    placement: Placement,
    out_dtype: DType,
) -> Result<Vec<f32>> {
    let columns = layer.layer.in_features();
    let dims = [values.len() / columns, layer.layer.out_features()];
    let x = bench.matrix([dims[0], columns], placement, values)?;
    let out = bench.matrix_of(out_dtype, dims, placement, &[])?;
    let kernels = bench.kernels;
    bench.ctx.step(|ctx| {
        let activation: Activation = kernels.linear().activation(ctx, &x.view)?;
        layer.layer.forward(ctx, &activation, &out.view)
    })?;
    bench.read(at, &out)
}

fn check_embed(bench: &mut Bench<'_>, op: &str, layer: &TestLayer) -> Result<()> {
    let [columns, rows] = [layer.layer.in_features(), layer.layer.out_features()];
    let case = format!("embed from [{rows}, {columns}]");
    let embed = |ctx: &mut StepCtx, ids: &Tensor, out: &Tensor| layer.layer.embed(ctx, ids, out);
    check_rows(bench, At { op, case: &case }, [rows, columns], &layer.rows, &embed)
}

/// A weight by itself is a table too.
fn check_table(bench: &mut Bench<'_>, op: &str, weight: &TestWeight) -> Result<()> {
    let [rows, columns] = [weight.rows, weight.columns];
    let case = format!("table of [{rows}, {columns}]");
    let at = At { op, case: &case };
    let weight = HostWeight { bias: None, ..weight.host() };
    let table = match bench.kernels.linear().pack_table(&weight, Arc::new(weight.data.to_vec())) {
        Ok(table) => table,
        Err(error) => {
            bench.report.error(at, &error);
            return Ok(());
        }
    };
    let values = widen(&weight.decode());
    let expected: Vec<_> = values.chunks(columns).map(|row| (row.to_vec(), 0.0)).collect();
    let embed = |ctx: &mut StepCtx, ids: &Tensor, out: &Tensor| table.embed(ctx, ids, out);
    check_rows(bench, at, [rows, columns], &expected, &embed)
}

/// What looks rows up.
type Embed<'a> = &'a dyn Fn(&mut StepCtx, &Tensor, &Tensor) -> Result<()>;

fn check_rows(
    bench: &mut Bench<'_>,
    at: At<'_>,
    [rows, columns]: [usize; 2],
    expected: &[(Vec<f64>, f64)],
    embed: Embed<'_>,
) -> Result<()> {
    let ids: Vec<i32> = [0, rows - 1, rows / 2, 0].iter().map(|&id| id as i32).collect();
    let expected: Vec<f64> = ids.iter().flat_map(|&id| expected[id as usize].0.clone()).collect();
    let device_ids = bench.i32s(&[ids.len()], &ids)?;
    let out = bench.poisoned_residual([ids.len(), columns], Placement::Whole)?;
    bench.ctx.step(|ctx| embed(ctx, &device_ids, &out.view))?;
    // A backend may keep weights in its activation dtype.
    let dtype = bench.activation();
    bench.check(at, &out, &expected, |i| tolerance(dtype, expected[i]))?;
    Ok(())
}
