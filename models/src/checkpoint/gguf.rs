//! A GGUF file as a checkpoint: its names and its row order turned into those of Hugging Face.

use std::path::Path;
use std::sync::Arc;

use super::{Checkpoint, HostTensor, LoadOptions, TensorInfo, TensorSource, TensorSpec, WeightDType};
use crate::config::{GenerationConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorEntry};
use crate::mmap::TensorBytes;

/// Modules outside the layers.
const TOP: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Modules of a layer.
const LAYER: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

pub(super) fn open(path: &Path, options: &LoadOptions) -> Result<Checkpoint> {
    let file = Arc::new(Gguf::open(path)?);
    let config = ModelConfig::from_gguf(&file)?;
    let source = Box::new(GgufTensors {
        file: Arc::clone(&file),
        head_dim: config.head_dim,
        interleaved: config.architecture == "LlamaForCausalLM",
    });
    Ok(Checkpoint {
        path: path.to_owned(),
        config,
        generation: GenerationConfig::default(),
        source,
        dtype: options.dtype.map(WeightDType::dtype),
        gguf: Some(file),
    })
}

/// The tensors of a GGUF file under Hugging Face's names.
#[derive(Debug)]
struct GgufTensors {
    file: Arc<Gguf>,
    head_dim: usize,
    /// Converters to GGUF store the q and k rows of a Llama so that the two elements which rotate
    /// together are neighbours; the model here, like the original, has them half a head apart.
    interleaved: bool,
}

impl GgufTensors {
    fn find(&self, name: &str) -> Option<&TensorEntry> {
        self.file.tensor(&gguf_name(name)?)
    }

    fn is_interleaved(&self, name: &str) -> bool {
        self.interleaved && (name.contains(".q_proj.") || name.contains(".k_proj."))
    }
}

impl TensorSource for GgufTensors {
    fn format(&self) -> &'static str {
        "gguf"
    }

    fn stored_name(&self, name: &str) -> String {
        gguf_name(name).unwrap_or_else(|| name.to_owned())
    }

    fn names(&self) -> Vec<String> {
        let known = |tensor: &TensorEntry| hf_name(tensor.name()).unwrap_or_else(|| tensor.name().to_owned());
        // The rotary factors are part of the configuration.
        let tensors = self.file.tensors().iter().filter(|tensor| tensor.name() != "rope_freqs.weight");
        let mut names: Vec<String> = tensors.map(known).collect();
        names.sort();
        names
    }

    fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        Ok(self.find(&spec.name).map(|tensor| TensorInfo {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            path: self.file.path().to_owned(),
        }))
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor> {
        let found = self.find(&spec.name).and_then(|tensor| Some((tensor, self.file.bytes(tensor)?)));
        let Some((tensor, mut bytes)) = found else {
            return Err(Error::MissingTensor {
                tensor: self.stored_name(&spec.name),
                path: self.file.path().to_owned(),
            });
        };
        let num_rows = tensor.shape().first().copied().unwrap_or(1);
        if self.is_interleaved(&spec.name) && num_rows.is_multiple_of(self.head_dim) {
            bytes = TensorBytes::Owned(rows_in_halves(&bytes, num_rows, self.head_dim));
        }
        Ok(HostTensor { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes })
    }
}

/// Moves whole rows from the interleaved rotary order to halves: row `j * head_dim / 2 + i` of a head is
/// its stored row `2 * i + j`. A row is a whole number of quantized blocks, so it moves as it is.
fn rows_in_halves(bytes: &[u8], num_rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / num_rows;
    let half = head_dim / 2;
    let mut moved = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(row_bytes * head_dim) {
        for row in (0..head_dim).map(|at| 2 * (at % half) + at / half) {
            moved.extend_from_slice(&head[row * row_bytes..(row + 1) * row_bytes]);
        }
    }
    moved
}

/// `blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`.
fn hf_name(gguf: &str) -> Option<String> {
    let (stem, kind) = gguf.rsplit_once('.')?;
    match stem.strip_prefix("blk.") {
        Some(rest) => {
            let (layer, part) = rest.split_once('.')?;
            let (_, module) = LAYER.iter().find(|(theirs, _)| *theirs == part)?;
            Some(format!("model.layers.{layer}.{module}.{kind}"))
        }
        None => TOP.iter().find(|(theirs, _)| *theirs == stem).map(|(_, ours)| format!("{ours}.{kind}")),
    }
}

/// The inverse of [`hf_name`].
pub(crate) fn gguf_name(hf: &str) -> Option<String> {
    let (stem, kind) = hf.rsplit_once('.')?;
    match stem.strip_prefix("model.layers.") {
        Some(rest) => {
            let (layer, module) = rest.split_once('.')?;
            let (part, _) = LAYER.iter().find(|(_, ours)| *ours == module)?;
            Some(format!("blk.{layer}.{part}.{kind}"))
        }
        None => TOP.iter().find(|(_, ours)| *ours == stem).map(|(theirs, _)| format!("{theirs}.{kind}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_both_ways() {
        for (gguf, hf) in [
            ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("blk.11.attn_k.bias", "model.layers.11.self_attn.k_proj.bias"),
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
        ] {
            assert_eq!(hf_name(gguf).as_deref(), Some(hf));
            assert_eq!(gguf_name(hf).as_deref(), Some(gguf));
        }
        assert_eq!(hf_name("blk.0.unheard_of.weight"), None);
    }

    #[test]
    fn rows_move_from_neighbours_to_halves() {
        // Two heads of four rows, one byte a row.
        assert_eq!(rows_in_halves(&[0, 1, 2, 3, 10, 11, 12, 13], 8, 4), [0, 2, 1, 3, 10, 12, 11, 13]);
    }
}
