//! A model on disk: its configuration, its tensors under one set of names, its tokenizer's files.

mod convert;
mod dummy;
mod gguf;
mod gguf_names;
mod head;
mod hf;
mod identity;
mod kind;
mod kv_scales;
mod look;
mod options;
mod quantized;
mod settings_files;
mod source;
mod summary;
mod surveyed;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quire_kernels::DType;

use crate::config::{GenerationConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::gguf::Gguf;

use self::kind::Kind;

pub(crate) use gguf_names::GgufNames;
pub use head::OutputHead;
pub use identity::identify_tokenizer;
pub(crate) use kv_scales::is_kv_scale;
pub use options::{LoadFormat, LoadOptions, OnlineQuantization, WeightDType};
pub use source::{HostScales, HostTensor, StoredPart, TensorInfo, TensorSource, TensorSpec};
pub use summary::WeightSummary;
pub(crate) use surveyed::Surveyed;

/// An opened model. Opening checks headers; tensors are read when asked for.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    generation: GenerationConfig,
    source: Box<dyn TensorSource>,
    dtype: Option<DType>,
    quantize: Option<OnlineQuantization>,
    /// The GGUF file that also holds the tokenizer, if it is one.
    gguf: Option<std::sync::Arc<Gguf>>,
}

impl Checkpoint {
    /// Opens a GGUF file, or a folder in the form of the Hugging Face hub.
    ///
    /// # Errors
    /// What is wrong with the files, naming file and field or tensor.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Self> {
        let mut errors = Vec::new();
        let opened = Self::survey(path, options, &mut errors);
        match (errors.into_iter().next(), opened) {
            (Some(error), _) => Err(error),
            (None, Some(opened)) => Ok(opened.checkpoint),
            (None, None) => unreachable!("what cannot be opened gives an error"),
        }
    }

    /// Opens as much of a model as can be opened, and adds everything that is wrong to `errors`; `None` where it is not one.
    pub(crate) fn survey(path: &Path, options: &LoadOptions, errors: &mut Vec<Error>) -> Option<Surveyed> {
        let refused = match (Kind::of(path), options.load_format) {
            (Ok(Kind::Folder), LoadFormat::Auto) => return hf::survey(path, options, errors),
            (Ok(Kind::Gguf), LoadFormat::Auto) => return gguf::survey(path, options, errors),
            (Ok(Kind::Folder), LoadFormat::Dummy) => return dummy::survey(path, options, errors),
            (Ok(_), LoadFormat::Dummy) => Error::DummyFile { path: path.to_owned() },
            (Ok(Kind::Pickled), _) => Error::PickledWeights { path: path.to_owned() },
            (Ok(Kind::Other), _) => Error::NotAModel { path: path.to_owned() },
            (Err(error), _) => error,
        };
        errors.push(refused);
        None
    }

    /// A checkpoint over tensors from anywhere.
    pub fn from_source(
        path: &Path,
        config: ModelConfig,
        source: Box<dyn TensorSource>,
        dtype: Option<WeightDType>,
    ) -> Self {
        let dtype = dtype.map(WeightDType::dtype);
        let generation = GenerationConfig::default();
        Self { path: path.to_owned(), config, generation, source, dtype, quantize: None, gguf: None }
    }

    /// Gives the memory back that what was read of a GGUF file takes in this process: its vocabulary, mostly, which a
    /// tokenizer has made its own. It is read anew where it is asked for.
    pub fn release_pages(&self) {
        if let Some(file) = &self.gguf {
            file.release_pages();
        }
    }

    /// The file or folder that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The makers' sampling defaults; empty where there are none.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// A word for the kind of checkpoint: `gguf`, `safetensors`, `dummy`.
    pub fn format(&self) -> &'static str {
        self.source.format()
    }

    /// How the weights of linear layers are stored: `gguf`, the method of a quantized folder; `None` where they are
    /// dense.
    pub fn quantization(&self) -> Option<&'static str> {
        if self.gguf.is_some() {
            return Some("gguf");
        }
        let method = crate::config::Quantization::from_json(&self.config.raw).ok().flatten();
        method.map(|method| method.name())
    }

    /// Whether the makers had activations quantized too, which is not done here.
    pub fn quantizes_activations(&self) -> bool {
        crate::config::Quantization::has_quantized_activations(&self.config.raw)
    }

    /// What the files call the tensor that is `name` here: for messages.
    pub fn stored_name(&self, name: &str) -> String {
        self.source.stored_name(name)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    /// Ids that end a text: those of `config.json` and of `generation_config.json` together. The
    /// tokenizer's own joins them ([`Tokenizer::eos_token_ids`](crate::Tokenizer::eos_token_ids)).
    pub fn eos_token_ids(&self) -> BTreeSet<u32> {
        self.config.eos_token_ids.iter().chain(&self.generation.eos_token_ids).copied().collect()
    }

    /// Reads the tensor `name`, which must have the shape `shape`, in the dtype of the options.
    ///
    /// # Errors
    /// [`Error::MissingTensor`], [`Error::TensorShape`] or [`Error::TensorDType`].
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<HostTensor> {
        let spec = TensorSpec::new(name, shape);
        let info = self.checked_info(&spec)?;
        let tensor = self.source.tensor(&spec)?;
        if self.is_quantized_online(&spec, &info) {
            return Ok(convert::quantize(tensor, DType::F8E4M3));
        }
        convert::convert(tensor, self.dtype_of(&info)).map_err(|given| self.refuse_dtype(&spec, given))
    }

    /// Reads a vector, such as a bias or the weight of a norm, as float32.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`].
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let spec = TensorSpec::new(name, &[len]);
        self.checked_info(&spec)?;
        let tensor = self.source.tensor(&spec)?;
        convert::to_f32(&tensor).ok_or_else(|| self.refuse_dtype(&spec, tensor.dtype))
    }

    /// Every tensor that is stored, with its stored shape.
    ///
    /// # Errors
    /// [`Error::TensorDType`] where one has a dtype without a name here.
    pub fn stored(&self) -> Result<Vec<TensorSpec>> {
        let infos = self.source.names().into_iter().map(|name| {
            let info = self.source.info(&TensorSpec::new(name.as_str(), &[]))?;
            Ok(info.map(|info| TensorSpec { name, shape: info.shape }))
        });
        infos.filter_map(Result::transpose).collect()
    }

    pub(crate) fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_deref()
    }

    fn checked_info(&self, spec: &TensorSpec) -> Result<TensorInfo> {
        let Some(info) = self.source.info(spec)? else {
            let tensor = self.stored_name(&spec.name);
            return Err(Error::MissingTensor { tensor, path: self.path.clone() });
        };
        if info.shape != spec.shape {
            return Err(Error::TensorShape {
                tensor: self.stored_name(&spec.name),
                path: info.path,
                expected: spec.shape.clone(),
                given: info.shape,
            });
        }
        Ok(info)
    }

    /// What a stored tensor is handed out as. Vectors come as float32 whatever they are stored in.
    fn dtype_of(&self, info: &TensorInfo) -> DType {
        match self.dtype {
            _ if info.shape.len() < 2 => DType::F32,
            Some(dtype) => dtype,
            None => info.dtype,
        }
    }

    /// The dtype that a tensor is read as, and the bytes of the scales that it then has beside it.
    fn read_as(&self, spec: &TensorSpec, info: &TensorInfo) -> (DType, Option<usize>) {
        if self.is_quantized_online(spec, info) {
            return (DType::F8E4M3, Some(size_of::<f32>() * info.shape[0]));
        }
        let dtype = self.dtype_of(info);
        (dtype, info.scale_bytes.filter(|_| dtype == info.dtype))
    }

    /// Weights of the layers' linear modules; not the routers of experts, which choose by small differences.
    fn is_quantized_online(&self, spec: &TensorSpec, info: &TensorInfo) -> bool {
        let name = &spec.name;
        self.quantize == Some(OnlineQuantization::Fp8)
            && info.shape.len() == 2
            && matches!(info.dtype, DType::F32 | DType::F16 | DType::BF16)
            && name.contains(".layers.")
            && name.ends_with(".weight")
            && ![".gate.weight", ".router.weight"].iter().any(|router| name.ends_with(router))
    }

    fn refuse_dtype(&self, spec: &TensorSpec, given: DType) -> Error {
        Error::TensorDType {
            tensor: self.stored_name(&spec.name),
            path: self.path.clone(),
            given: given.to_string(),
            expected: "a floating-point or quantized dtype".to_owned(),
        }
    }
}
