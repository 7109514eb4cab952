//! A Hugging Face folder as a checkpoint.

use std::path::{Path, PathBuf};

use quire_kernels::DType;
use serde_json::{Map, Value};

use super::quantized::QuantizedTensors;
use super::{
    Checkpoint, HostTensor, LoadOptions, StoredPart, Surveyed, TensorInfo, TensorSource, TensorSpec,
    WeightDType, settings_files,
};
use crate::check::Finding;
use crate::config::{GenerationConfig, ModelConfig, Quantization};
use crate::error::{Error, Result};
use crate::mmap::TensorBytes;
use crate::safetensors::{SafetensorsFolder, StoredDType};
use crate::{file, json};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// What would work in place of 8-bit floats that nobody says the scales of.
const UNSCALED: &str =
    "F32, F16 or BF16; or a quantization_config in config.json that says how 8-bit floats are scaled";

pub(super) fn survey(path: &Path, options: &LoadOptions, errors: &mut Vec<Error>) -> Option<Surveyed> {
    let Configs { config, is_sound, generation } = survey_configs(path, errors)?;
    let before = errors.len();
    let folder = SafetensorsFolder::survey(path, errors);
    let has_tensors = folder.names().next().is_some() || errors.len() == before;
    // What is wrong with it has been told.
    let method = Quantization::from_json(&config.raw).ok().flatten();
    let source: Box<dyn TensorSource> = match method {
        Some(method) => Box::new(QuantizedTensors::new(folder, method)),
        None => Box::new(folder),
    };
    let checkpoint = Checkpoint {
        path: path.to_owned(),
        config,
        generation,
        source,
        dtype: options.dtype.map(WeightDType::dtype),
        quantize: options.quantize,
        gguf: None,
    };
    Some(Surveyed { checkpoint, config_is_sound: is_sound, has_tensors })
}

/// What a folder says of its model.
pub(super) struct Configs {
    pub(super) config: ModelConfig,
    /// Whether `config` is what its file says.
    pub(super) is_sound: bool,
    pub(super) generation: GenerationConfig,
}

/// `config.json`, which must be there, and `generation_config.json`, which may; `None` where there is no model.
pub(super) fn survey_configs(folder: &Path, errors: &mut Vec<Error>) -> Option<Configs> {
    match file::is_there(&folder.join(CONFIG)) {
        Ok(true) => {}
        Ok(false) => {
            errors.push(not_a_model(folder));
            return None;
        }
        Err(error) => {
            errors.push(error);
            return None;
        }
    }
    let before = errors.len();
    let config = survey_config(folder, errors).unwrap_or_else(|error| {
        errors.push(error);
        ModelConfig::unknown()
    });
    let is_sound = errors.len() == before;
    Some(Configs { config, is_sound, generation: survey_generation(folder, errors) })
}

fn survey_config(folder: &Path, errors: &mut Vec<Error>) -> Result<ModelConfig> {
    let mut object: Map<String, Value> = json::read(&folder.join(CONFIG))?;
    let added = settings_files::add(folder, &mut object).unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    let (config, faults) = ModelConfig::survey(&object);
    errors.extend(faults.into_iter().map(|source| {
        let added = added.filter(|_| source.fields().any(Quantization::is_field));
        Error::Config { path: folder.join(added.unwrap_or(CONFIG)), source }
    }));
    Ok(config)
}

fn survey_generation(folder: &Path, errors: &mut Vec<Error>) -> GenerationConfig {
    let path = folder.join(GENERATION_CONFIG);
    let object = json::read_if_there(&path).map_err(|error| errors.push(error));
    let (generation, faults) = GenerationConfig::survey(&object.ok().flatten().unwrap_or_default());
    errors.extend(faults.into_iter().map(|source| Error::Config { path: path.clone(), source }));
    generation
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

    fn notes(&self) -> Vec<Finding> {
        let unused = self.unused_files().into_iter().map(|(path, num_bytes)| {
            let message = "holds weights, and is not read".to_owned();
            Finding::note("unused-file", &path, None, Some(num_bytes), message)
        });
        let total = self.wrong_total().map(|(path, given, found)| {
            let message = format!("total_size: {given} bytes, but the tensors take {found}");
            Finding::note("total-size", &path, None, None, message)
        });
        unused.chain(total).collect()
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        let (Some(entry), Some(path)) = (self.entry(&spec.name), self.file(&spec.name)) else {
            return Ok(None);
        };
        let refuse = |given: String, expected: &str| Error::TensorDType {
            tensor: spec.name.clone(),
            path: path.to_owned(),
            given,
            expected: expected.to_owned(),
        };
        match entry.dtype() {
            StoredDType::Known(dtype @ (DType::F8E4M3 | DType::F8E5M2)) => {
                Err(refuse(format!("{dtype} without a scale"), UNSCALED))
            }
            StoredDType::Known(dtype) => {
                let (shape, path) = (entry.shape().to_vec(), path.to_owned());
                Ok(Some(TensorInfo { dtype: *dtype, shape, path, scale_bytes: None }))
            }
            StoredDType::Foreign(name) => Err(refuse(name.clone(), "F32, F16 or BF16")),
        }
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor> {
        let missing = |path: &Path| Error::MissingTensor { tensor: spec.name.clone(), path: path.to_owned() };
        let info = self.info(spec)?.ok_or_else(|| missing(Path::new("")))?;
        let bytes = self.bytes(&spec.name).ok_or_else(|| missing(&info.path))?;
        Ok(HostTensor { dtype: info.dtype, shape: info.shape, bytes, scales: None })
    }
}
