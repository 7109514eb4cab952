//! `config.json` of a Hugging Face folder.

use quire_kernels::DType;
use serde_json::{Map, Value};

use super::fields::Fields;
use super::{ConfigError, ModelConfig, RopeConfig, SlidingWindow, head_dim_of};

/// What can be loaded where weights are quantized.
const QUANTIZATIONS: &str = "GGUF files with Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K tensors; \
                             a Hugging Face folder must hold dense weights";
/// What `Qwen2Config` of the reference assumes.
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;

impl ModelConfig {
    /// Reads and validates the object of a `config.json`.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field.
    pub fn from_json(config: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields::new(config);
        refuse_quantization(fields)?;
        refuse_partial_rotary(fields)?;
        let architecture = architecture(fields)?;
        let hidden_size = fields.required_size("hidden_size")?;
        let num_heads = fields.required_size("num_attention_heads")?;
        let num_layers = fields.required_size("num_hidden_layers")?;
        let head_dim = match fields.size("head_dim")? {
            Some(head_dim) => head_dim,
            None => head_dim_of(hidden_size, num_heads, &str::to_owned)?,
        };
        // Qwen2 always has these biases and its config.json does not say so.
        let attention_bias = fields.boolean("attention_bias")?.unwrap_or(false);
        let is_qwen2 = architecture == "Qwen2ForCausalLM";
        let config = Self {
            hidden_size,
            intermediate_size: fields.required_size("intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads: fields.size("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim,
            vocab_size: fields.required_size("vocab_size")?,
            max_position_embeddings: fields.required_size("max_position_embeddings")?,
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: RopeConfig::from_json(fields)?,
            hidden_act: fields.string("hidden_act")?.unwrap_or("silu").to_owned(),
            tie_word_embeddings: fields.boolean("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: is_qwen2 || attention_bias,
            output_bias: !is_qwen2 && attention_bias,
            mlp_bias: fields.boolean("mlp_bias")?.unwrap_or(false),
            sliding_window: sliding_window(fields, &architecture, num_layers)?,
            bos_token_id: fields.token_id("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
            dtype: dtype(fields)?,
            raw: config.clone(),
            architecture,
        };
        config.validate()?;
        Ok(config)
    }
}

fn architecture(fields: Fields<'_>) -> Result<String, ConfigError> {
    if let Some(&first) = fields.strings("architectures")?.unwrap_or_default().first() {
        return Ok(first.to_owned());
    }
    match fields.string("model_type")? {
        Some("llama") => Ok("LlamaForCausalLM".to_owned()),
        Some("qwen2") => Ok("Qwen2ForCausalLM".to_owned()),
        _ => Err(ConfigError::Missing { field: "architectures".to_owned() }),
    }
}

fn refuse_quantization(fields: Fields<'_>) -> Result<(), ConfigError> {
    let Some(quantization) = fields.object("quantization_config")? else { return Ok(()) };
    let given = quantization.string("quant_method")?.unwrap_or("unnamed").to_owned();
    Err(ConfigError::Quantization { given, known: QUANTIZATIONS })
}

fn refuse_partial_rotary(fields: Fields<'_>) -> Result<(), ConfigError> {
    match fields.number("partial_rotary_factor")? {
        None | Some(1.0) => Ok(()),
        Some(given) => Err(ConfigError::Unsupported {
            field: "partial_rotary_factor".to_owned(),
            given: given.to_string(),
            expected: "1.0".to_owned(),
        }),
    }
}

fn dtype(fields: Fields<'_>) -> Result<Option<DType>, ConfigError> {
    // Newer files say `dtype`.
    let field = if fields.find("torch_dtype").is_some() { "torch_dtype" } else { "dtype" };
    let Some(given) = fields.string(field)? else { return Ok(None) };
    match given {
        "float32" => Ok(Some(DType::F32)),
        "float16" => Ok(Some(DType::F16)),
        "bfloat16" => Ok(Some(DType::BF16)),
        _ => Err(ConfigError::number(field, "float32, float16 or bfloat16", given)),
    }
}

/// Which layers look through a window. Files say it in three ways: a list of layer types, a switch with
/// the first limited layer, or the window alone. Llama files may hold a window that the reference ignores.
fn sliding_window(
    fields: Fields<'_>,
    architecture: &str,
    num_layers: usize,
) -> Result<Option<SlidingWindow>, ConfigError> {
    let Some(num_tokens) = fields.size("sliding_window")?.filter(|&tokens| tokens > 0) else {
        return Ok(None);
    };
    if architecture == "LlamaForCausalLM" || fields.boolean("use_sliding_window")? == Some(false) {
        return Ok(None);
    }
    let layers: Vec<bool> = if let Some(types) = fields.strings("layer_types")? {
        types.iter().map(|kind| *kind == "sliding_attention").collect()
    } else if fields.boolean("use_sliding_window")?.is_some() {
        let first = fields.size("max_window_layers")?.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
        (0..num_layers.min(super::MAX_LAYERS)).map(|layer| layer >= first).collect()
    } else if architecture == "Qwen2ForCausalLM" {
        // The reference's default of `use_sliding_window`.
        return Ok(None);
    } else {
        vec![true; num_layers.min(super::MAX_LAYERS)]
    };
    Ok(layers.contains(&true).then_some(SlidingWindow { num_tokens, layers }))
}
