//! Products against f64, and the laws that they keep: rows, threads, merging and instruction sets change no bit.

use quire_kernels::{DType, Device, HostWeight, Linear, LinearKernels, StepCtx, Tensor, quant};

use super::CpuLinear;
use super::activation::tests::quantize;
use super::activation::{BLOCK_LEN, QuantBlock};
use crate::Isa;
use crate::device::CpuDevice;

const DENSE: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];
/// Block types that are decoded to f32.
const DECODED: [DType; 4] = [DType::Q2K, DType::Q3K, DType::IQ4NL, DType::IQ4XS];
const QUANTIZED: [DType; 8] =
    [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q4K, DType::Q5K, DType::Q6K];

/// Reproducible values around zero, a few of them large.
fn values(seed: usize, len: usize) -> Vec<f32> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|i| next() * if i % 37 == 5 { 8.0 } else { 1.0 }).collect()
}

struct Rig {
    device: CpuDevice,
    linear: CpuLinear,
    ctx: StepCtx,
}

impl Rig {
    fn new(isa: Isa, threads: usize) -> Self {
        let device = CpuDevice::new(threads, isa).unwrap();
        let ctx = StepCtx::new(&device, 16 << 20).unwrap();
        Self { linear: CpuLinear::new(device.clone()), device, ctx }
    }

    fn upload<T: bytemuck::NoUninit>(&mut self, dtype: DType, dims: &[usize], values: &[T]) -> Tensor {
        let buffer = self.device.allocate(size_of_val(values)).unwrap();
        let tensor = Tensor::new(buffer, 0, dtype, dims);
        self.ctx.write(&tensor, values).unwrap();
        tensor
    }

    /// `layer(x)`, the output poisoned beforehand.
    fn forward(&mut self, layer: &dyn Linear, x: &[f32]) -> Vec<f32> {
        let tokens = x.len() / layer.in_features();
        let x = self.upload(DType::F32, &[tokens, layer.in_features()], x);
        let out = vec![f32::NAN; tokens * layer.out_features()];
        let out = self.upload(DType::F32, &[tokens, layer.out_features()], &out);
        self.ctx
            .scope(|ctx| {
                let x = self.linear.activation(ctx, &x)?;
                layer.forward(ctx, &x, &out)
            })
            .unwrap();
        self.ctx.read(&out).unwrap().wait_as().unwrap()
    }
}

/// A weight and what it is.
struct Weight {
    dtype: DType,
    rows: usize,
    columns: usize,
    data: Vec<u8>,
    bias: Vec<f32>,
}

impl Weight {
    fn new(dtype: DType, rows: usize, columns: usize) -> Self {
        let data = quant::encode(dtype, &values(rows + columns, rows * columns));
        Self { dtype, rows, columns, data, bias: values(rows, rows) }
    }

    fn host(&self) -> HostWeight<'_> {
        let Self { dtype, rows, columns, ref data, ref bias } = *self;
        HostWeight { name: "w", dtype, rows, columns, data, scales: None, bias: Some(bias) }
    }

    /// `x Wᵀ + b` of one row in f64, and the sum of the terms' magnitudes.
    fn product(&self, x: &[f32]) -> Vec<(f64, f64)> {
        let w = quant::decode(self.dtype, &self.data);
        let row = |(w, bias): (&[f32], &f32)| {
            let terms = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            terms.fold((f64::from(*bias), 0.0), |(sum, all), term| (sum + term, all + term.abs()))
        };
        w.chunks_exact(self.columns).zip(&self.bias).map(row).collect()
    }
}

/// What the quantized kernels see of `x`.
fn rounded(x: &[f32]) -> Vec<f32> {
    let blocks = x.as_chunks::<BLOCK_LEN>().0.iter().map(quantize);
    let values = |b: QuantBlock| b.quants.map(|quad| quad.map(|q| f32::from(q) * b.scale));
    blocks.flat_map(|b| values(b).concat()).collect()
}

fn check_against_f64(dtype: DType, rows: usize, columns: usize) {
    let weight = Weight::new(dtype, rows, columns);
    for isa in Isa::available() {
        let mut rig = Rig::new(isa, 2);
        let layer = rig.linear.pack(&[weight.host()]).unwrap();
        for tokens in [0, 1, 2, 7, 25] {
            let x = values(tokens, tokens * columns);
            let out = rig.forward(layer.as_ref(), &x);
            for (token, out) in out.chunks_exact(rows).enumerate() {
                let x = &x[token * columns..][..columns];
                let x = if QUANTIZED.contains(&dtype) { rounded(x) } else { x.to_vec() };
                for (row, (&out, (want, scale))) in out.iter().zip(weight.product(&x)).enumerate() {
                    let error = (f64::from(out) - want).abs();
                    let bound = 2e-6 * scale + 1e-6;
                    assert!(error <= bound, "{dtype} {isa} {token} {row}: {out}, not {want}: {error}");
                }
            }
        }
    }
}

#[test]
fn dense_products_are_those_of_f64() {
    for dtype in DENSE {
        for (rows, columns) in [(1, 1), (16, 5), (33, 100), (80, 257)] {
            check_against_f64(dtype, rows, columns);
        }
    }
}

#[test]
fn quantized_products_are_those_of_f64() {
    for dtype in QUANTIZED.into_iter().chain(DECODED) {
        for (rows, blocks) in [(1, 1), (16, 2), (35, 3)] {
            check_against_f64(dtype, rows, blocks * dtype.block_len());
        }
    }
}

#[test]
fn rows_threads_and_instruction_sets_change_no_bit() {
    for dtype in DENSE.into_iter().chain(QUANTIZED).chain(DECODED) {
        let (rows, columns, tokens) = (100, 512, 53);
        let (weight, x) = (Weight::new(dtype, rows, columns), values(9, tokens * columns));
        let mut all: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut rig = Rig::new(isa, threads);
                let layer = rig.linear.pack(&[weight.host()]).unwrap();
                let together = rig.forward(layer.as_ref(), &x);
                assert_eq!(*all.get_or_insert_with(|| together.clone()), together, "{dtype} {isa} {threads}");
                for (token, x) in x.chunks_exact(columns).enumerate().step_by(7) {
                    let alone = rig.forward(layer.as_ref(), x);
                    assert_eq!(alone, together[token * rows..][..rows], "{dtype} {isa} row {token}");
                }
            }
        }
    }
}

#[test]
fn merged_weights_give_what_each_gives_alone() {
    let dtypes = [DType::Q4_1, DType::Q8_0, DType::Q6K, DType::BF16];
    let weights: Vec<_> =
        dtypes.iter().enumerate().map(|(i, &dtype)| Weight::new(dtype, 9 + 16 * i, 256)).collect();
    let mut rig = Rig::new(Isa::best(), 2);
    let hosts: Vec<_> = weights.iter().map(Weight::host).collect();
    let merged = rig.linear.pack(&hosts).unwrap();
    assert_eq!((merged.in_features(), merged.out_features()), (256, 9 + 25 + 41 + 57));
    let x = values(3, 5 * 256);
    let out = rig.forward(merged.as_ref(), &x);
    let mut first = 0;
    for weight in &weights {
        let layer = rig.linear.pack(&[weight.host()]).unwrap();
        let alone = rig.forward(layer.as_ref(), &x);
        for (alone, out) in alone.chunks_exact(weight.rows).zip(out.chunks_exact(merged.out_features())) {
            assert_eq!(alone, &out[first..first + weight.rows], "{}", weight.dtype);
        }
        first += weight.rows;
    }
}

#[test]
fn an_embedded_row_is_the_row_of_the_file() {
    for dtype in DENSE.into_iter().chain(QUANTIZED).chain(DECODED) {
        let weights = [Weight::new(dtype, 21, 512), Weight::new(dtype, 50, 512)];
        let mut rig = Rig::new(Isa::best(), 2);
        let layer = rig.linear.pack(&[weights[0].host(), weights[1].host()]).unwrap();
        let ids = [0, 20, 21, 70, 5, 5];
        let ids_tensor = rig.upload(DType::I32, &[ids.len()], &ids);
        let out = rig.upload(DType::F32, &[ids.len(), 512], &vec![f32::NAN; ids.len() * 512]);
        layer.embed(&mut rig.ctx, &ids_tensor, &out).unwrap();
        let out: Vec<f32> = rig.ctx.read(&out).unwrap().wait_as().unwrap();
        let all: Vec<f32> = weights.iter().flat_map(|w| quant::decode(dtype, &w.data)).collect();
        for (out, id) in out.chunks_exact(512).zip(ids) {
            let want = &all[id as usize * 512..][..512];
            assert!(out.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype} row {id}");
        }
    }
}

#[test]
fn a_packed_weight_takes_about_what_the_file_takes() {
    let rig = Rig::new(Isa::best(), 1);
    for dtype in DENSE.into_iter().chain(QUANTIZED).chain(DECODED) {
        let mut weight = Weight::new(dtype, 64, 1024);
        weight.bias.clear();
        let layer = rig.linear.pack(&[HostWeight { bias: None, ..weight.host() }]).unwrap();
        let ratio = layer.num_bytes() as f64 / weight.data.len() as f64;
        assert!((1.0..1.04).contains(&ratio), "{dtype}: {ratio}");
    }
}
