//! A model on disk: its configuration, its tensors under one set of names, its tokenizer's files.

mod convert;
mod dummy;
mod gguf;
mod gguf_names;
mod head;
mod hf;
mod kv_scales;
mod look;
mod quantized;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use quire_kernels::DType;

use crate::config::{GenerationConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, has_magic};

pub(crate) use gguf_names::GgufNames;
pub use head::OutputHead;
pub(crate) use kv_scales::is_kv_scale;
pub use source::{HostScales, HostTensor, StoredPart, TensorInfo, TensorSource, TensorSpec};

/// How to read a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Where tensors come from.
    pub load_format: LoadFormat,
    /// What floating-point and quantized tensors are turned into; `None` leaves each as it is stored.
    pub dtype: Option<WeightDType>,
    /// What the dense weights of linear layers are quantized to while they are read; `None` leaves them.
    pub quantize: Option<OnlineQuantization>,
    /// Seed of random weights ([`LoadFormat::Dummy`]).
    pub seed: u64,
}

/// A format that dense weights can be quantized to while they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlineQuantization {
    /// 8-bit floats (4 exponent bits) with a scale for each row; embedding, head and routers stay as they are.
    Fp8,
}

/// Where tensors come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// A GGUF file, or the safetensors files of a folder: whichever is there.
    #[default]
    Auto,
    /// Random numbers: only `config.json` is read.
    Dummy,
}

/// A dtype that weights can be turned into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDType {
    /// 32 bits.
    Float32,
    /// 16 bits, IEEE half.
    Float16,
    /// 16 bits, the upper half of a float32.
    BFloat16,
}

impl WeightDType {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            Self::Float32 => DType::F32,
            Self::Float16 => DType::F16,
            Self::BFloat16 => DType::BF16,
        }
    }
}

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

/// What the tensors of a model take, without reading them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightSummary {
    /// Elements of all tensors.
    pub num_parameters: u64,
    /// Bytes of all tensors in the dtype they are handed out in.
    pub num_bytes: u64,
    /// Tensors and bytes by that dtype.
    pub by_dtype: BTreeMap<DType, (usize, u64)>,
    /// The dtypes of matrices: those that linear layers compute with.
    pub matrix_dtypes: BTreeSet<DType>,
    /// The dtypes of matrices whose elements have scales beside them.
    pub scaled_dtypes: BTreeSet<DType>,
    /// Tensors of the checkpoint that the model does not use, sorted.
    pub unused: Vec<String>,
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
            (None, Some(opened)) => Ok(opened),
            (None, None) => unreachable!("what cannot be opened gives an error"),
        }
    }

    /// Opens as much of a model as can be opened, and adds everything that is wrong to `errors`; `None` where it cannot
    /// be known what its tensors should be.
    pub(crate) fn survey(path: &Path, options: &LoadOptions, errors: &mut Vec<Error>) -> Option<Self> {
        let opened = match (kind_of(path), options.load_format) {
            (Ok(Kind::Folder), LoadFormat::Auto) => return hf::survey(path, options, errors),
            (Ok(Kind::Gguf), LoadFormat::Auto) => return gguf::survey(path, options, errors),
            (Ok(Kind::Folder), LoadFormat::Dummy) => dummy::open(path, options),
            (Ok(_), LoadFormat::Dummy) => Err(Error::DummyFile { path: path.to_owned() }),
            (Ok(Kind::Pickled), _) => Err(Error::PickledWeights { path: path.to_owned() }),
            (Ok(Kind::Other), _) => Err(Error::NotAModel { path: path.to_owned() }),
            (Err(error), _) => Err(error),
        };
        opened.map_err(|error| errors.push(error)).ok()
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

    /// Checks that every tensor of `specs` is there in its shape, and says what they take. Tensors that
    /// the model would not use are listed, and warned about.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`]; [`Error::Problems`] where several do not fit.
    pub fn check(&self, specs: &[TensorSpec]) -> Result<WeightSummary> {
        let mut errors = Vec::new();
        let summary = self.summarize(specs, &mut errors);
        if let Some(error) = Error::of_problems(&self.path, errors) {
            return Err(error);
        }
        if !summary.unused.is_empty() {
            let stored_unused: Vec<_> = summary.unused.iter().map(|name| self.stored_name(name)).collect();
            tracing::warn!(
                target: "quire::models",
                path = %self.path.display(),
                tensors = stored_unused.join(", "),
                "the checkpoint holds tensors that the model does not use"
            );
        }
        Ok(summary)
    }

    /// What the tensors of `specs` take, with an error for each that is not there or not as it must be.
    pub(crate) fn summarize(&self, specs: &[TensorSpec], errors: &mut Vec<Error>) -> WeightSummary {
        let mut summary = WeightSummary::default();
        for spec in specs {
            match self.checked_info(spec) {
                Ok(info) => self.count(spec, &info, &mut summary, errors),
                Err(Error::MissingTensor { .. }) if self.source.is_lost(&spec.name) => {}
                Err(error) => errors.push(error),
            }
        }
        let used: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        summary.unused =
            self.source.names().into_iter().filter(|name| !used.contains(name.as_str())).collect();
        summary
    }

    fn count(
        &self,
        spec: &TensorSpec,
        info: &TensorInfo,
        summary: &mut WeightSummary,
        errors: &mut Vec<Error>,
    ) {
        if !(info.dtype.is_float() || info.dtype.is_quantized() || info.scale_bytes.is_some()) {
            errors.push(self.refuse_dtype(spec, info.dtype));
        }
        let num_elements = info.shape.iter().product::<usize>();
        let (dtype, scale_bytes) = self.read_as(spec, info);
        let num_bytes = (dtype.bytes_for(num_elements).unwrap_or(0) + scale_bytes.unwrap_or(0)) as u64;
        match scale_bytes {
            _ if info.shape.len() < 2 => false,
            Some(_) => summary.scaled_dtypes.insert(dtype),
            None => summary.matrix_dtypes.insert(dtype),
        };
        let entry = summary.by_dtype.entry(dtype).or_default();
        *entry = (entry.0 + 1, entry.1 + num_bytes);
        summary.num_parameters += num_elements as u64;
        summary.num_bytes += num_bytes;
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

/// What a path is, by its name or its first bytes.
enum Kind {
    Folder,
    Gguf,
    /// A file of Python objects.
    Pickled,
    Other,
}

fn kind_of(path: &Path) -> Result<Kind> {
    use std::io::Read as _;
    let io = |source| Error::Io { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(Kind::Folder);
    }
    let ends = |ends: &[&str]| path.extension().is_some_and(|end| ends.iter().any(|known| end == *known));
    let mut start = Vec::new();
    crate::file::open(path)?.take(4).read_to_end(&mut start).map_err(io)?;
    Ok(match () {
        () if ends(&["gguf"]) || has_magic(&start) => Kind::Gguf,
        () if ends(&["bin", "pt", "pth", "ckpt"]) => Kind::Pickled,
        () => Kind::Other,
    })
}
