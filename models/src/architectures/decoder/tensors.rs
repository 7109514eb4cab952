//! The tensors of a decoder's checkpoint.

use super::super::{AttentionModules, LinearModule, MlpModules, SparseMlpModules};
use super::{DecoderSpec, QkNorm};
use crate::checkpoint::{Checkpoint, OutputHead, TensorSpec};
use crate::config::ModelConfig;
use crate::error::Result;

/// Every tensor of a decoder of this configuration.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a configuration that [`CausalLm::load`](super::CausalLm::load)
/// refuses; as [`Checkpoint::output_head`].
pub fn decoder_tensors(checkpoint: &Checkpoint, spec: &DecoderSpec) -> Result<Vec<TensorSpec>> {
    let config = checkpoint.config();
    config.gate()?;
    let mut tensors = vec![
        TensorSpec::new("model.embed_tokens.weight", &[config.vocab_size, config.hidden_size]),
        TensorSpec::new("model.norm.weight", &[config.hidden_size]),
    ];
    if checkpoint.output_head()? == OutputHead::Own {
        tensors.push(TensorSpec::new("lm_head.weight", &[config.vocab_size, config.hidden_size]));
    }
    tensors.extend(decoder_layers(config, spec));
    Ok(tensors)
}

/// The tensors of all layers.
pub(crate) fn decoder_layers(config: &ModelConfig, spec: &DecoderSpec) -> Vec<TensorSpec> {
    let mut tensors = Vec::new();
    (0..config.num_layers).for_each(|layer| push_layer(&mut tensors, config, spec, layer));
    tensors
}

fn push_layer(tensors: &mut Vec<TensorSpec>, config: &ModelConfig, spec: &DecoderSpec, layer: usize) {
    let name = format!("model.layers.{layer}");
    let attention = AttentionModules::new(config, spec, &format!("{name}.self_attn"));
    push_linears(tensors, &attention.qkv, config.hidden_size);
    push_linears(tensors, &[attention.output], config.q_size());
    if let Some(norm) = spec.qk_norm {
        for (part, len) in [("q", config.q_size()), ("k", config.kv_size())] {
            let len = if norm == QkNorm::PerHead { config.head_dim } else { len };
            tensors.push(TensorSpec::new(format!("{name}.self_attn.{part}_norm.weight"), &[len]));
        }
    }
    match config.moe_of(layer) {
        None => {
            let mlp = MlpModules::new(spec, &format!("{name}.mlp"), config, config.intermediate_size);
            push_mlp(tensors, mlp, config.hidden_size, config.intermediate_size);
        }
        Some(moe) => {
            let modules = SparseMlpModules::new(config, spec, &name, moe);
            push_linears(tensors, &[modules.router], config.hidden_size);
            for expert in modules.experts {
                push_mlp(tensors, expert, config.hidden_size, moe.intermediate_size);
            }
            if let Some((mlp, gate, intermediate_size)) = modules.shared {
                push_mlp(tensors, mlp, config.hidden_size, intermediate_size);
                push_linears(tensors, &[gate], config.hidden_size);
            }
        }
    }
    for norm in spec.attention_norms.names().chain(spec.mlp_norms.names()) {
        tensors.push(TensorSpec::new(format!("{name}.{norm}.weight"), &[config.hidden_size]));
    }
}

fn push_mlp(tensors: &mut Vec<TensorSpec>, mlp: MlpModules, hidden_size: usize, intermediate_size: usize) {
    push_linears(tensors, &mlp.gate_up, hidden_size);
    push_linears(tensors, &[mlp.down], intermediate_size);
}

fn push_linears(tensors: &mut Vec<TensorSpec>, modules: &[LinearModule], in_features: usize) {
    for module in modules {
        tensors.push(TensorSpec::new(format!("{}.weight", module.name), &[module.out_features, in_features]));
        if module.has_bias {
            tensors.push(TensorSpec::new(format!("{}.bias", module.name), &[module.out_features]));
        }
    }
}
