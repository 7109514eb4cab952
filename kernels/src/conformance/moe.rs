//! Mixture of experts: routes, the experts' sum, the shared expert.

use super::bench::{Bench, Placement, epsilon, tolerance, widen};
use super::linear::TestWeight;
use super::report::At;
use crate::math::moe::{route, sigmoid};
use crate::{DType, ExpertWeights, Experts, Gate, Result, RouteWeights, Routes, math, silu_mul};

const BATCHES: [usize; 5] = [0, 1, 2, 7, 40];

/// `(num_experts, top_k)`.
const CHOICES: [(usize, usize); 5] = [(1, 1), (4, 2), (7, 3), (60, 4), (8, 8)];

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    // A backend without the part is told of once.
    bench.kernels.moe()?;
    for (i, (num_experts, top_k)) in CHOICES.into_iter().enumerate() {
        for num_tokens in BATCHES {
            for weights in [RouteWeights::Probabilities, RouteWeights::Normalized] {
                check_route(bench, num_tokens, num_experts, top_k, weights)?;
            }
        }
        let dtype = [DType::F32, DType::BF16, DType::F16, DType::F32, DType::BF16][i];
        check_experts(bench, dtype, (num_experts.min(8), top_k), [64, 96])?;
    }
    for dtype in [DType::Q8_0, DType::Q4_1, DType::Q4K] {
        if bench.kernels.linear().supports(dtype) {
            check_quantized(bench, dtype)?;
        }
    }
    check_add_gated(bench, 9, 70)
}

fn check_route(
    bench: &mut Bench<'_>,
    num_tokens: usize,
    num_experts: usize,
    top_k: usize,
    weights: RouteWeights,
) -> Result<()> {
    let mut logits: Vec<f32> =
        (0..num_tokens * num_experts).map(|_| 3.0 * bench.rng.normal() as f32).collect();
    // A row of equals, which go by their index, and one of which all weight lies on the last.
    logits.iter_mut().take(num_experts).for_each(|logit| *logit = 0.5);
    if let Some(last) = logits.chunks_mut(num_experts).nth(1).and_then(<[f32]>::last_mut) {
        *last = 300.0;
    }
    let expected: Vec<(usize, f64)> =
        widen(&logits).chunks(num_experts).flat_map(|row| route(row, top_k, weights)).collect();
    let device_logits = bench.f32s(&[num_tokens, num_experts], &logits)?;
    let routes = routes(bench, &vec![(num_experts, f64::NAN); num_tokens * top_k], top_k)?;
    let moe = bench.kernels.moe()?;
    bench.ctx.step(|ctx| moe.route(ctx, &device_logits, weights, &routes))?;

    let case = format!("{top_k} of {num_experts} for {num_tokens} tokens, {weights:?}");
    let at = At { op: "moe.route", case: &case };
    let experts = bench.read_i32(&routes.experts)?;
    if experts.iter().zip(&expected).any(|(given, (expected, _))| *given as usize != *expected) {
        bench.report.fail(at, "picked other experts");
    }
    let given = bench.read_f32(&routes.weights)?;
    let weights: Vec<f64> = expected.iter().map(|route| route.1).collect();
    bench.report.compare(at, &given, &weights, |i| 1e-5 * weights[i] + 1e-9);
    Ok(())
}

fn check_experts(
    bench: &mut Bench<'_>,
    dtype: DType,
    (num_experts, top_k): (usize, usize),
    [hidden_size, intermediate_size]: [usize; 2],
) -> Result<()> {
    let sizes = [hidden_size, intermediate_size];
    let experts: Vec<Expert> = (0..num_experts).map(|_| Expert::random(bench, dtype, sizes)).collect();
    let packed = {
        let host: Vec<ExpertWeights<'_>> = experts.iter().map(Expert::host).collect();
        bench.kernels.moe()?.pack(&host, Gate::Silu)?
    };
    for num_tokens in BATCHES {
        let values = bench.normals(num_tokens * hidden_size);
        let chosen = choose(bench, num_tokens, num_experts, top_k);
        let case =
            format!("{top_k} of {num_experts} {dtype} experts for {num_tokens} tokens, {}", packed.kernel());
        let together = run(bench, packed.as_ref(), &values, &chosen, top_k, hidden_size)?;
        let (expected, bounds) = expect(bench, &experts, &values, &chosen, top_k, hidden_size);
        let at = At { op: "moe.experts", case: &case };
        bench.report.compare(at, &together, &expected, |i| bounds[i]);
        if num_tokens > 0 {
            let last = num_tokens - 1;
            let (x, route) = (&values[last * hidden_size..], &chosen[last * top_k..]);
            let alone = run(bench, packed.as_ref(), x, route, top_k, hidden_size)?;
            bench.report.same_row(at, &together[last * hidden_size..], &alone);
        }
    }
    Ok(())
}

/// Experts of quantized weights give what linear layers of the same weights give.
fn check_quantized(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    const SIZE: usize = 256;
    const TOKENS: usize = 5;
    let (num_experts, top_k) = (4, 2);
    let experts: Vec<Expert> = (0..num_experts).map(|_| Expert::random(bench, dtype, [SIZE, SIZE])).collect();
    let host: Vec<ExpertWeights<'_>> = experts.iter().map(Expert::host).collect();
    let packed = bench.kernels.moe()?.pack(&host, Gate::Silu)?;
    let values = bench.normals(TOKENS * SIZE);
    let chosen = choose(bench, TOKENS, num_experts, top_k);
    let given = run(bench, packed.as_ref(), &values, &chosen, top_k, SIZE)?;

    let (mut sums, mut magnitudes) = (vec![0.0; TOKENS * SIZE], vec![0.0; TOKENS * SIZE]);
    for (expert, weights) in host.iter().enumerate() {
        let y = through_linear_layers(bench, weights, &values, [TOKENS, SIZE])?;
        for (at, y) in y.iter().enumerate() {
            let of_token = &chosen[at / SIZE * top_k..][..top_k];
            let weight: f64 = of_token.iter().filter(|route| route.0 == expert).map(|route| route.1).sum();
            sums[at] += weight * f64::from(*y);
            magnitudes[at] += weight * f64::from(y.abs());
        }
    }
    let activation = bench.activation();
    let bound =
        |i: usize| (8.0 * epsilon(activation)).max(1e-5) * magnitudes[i] + tolerance(activation, sums[i]);
    let case = format!("{dtype} as linear layers, {}", packed.kernel());
    bench.report.compare(At { op: "moe.experts", case: &case }, &given, &sums, bound);
    Ok(())
}

/// One expert's output for all tokens, by the parts it is made of.
fn through_linear_layers(
    bench: &mut Bench<'_>,
    weights: &ExpertWeights<'_>,
    values: &[f32],
    dims: [usize; 2],
) -> Result<Vec<f32>> {
    let linear = bench.kernels.linear();
    let (gate_up, down) = (linear.pack(&weights.gate_up)?, linear.pack(std::slice::from_ref(&weights.down))?);
    let x = bench.matrix(dims, Placement::Whole, values)?;
    let both = bench.poisoned([dims[0], gate_up.out_features()], Placement::Whole)?;
    let out = bench.poisoned(dims, Placement::Whole)?;
    let kernels = bench.kernels;
    bench.ctx.step(|ctx| {
        let x = linear.activation(ctx, &x.view)?;
        gate_up.forward(ctx, &x, &both.view)?;
        let gated = silu_mul(kernels, ctx, &both.view)?;
        down.forward(ctx, &gated, &out.view)
    })?;
    bench.read(At { op: "moe.experts", case: "by its parts" }, &out)
}

struct Expert {
    gate_up: [TestWeight; 2],
    down: TestWeight,
}

impl Expert {
    fn random(bench: &mut Bench<'_>, dtype: DType, [hidden_size, intermediate_size]: [usize; 2]) -> Self {
        let mut random = |sizes| TestWeight::random(bench, dtype, sizes, false);
        let inwards = [intermediate_size, hidden_size];
        Self { gate_up: [random(inwards), random(inwards)], down: random([hidden_size, intermediate_size]) }
    }

    fn host(&self) -> ExpertWeights<'_> {
        ExpertWeights { gate_up: self.gate_up.iter().map(TestWeight::host).collect(), down: self.down.host() }
    }

    /// The output for one token, and the sum of the terms' magnitudes.
    fn apply(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let gate_up: Vec<f64> = self
            .gate_up
            .iter()
            .flat_map(TestWeight::reference_rows)
            .map(|(row, _)| math::dot(x, &row))
            .collect();
        let gated = math::silu_mul(&gate_up);
        let magnitude = |row: &[f64]| row.iter().zip(&gated).map(|(w, x)| (w * x).abs()).sum::<f64>();
        let rows = self.down.reference_rows();
        rows.iter().map(|(row, _)| (math::dot(&gated, row), magnitude(row))).unzip()
    }
}

fn run(
    bench: &mut Bench<'_>,
    packed: &dyn Experts,
    values: &[f32],
    chosen: &[(usize, f64)],
    top_k: usize,
    hidden_size: usize,
) -> Result<Vec<f32>> {
    let dims = [values.len() / hidden_size, hidden_size];
    let x = bench.matrix(dims, Placement::Whole, values)?;
    let out = bench.poisoned(dims, Placement::Whole)?;
    let routes = routes(bench, chosen, top_k)?;
    let linear = bench.kernels.linear();
    bench.ctx.step(|ctx| {
        let x = linear.activation(ctx, &x.view)?;
        packed.forward(ctx, &x, &routes, &out.view)
    })?;
    bench.read(At { op: "moe.experts", case: "output" }, &out)
}

fn expect(
    bench: &Bench<'_>,
    experts: &[Expert],
    values: &[f32],
    chosen: &[(usize, f64)],
    top_k: usize,
    hidden_size: usize,
) -> (Vec<f64>, Vec<f64>) {
    let dtype = bench.activation();
    let (mut sums, mut bounds) = (Vec::new(), Vec::new());
    for (x, routes) in widen(values).chunks(hidden_size).zip(chosen.chunks(top_k)) {
        let (mut sum, mut magnitude) = (vec![0.0; hidden_size], vec![0.0; hidden_size]);
        for (expert, weight) in routes {
            let (y, terms) = experts[*expert].apply(x);
            for i in 0..hidden_size {
                sum[i] += weight * y[i];
                magnitude[i] += weight * terms[i];
            }
        }
        // The activations inside were rounded as well: more than twice.
        let relative = (8.0 * epsilon(dtype)).max(2e-5);
        bounds.extend(sum.iter().zip(&magnitude).map(|(y, terms)| relative * terms + tolerance(dtype, *y)));
        sums.extend(sum);
    }
    (sums, bounds)
}

/// Distinct experts for every token, with random weights.
fn choose(bench: &mut Bench<'_>, num_tokens: usize, num_experts: usize, top_k: usize) -> Vec<(usize, f64)> {
    let mut chosen = Vec::with_capacity(num_tokens * top_k);
    for _ in 0..num_tokens {
        let experts = bench.rng.permutation(num_experts);
        chosen.extend(experts[..top_k].iter().map(|&expert| (expert, f64::from(bench.rng.uniform() as f32))));
    }
    chosen
}

fn routes(bench: &mut Bench<'_>, chosen: &[(usize, f64)], top_k: usize) -> Result<Routes> {
    let dims = [chosen.len() / top_k, top_k];
    let experts: Vec<i32> = chosen.iter().map(|route| route.0 as i32).collect();
    let weights: Vec<f32> = chosen.iter().map(|route| route.1 as f32).collect();
    Ok(Routes { experts: bench.i32s(&dims, &experts)?, weights: bench.f32s(&dims, &weights)? })
}

fn check_add_gated(bench: &mut Bench<'_>, num_tokens: usize, columns: usize) -> Result<()> {
    let (x, out) = (bench.normals(num_tokens * columns), bench.normals(num_tokens * columns));
    let mut gates: Vec<f32> = (0..num_tokens).map(|_| bench.rng.normal() as f32).collect();
    gates[..2].copy_from_slice(&[200.0, -200.0]);
    let expected: Vec<f64> = (0..out.len())
        .map(|i| f64::from(out[i]) + sigmoid(f64::from(gates[i / columns])) * f64::from(x[i]))
        .collect();
    let gate = bench.f32s(&[num_tokens, 1], &gates)?;
    let x = bench.matrix([num_tokens, columns], Placement::Whole, &x)?;
    let out = bench.matrix([num_tokens, columns], Placement::Whole, &out)?;
    let moe = bench.kernels.moe()?;
    bench.ctx.step(|ctx| moe.add_gated(ctx, &gate, &x.view, &out.view))?;
    let dtype = bench.activation();
    let at = At { op: "moe.add_gated", case: "nine tokens" };
    bench.check(at, &out, &expected, |i| 2.0 * tolerance(dtype, expected[i]))?;
    Ok(())
}
