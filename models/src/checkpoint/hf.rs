//! A Hugging Face folder as a checkpoint.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Checkpoint, HostTensor, LoadOptions, TensorInfo, TensorSource, TensorSpec, WeightDType};
use crate::config::{GenerationConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::json;
use crate::safetensors::{SafetensorsFolder, StoredDType};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

pub(super) fn open(path: &Path, options: &LoadOptions) -> Result<Checkpoint> {
    let (config, generation) = read_configs(path)?;
    let source = Box::new(SafetensorsFolder::open(path)?);
    Ok(Checkpoint {
        path: path.to_owned(),
        config,
        generation,
        source,
        dtype: options.dtype.map(WeightDType::dtype),
        gguf: None,
    })
}

/// `config.json`, which must be there, and `generation_config.json`, which may.
pub(super) fn read_configs(folder: &Path) -> Result<(ModelConfig, GenerationConfig)> {
    let path = folder.join(CONFIG);
    if !path.exists() {
        return Err(Error::NotAModel { path: folder.to_owned() });
    }
    let object: Map<String, Value> = json::read(&path)?;
    let config = ModelConfig::from_json(&object).map_err(|source| Error::Config { path, source })?;

    let path = folder.join(GENERATION_CONFIG);
    let object: Map<String, Value> = json::read_if_there(&path)?.unwrap_or_default();
    let generation = GenerationConfig::from_json(&object).map_err(|source| Error::Config { path, source })?;
    Ok((config, generation))
}

impl TensorSource for SafetensorsFolder {
    fn format(&self) -> &'static str {
        "safetensors"
    }

    fn names(&self) -> Vec<String> {
        // Old Llama folders hold these tables, which are computed here.
        self.names().filter(|name| !name.ends_with(".rotary_emb.inv_freq")).map(str::to_owned).collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        let (Some(entry), Some(path)) = (self.entry(&spec.name), self.file(&spec.name)) else {
            return Ok(None);
        };
        match entry.dtype() {
            StoredDType::Known(dtype) => {
                Ok(Some(TensorInfo { dtype: *dtype, shape: entry.shape().to_vec(), path: path.to_owned() }))
            }
            StoredDType::Foreign(name) => Err(Error::TensorDType {
                tensor: spec.name.clone(),
                path: path.to_owned(),
                given: name.clone(),
                expected: "F32, F16, BF16, F8_E4M3 or F8_E5M2".to_owned(),
            }),
        }
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor> {
        let missing = |path: &Path| Error::MissingTensor { tensor: spec.name.clone(), path: path.to_owned() };
        let info = self.info(spec)?.ok_or_else(|| missing(Path::new("")))?;
        let bytes = self.bytes(&spec.name).ok_or_else(|| missing(&info.path))?;
        Ok(HostTensor { dtype: info.dtype, shape: info.shape, bytes })
    }
}
