//! A Hugging Face folder as a checkpoint.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::quantized::QuantizedTensors;
use super::{
    Checkpoint, HostTensor, LoadOptions, StoredPart, TensorInfo, TensorSource, TensorSpec, WeightDType,
};
use crate::config::{GenerationConfig, ModelConfig, Quantization};
use crate::error::{Error, Result};
use crate::mmap::TensorBytes;
use crate::safetensors::{SafetensorsFolder, StoredDType};
use crate::{file, json};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

pub(super) fn survey(path: &Path, options: &LoadOptions, errors: &mut Vec<Error>) -> Option<Checkpoint> {
    let configs = read_configs(path);
    if let Err(Error::NotAModel { .. }) = configs {
        errors.push(not_a_model(path));
        return None;
    }
    let configs = configs.map_err(|error| errors.push(error)).ok();
    let folder = SafetensorsFolder::survey(path, errors);
    let (config, generation) = configs?;
    // Without a single tensor there is nothing to compare.
    folder.names().next()?;
    let method = match Quantization::from_json(&config.raw) {
        Ok(method) => method,
        Err(source) => {
            errors.push(Error::Config { path: path.join(CONFIG), source });
            return None;
        }
    };
    let source: Box<dyn TensorSource> = match method {
        Some(method) => Box::new(QuantizedTensors::new(folder, method)),
        None => Box::new(folder),
    };
    Some(Checkpoint {
        path: path.to_owned(),
        config,
        generation,
        source,
        dtype: options.dtype.map(WeightDType::dtype),
        quantize: options.quantize,
        gguf: None,
    })
}

/// A folder without a configuration may hold what a user meant.
fn not_a_model(path: &Path) -> Error {
    let mut nothing = Vec::new();
    SafetensorsFolder::survey(path, &mut nothing);
    match nothing.into_iter().next() {
        Some(error @ (Error::FolderOfGguf { .. } | Error::PickledWeights { .. })) => error,
        _ => Error::NotAModel { path: path.to_owned() },
    }
}

/// `config.json`, which must be there, and `generation_config.json`, which may.
pub(super) fn read_configs(folder: &Path) -> Result<(ModelConfig, GenerationConfig)> {
    let path = folder.join(CONFIG);
    if !file::is_there(&path)? {
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
        self.names().map(str::to_owned).collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    fn is_lost(&self, name: &str) -> bool {
        self.is_lost(name)
    }

    fn parts(&self, spec: &TensorSpec) -> Vec<StoredPart> {
        self.part(&spec.name).into_iter().collect()
    }

    fn headers(&self) -> Vec<TensorBytes> {
        self.headers()
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.files()
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        let (Some(entry), Some(path)) = (self.entry(&spec.name), self.file(&spec.name)) else {
            return Ok(None);
        };
        match entry.dtype() {
            StoredDType::Known(dtype) => {
                let (shape, path) = (entry.shape().to_vec(), path.to_owned());
                Ok(Some(TensorInfo { dtype: *dtype, shape, path, scale_bytes: None }))
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
        Ok(HostTensor { dtype: info.dtype, shape: info.shape, bytes, scales: None })
    }
}
