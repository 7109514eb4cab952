//! `config.json` of a Hugging Face folder.

use quire_kernels::DType;
use serde_json::{Map, Value};

use super::dialect::{Biases, Dialect};
use super::fields::Fields;
use super::rope::RopeContext;
use super::{ConfigError, ModelConfig, MoeConfig, Quantization, RopeConfig, SlidingWindow, head_dim_of};

impl ModelConfig {
    /// Reads and validates the object of a `config.json`.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field.
    pub fn from_json(config: &Map<String, Value>) -> Result<Self, ConfigError> {
        let architecture = architecture(Fields::new(config))?;
        let dialect = Dialect::of(&architecture);
        let complete = dialect.complete(config);
        let fields = Fields::new(&complete);
        Quantization::from_json(config)?;
        refuse_bidirectional(fields)?;
        let hidden_size = fields.required_size("hidden_size")?;
        let num_heads = fields.required_size("num_attention_heads")?;
        let num_layers = fields.required_size("num_hidden_layers")?;
        let max_position_embeddings = fields.required_size("max_position_embeddings")?;
        let head_dim = match fields.size("head_dim")? {
            Some(head_dim) => head_dim,
            None => head_dim_of(hidden_size, num_heads, &str::to_owned)?,
        };
        let (rope, local_rope) = RopeConfig::from_json(
            fields,
            RopeContext {
                head_dim,
                max_position: max_position_embeddings,
                original_max_position: fields.size("original_max_position_embeddings")?,
            },
        )?;
        dialect.check_rotary_dim(rope.rotary_dim, head_dim, &str::to_owned)?;
        let (qkv_bias, output_bias) = attention_biases(fields, dialect.biases)?;
        let read_scale = |field: &str| fields.number(field).map(|scale| scale.unwrap_or(1.0) as f32);
        let config = Self {
            hidden_size,
            intermediate_size: fields.required_size("intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads: fields.size("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim,
            vocab_size: fields.required_size("vocab_size")?,
            max_position_embeddings,
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope,
            local_rope,
            attention_scale: attention_scale(fields, head_dim)?,
            attention_soft_cap: fields.number("attn_logit_softcapping")?.map(|cap| cap as f32),
            logits_soft_cap: fields.number("final_logit_softcapping")?.map(|cap| cap as f32),
            embedding_scale: match dialect.scales_embeddings {
                true => (hidden_size as f32).sqrt(),
                false => read_scale("embedding_multiplier")?,
            },
            residual_scale: read_scale("residual_multiplier")?,
            logits_scale: 1.0 / read_scale("logits_scaling")?,
            norm_offset: dialect.norm_offset,
            moe: dialect.has_experts.then(|| MoeConfig::from_json(fields, num_layers)).transpose()?,
            hidden_act: hidden_act(fields)?,
            tie_word_embeddings: fields.boolean("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias,
            output_bias,
            mlp_bias: fields.boolean("mlp_bias")?.unwrap_or(false),
            sliding_window: SlidingWindow::from_json(fields, dialect.windows, num_layers)?,
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
    let dialect = fields.string("model_type")?.and_then(Dialect::of_model_type);
    let missing = || ConfigError::Missing { field: "architectures".to_owned() };
    dialect.map(|dialect| dialect.architecture.to_owned()).ok_or_else(missing)
}

fn refuse_bidirectional(fields: Fields<'_>) -> Result<(), ConfigError> {
    const FIELD: &str = "use_bidirectional_attention";
    match fields.find(FIELD) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(given) => Err(ConfigError::Unsupported {
            field: FIELD.to_owned(),
            given: given.to_string(),
            expected: "false".to_owned(),
        }),
    }
}

/// Whether q, k and v have biases, and whether the projection after attention has one.
fn attention_biases(fields: Fields<'_>, biases: Biases) -> Result<(bool, bool), ConfigError> {
    Ok(match biases {
        Biases::Qkv => (true, false),
        Biases::QkvIfSet => (fields.boolean("qkv_bias")?.unwrap_or(false), false),
        Biases::Attention => {
            let on_all = fields.boolean("attention_bias")?.unwrap_or(false);
            (on_all, on_all)
        }
    })
}

/// Gemma says what the root is taken of, Granite the factor itself.
fn attention_scale(fields: Fields<'_>, head_dim: usize) -> Result<f32, ConfigError> {
    if let Some(scale) = fields.number("attention_multiplier")? {
        return Ok(scale as f32);
    }
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(head_dim as f64);
    Ok(scalar.sqrt().recip() as f32)
}

fn hidden_act(fields: Fields<'_>) -> Result<String, ConfigError> {
    let given = match fields.string("hidden_activation")? {
        Some(given) => Some(given),
        None => fields.string("hidden_act")?,
    };
    Ok(given.unwrap_or("silu").to_owned())
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
