//! The decoder of a paper, written down a second time: one sequence, no cache, f64, nothing merged.

use quire_kernels::quant;
use quire_models::{Checkpoint, ModelConfig, OutputHead};

/// A row for every token.
type Rows = Vec<Vec<f64>>;

pub(crate) struct Naive<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

impl<'a> Naive<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, config: checkpoint.config() }
    }

    /// The logits after every token.
    pub(crate) fn logits(&self, token_ids: &[u32]) -> Rows {
        let config = self.config;
        let embedding = self.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
        let mut x: Rows = token_ids.iter().map(|&id| embedding[id as usize].clone()).collect();
        for layer in 0..config.num_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let normed = self.norm(&x, &name("input_layernorm"));
            add(&mut x, self.attention(&normed, layer, &name("self_attn")));
            let normed = self.norm(&x, &name("post_attention_layernorm"));
            add(&mut x, self.mlp(&normed, &name("mlp")));
        }
        let head = match self.checkpoint.output_head().unwrap() {
            OutputHead::Tied => embedding,
            OutputHead::Own => self.matrix("lm_head.weight", config.vocab_size, config.hidden_size),
        };
        self.norm(&x, "model.norm").iter().map(|x| head.iter().map(|row| dot(row, x)).collect()).collect()
    }

    fn attention(&self, x: &Rows, layer: usize, name: &str) -> Rows {
        let config = self.config;
        let (dim, group) = (config.head_dim, config.num_heads / config.num_kv_heads);
        let project =
            |part: &str, size, has_bias| self.linear(x, &format!("{name}.{part}_proj"), size, has_bias);
        let q = self.rotated(project("q", config.q_size(), config.qkv_bias));
        let k = self.rotated(project("k", config.kv_size(), config.qkv_bias));
        let v = project("v", config.kv_size(), config.qkv_bias);
        let mixed = (0..x.len()).map(|at| {
            let first = config.window(layer).map_or(0, |window| (at + 1).saturating_sub(window));
            let heads = (0..config.num_heads).flat_map(|head| {
                let (q_head, kv_head) = (head * dim, head / group * dim);
                let query = &q[at][q_head..q_head + dim];
                let scores = (first..=at).map(|past| dot(query, &k[past][kv_head..kv_head + dim]));
                let weights: Vec<f64> = scores.map(|score| (score / (dim as f64).sqrt()).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let v = &v;
                (kv_head..kv_head + dim).map(move |column| {
                    (first..=at).zip(&weights).map(|(past, weight)| weight * v[past][column]).sum::<f64>()
                        / sum
                })
            });
            heads.collect()
        });
        self.linear(&mixed.collect(), &format!("{name}.o_proj"), config.hidden_size, config.output_bias)
    }

    fn mlp(&self, x: &Rows, name: &str) -> Rows {
        let config = self.config;
        let project = |part: &str| {
            self.linear(x, &format!("{name}.{part}_proj"), config.intermediate_size, config.mlp_bias)
        };
        let gated = project("gate").into_iter().zip(project("up")).map(|(gate, up)| {
            gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
        });
        self.linear(&gated.collect(), &format!("{name}.down_proj"), config.hidden_size, config.mlp_bias)
    }

    fn rotated(&self, mut x: Rows) -> Rows {
        let half = self.config.head_dim / 2;
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(2 * half) {
                for pair in 0..half {
                    let frequency = self.config.rope.theta.powf(-(pair as f64) / half as f64);
                    let (sin, cos) = (position as f64 * frequency).sin_cos();
                    let (a, b) = (head[pair], head[pair + half]);
                    (head[pair], head[pair + half]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        x
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let weight = self.checkpoint.vector(&format!("{name}.weight"), self.config.hidden_size).unwrap();
        let normed = |row: &Vec<f64>| {
            let mean = dot(row, row) / row.len() as f64;
            let scale = (mean + f64::from(self.config.rms_norm_eps)).sqrt().recip();
            row.iter().zip(&weight).map(|(value, weight)| value * scale * f64::from(*weight)).collect()
        };
        x.iter().map(normed).collect()
    }

    fn linear(&self, x: &Rows, name: &str, size: usize, has_bias: bool) -> Rows {
        let weight = self.matrix(&format!("{name}.weight"), size, x[0].len());
        let bias = match has_bias {
            true => self.checkpoint.vector(&format!("{name}.bias"), size).unwrap(),
            false => vec![0.0; size],
        };
        let row = |x: &Vec<f64>| weight.iter().zip(&bias).map(|(w, b)| dot(w, x) + f64::from(*b)).collect();
        x.iter().map(row).collect()
    }

    fn matrix(&self, name: &str, rows: usize, columns: usize) -> Rows {
        let tensor = self.checkpoint.tensor(name, &[rows, columns]).unwrap();
        let values = quant::decode(tensor.dtype, &tensor.bytes);
        values.chunks(columns).map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut Rows, delta: Rows) {
    x.iter_mut().zip(delta).for_each(|(x, delta)| x.iter_mut().zip(delta).for_each(|(x, delta)| *x += delta));
}
