//! Mixture of experts: the rows of an expert are brought together, go through its two layers, and are added up.
//!
//! Experts are worked off in their order, each by all threads. A row's sum is in that order too, and a layer's rows do not
//! depend on each other: so what a token gets does not depend on the tokens beside it, bit for bit.

use std::sync::Arc;

use quire_kernels::{
    Activation, DType, Device as _, DeviceId, Dispatch, Error, ExpertShape, ExpertWeights, Experts, Gate,
    Linear, LinearKernels, MoeKernels, Part, Result, RouteWeights, Routes, StepCtx, Tensor,
};

use crate::activation::CpuActivation;
use crate::device::{BACKEND, CpuDevice};
use crate::linear::CpuLinear;
use crate::norm::grain_rows;

/// Scratch tensors take multiples of this.
const SCRATCH_ALIGN: usize = 256;

/// The mixture-of-experts part.
pub(crate) struct CpuMoe {
    device: CpuDevice,
    linear: Arc<CpuLinear>,
}

impl CpuMoe {
    pub(crate) fn new(device: CpuDevice, linear: Arc<CpuLinear>) -> Self {
        Self { device, linear }
    }
}

impl Part for CpuMoe {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![Dispatch::new("moe", "gathered rows", "one expert after the other, by the kernels of linear")]
    }
}

impl MoeKernels for CpuMoe {
    fn pack(&self, experts: &[ExpertWeights<'_>], gate: Gate) -> Result<Box<dyn Experts>> {
        if !matches!(gate, Gate::Silu | Gate::GeluTanh) {
            let what = format!("experts gated by {gate:?}");
            return Err(Error::Unsupported { backend: BACKEND.to_owned(), part: "moe", what });
        }
        let pack = |expert: &ExpertWeights<'_>| {
            Ok(Expert {
                gate_up: self.linear.pack(&expert.gate_up)?,
                down: self.linear.pack(std::slice::from_ref(&expert.down))?,
            })
        };
        Ok(Box::new(CpuExperts {
            device: self.device.clone(),
            linear: self.linear.clone(),
            activation: CpuActivation::new(self.device.clone()),
            experts: experts.iter().map(pack).collect::<Result<_>>()?,
            gate,
        }))
    }

    /// One expert at a time, all tokens at most.
    fn experts_bytes(&self, shape: &ExpertShape, num_tokens: usize) -> usize {
        let plain = |columns: usize| (4 * num_tokens * columns).next_multiple_of(SCRATCH_ALIGN);
        let activation = |columns: usize| plain(columns) + self.linear.activation_bytes(num_tokens, columns);
        let ExpertShape { hidden_size, intermediate_size, .. } = *shape;
        activation(hidden_size)
            + plain(2 * intermediate_size)
            + activation(intermediate_size)
            + plain(hidden_size)
    }

    fn route(&self, _: &mut StepCtx, logits: &Tensor, weights: RouteWeights, routes: &Routes) -> Result<()> {
        let mut session = self.device.session();
        let (pool, [logits], [experts, route_weights]) =
            session.open([logits], [&routes.experts, &routes.weights]);
        let (logits, mut experts, route_weights) =
            (logits.rows::<f32>(), experts.rows::<i32>(), route_weights.rows::<f32>());
        let top_k = experts.columns();
        experts.for_each(pool, grain_rows(logits.columns() * top_k), |token, experts| {
            // SAFETY: the pool visits each token once.
            let route_weights = unsafe { route_weights.slice_mut(token, 0..top_k) };
            route_row(logits.row(token), weights, experts, route_weights);
        });
        Ok(())
    }

    fn add_gated(&self, _: &mut StepCtx, gate: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
        let mut session = self.device.session();
        let (pool, [gate, x], [out]) = session.open([gate, x], [out]);
        let (gate, x) = (gate.slice::<f32>(), x.rows::<f32>());
        out.rows::<f32>().for_each(pool, grain_rows(x.columns()), |token, out| {
            let weight = 1.0 / (1.0 + (-gate[token]).exp());
            out.iter_mut().zip(x.row(token)).for_each(|(out, x)| *out += weight * x);
        });
        Ok(())
    }
}

/// Picks the best by repeated search: there are few to pick.
fn route_row(logits: &[f32], weights: RouteWeights, experts: &mut [i32], route_weights: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    for (place, route_weight) in route_weights.iter_mut().enumerate() {
        let (taken, rest) = experts.split_at_mut(place);
        let open = (0..logits.len()).filter(|&expert| !taken.contains(&(expert as i32)));
        // The first of equals: a later one has to be larger.
        let best = open.reduce(|best, expert| if logits[expert] > logits[best] { expert } else { best });
        let best = best.expect("a token goes to no more experts than there are");
        rest[0] = best as i32;
        *route_weight = (logits[best] - largest).exp() / total;
    }
    if weights == RouteWeights::Normalized {
        let kept: f32 = route_weights.iter().sum();
        route_weights.iter_mut().for_each(|weight| *weight /= kept);
    }
}

struct Expert {
    gate_up: Box<dyn Linear>,
    down: Box<dyn Linear>,
}

struct CpuExperts {
    device: CpuDevice,
    linear: Arc<CpuLinear>,
    activation: CpuActivation,
    experts: Vec<Expert>,
    gate: Gate,
}

/// A token that goes to an expert, and its weight in the sum.
#[derive(Clone, Copy)]
struct Visit {
    token: usize,
    weight: f32,
}

impl Experts for CpuExperts {
    fn num_bytes(&self) -> usize {
        self.experts.iter().map(|expert| expert.gate_up.num_bytes() + expert.down.num_bytes()).sum()
    }

    fn kernel(&self) -> String {
        let mut names: Vec<String> =
            self.experts.iter().flat_map(|expert| [expert.gate_up.kernel(), expert.down.kernel()]).collect();
        names.sort();
        names.dedup();
        format!("experts {}", names.join(" + "))
    }

    fn forward(&self, ctx: &mut StepCtx, x: &Activation, routes: &Routes, out: &Tensor) -> Result<()> {
        self.clear(out);
        let visits = self.visits(routes);
        for (expert, visits) in self.experts.iter().zip(&visits) {
            if !visits.is_empty() {
                ctx.scope(|ctx| self.visit(ctx, expert, visits, &x.x, out))?;
            }
        }
        Ok(())
    }
}

impl CpuExperts {
    fn clear(&self, out: &Tensor) {
        let mut session = self.device.session();
        let (pool, [], [out]) = session.open([], [out]);
        let mut out = out.rows::<f32>();
        out.for_each(pool, grain_rows(out.columns()), |_, row| row.fill(0.0));
    }

    /// The tokens of each expert, in order.
    fn visits(&self, routes: &Routes) -> Vec<Vec<Visit>> {
        let mut visits = vec![Vec::new(); self.experts.len()];
        let mut session = self.device.session();
        let (_, [experts, weights], []) = session.open([&routes.experts, &routes.weights], []);
        let (experts, weights) = (experts.rows::<i32>(), weights.rows::<f32>());
        for token in 0..experts.len() {
            for (&expert, &weight) in experts.row(token).iter().zip(weights.row(token)) {
                let expert = usize::try_from(expert).expect("the index of an expert is not negative");
                let visits = &mut visits[expert];
                let is_new = visits.last().is_none_or(|last: &Visit| last.token != token);
                assert!(is_new, "a token goes to an expert once");
                visits.push(Visit { token, weight });
            }
        }
        visits
    }

    /// Adds what one expert makes of its tokens.
    fn visit(
        &self,
        ctx: &mut StepCtx,
        expert: &Expert,
        visits: &[Visit],
        x: &Tensor,
        out: &Tensor,
    ) -> Result<()> {
        let own = ctx.alloc(DType::F32, &[visits.len(), x.num_columns()])?;
        self.gather(visits, x, &own);
        let own = self.linear.activation(ctx, &own)?;
        let gate_up = ctx.alloc(DType::F32, &[visits.len(), expert.gate_up.out_features()])?;
        expert.gate_up.forward(ctx, &own, &gate_up)?;
        let gated = ctx.alloc(DType::F32, &[visits.len(), expert.down.in_features()])?;
        self.activation.gated_mul(self.gate, &gate_up, &gated);
        let gated = self.linear.activation(ctx, &gated)?;
        let y = ctx.alloc(DType::F32, &[visits.len(), out.num_columns()])?;
        expert.down.forward(ctx, &gated, &y)?;
        self.add(visits, &y, out);
        Ok(())
    }

    fn gather(&self, visits: &[Visit], x: &Tensor, own: &Tensor) {
        let mut session = self.device.session();
        let (pool, [x], [own]) = session.open([x], [own]);
        let (x, mut own) = (x.rows::<f32>(), own.rows::<f32>());
        own.for_each(pool, grain_rows(x.columns()), |i, row| row.copy_from_slice(x.row(visits[i].token)));
    }

    fn add(&self, visits: &[Visit], y: &Tensor, out: &Tensor) {
        let mut session = self.device.session();
        let (pool, [y], [out]) = session.open([y], [out]);
        let (y, out) = (y.rows::<f32>(), out.rows::<f32>());
        let columns = out.columns();
        pool.for_each(visits.len(), grain_rows(columns), |places| {
            for place in places {
                let Visit { token, weight } = visits[place];
                // SAFETY: the tokens of an expert's visits are distinct (`visits` asserts it), and the pool visits each
                // place once.
                let out = unsafe { out.slice_mut(token, 0..columns) };
                out.iter_mut().zip(y.row(place)).for_each(|(out, y)| *out += weight * y);
            }
        });
    }
}
