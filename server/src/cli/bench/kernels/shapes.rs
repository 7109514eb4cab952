//! The sizes of a model's layers.

use std::path::{Path, PathBuf};

use quire_models::ModelConfig;

use crate::error::{Error, Result};

/// The most columns or rows of a matrix.
const MAX_SIZE: usize = 1 << 24;

/// What the shapes of the operations follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Shapes {
    pub(in crate::cli) name: String,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocab_size: usize,
    pub(super) qkv_bias: bool,
}

impl Shapes {
    /// Of a name that is known, or of a `config.json`, or of the folder that holds one.
    pub(in crate::cli) fn open(text: &str) -> Result<Self> {
        match text {
            "0.5b" => Ok(Self::qwen25_05b()),
            "7b" => Ok(Self::qwen25_7b()),
            path => Self::read(Path::new(path)),
        }
    }

    fn qwen25_05b() -> Self {
        Self {
            name: "0.5b".to_owned(),
            hidden_size: 896,
            intermediate_size: 4864,
            num_heads: 14,
            num_kv_heads: 2,
            head_dim: 64,
            vocab_size: 151_936,
            qkv_bias: true,
        }
    }

    fn qwen25_7b() -> Self {
        Self {
            name: "7b".to_owned(),
            hidden_size: 3584,
            intermediate_size: 18_944,
            num_heads: 28,
            num_kv_heads: 4,
            head_dim: 128,
            vocab_size: 152_064,
            qkv_bias: true,
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let path: PathBuf = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let text =
            std::fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let fail = |reason: String| Error::Shapes { path: path.clone(), reason };
        let fields = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
        let config = ModelConfig::from_json(&fields).map_err(|error| fail(error.to_string()))?;
        let shapes = Self {
            name: path.display().to_string(),
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            vocab_size: config.vocab_size,
            qkv_bias: config.qkv_bias,
        };
        shapes.check().map_err(fail)?;
        Ok(shapes)
    }

    /// Sizes that no model has would take more memory than there is, or than there are numbers for.
    fn check(&self) -> Result<(), String> {
        let heads = self.num_heads.max(self.num_kv_heads).saturating_mul(self.head_dim);
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("heads of head_dim", heads),
            ("vocab_size", self.vocab_size),
        ];
        match sizes.into_iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
            Some((name, size)) => Err(format!("{name} is {size}: expected 1 to {MAX_SIZE}")),
            None => Ok(()),
        }
    }

    /// Columns of the queries.
    pub(super) fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Columns of the keys, and of the values.
    pub(super) fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_gives_the_same_shapes_as_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let config = r#"{
            "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
            "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "vocab_size": 151936,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
            "tie_word_embeddings": true, "torch_dtype": "bfloat16"
        }"#;
        let path = folder.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        let read = Shapes::open(&folder.path().display().to_string()).unwrap();
        assert_eq!(read, Shapes { name: path.display().to_string(), ..Shapes::open("0.5b").unwrap() });
    }

    #[test]
    fn what_is_no_config_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json").display().to_string();
        assert!(matches!(Shapes::open(&path), Err(Error::Read { .. })));
        std::fs::write(&path, r#"{"hidden_size": 0}"#).unwrap();
        assert!(matches!(Shapes::open(&path), Err(Error::Shapes { .. })));
        let error = Shapes { vocab_size: 1 << 40, ..Shapes::qwen25_05b() }.check().unwrap_err();
        assert!(error.contains("vocab_size is 1099511627776: expected 1 to 16777216"), "{error}");
        assert!(Shapes { head_dim: usize::MAX, ..Shapes::qwen25_05b() }.check().is_err());
        assert_eq!(Shapes::qwen25_7b().check(), Ok(()));
    }
}
