//! Scales of an 8-bit KV cache, under the names that quantizers give them.

use quire_kernels::KvScales;

use super::{Checkpoint, TensorSpec, convert};
use crate::error::{Error, Result};

/// Behind `model.layers.N.self_attn.`: of the keys, of the values. The first that is there counts.
const NAMES: [[&str; 2]; 4] = [
    ["k_scale", "v_scale"],
    ["attn.k_scale", "attn.v_scale"],
    ["k_proj.k_scale", "v_proj.v_scale"],
    ["k_proj.output_scale", "v_proj.output_scale"],
];

/// One scale for both, as the first such checkpoints had it.
const SHARED_NAMES: [&str; 2] = ["kv_scale", "attn.kv_scale"];

impl Checkpoint {
    /// What an 8-bit cache of each layer is multiplied with; empty where the checkpoint says nothing of it. A scale that is
    /// not positive stands for 1, as quantizers leave it where they have seen no text.
    ///
    /// # Errors
    /// [`Error::TensorShape`] for a scale that is not one number, [`Error::TensorDType`], [`Error::NotFinite`].
    pub fn kv_scales(&self) -> Result<Vec<KvScales>> {
        let layers = (0..self.config.num_layers).map(|layer| {
            let name = |end: &str| format!("model.layers.{layer}.self_attn.{end}");
            let find = |names: &mut dyn Iterator<Item = &str>| {
                names.map(name).find(|name| self.has_stored(name)).map(|name| self.scale(&name)).transpose()
            };
            let shared = find(&mut SHARED_NAMES.into_iter())?;
            let k = find(&mut NAMES.iter().map(|pair| pair[0]))?;
            let v = find(&mut NAMES.iter().map(|pair| pair[1]))?;
            Ok([k.or(shared), v.or(shared)])
        });
        let found = layers.collect::<Result<Vec<_>>>()?;
        if found.iter().flatten().all(Option::is_none) {
            return Ok(Vec::new());
        }
        Ok(found.into_iter().map(|[k, v]| KvScales { k: k.unwrap_or(1.0), v: v.unwrap_or(1.0) }).collect())
    }

    /// Tensors that are made to order are not stored.
    fn has_stored(&self, name: &str) -> bool {
        self.format() != "dummy" && self.contains(name)
    }

    fn scale(&self, name: &str) -> Result<f32> {
        let spec = TensorSpec::new(name, &[1]);
        let info = self.source.info(&spec)?;
        let info =
            info.ok_or_else(|| Error::MissingTensor { tensor: name.to_owned(), path: self.path.clone() })?;
        if info.shape.iter().product::<usize>() != 1 {
            let (tensor, expected) = (name.to_owned(), vec![1]);
            return Err(Error::TensorShape { tensor, path: info.path, expected, given: info.shape });
        }
        let tensor = self.source.tensor(&spec)?;
        let values = convert::to_f32(&tensor).ok_or_else(|| self.refuse_dtype(&spec, tensor.dtype))?;
        match values[..] {
            [value] if value.is_finite() => Ok(if value > 0.0 { value } else { 1.0 }),
            [value, ..] => Err(Error::NotFinite {
                tensor: name.to_owned(),
                path: info.path,
                value,
                at: 0,
                num_bad: 1,
                num_bytes: tensor.bytes.len() as u64,
            }),
            [] => Err(Error::MissingTensor { tensor: name.to_owned(), path: self.path.clone() }),
        }
    }
}

/// Whether a tensor is a scale that [`Checkpoint::kv_scales`] reads.
pub(crate) fn is_kv_scale(name: &str) -> bool {
    let Some((_, end)) = name.split_once(".self_attn.") else { return false };
    NAMES.iter().flatten().chain(&SHARED_NAMES).any(|known| *known == end)
}
