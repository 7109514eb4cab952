//! `config.json` of a Hugging Face folder.

use quire_kernels::DType;
use serde_json::{Map, Value};

use super::dialect::{Biases, Dialect};
use super::faults::Faults;
use super::fields::Fields;
use super::rope::RopeContext;
use super::{
    ConfigError, MAX_SIZE, ModelConfig, MoeConfig, Quantization, RopeConfig, RopeScaling, STAND_IN_SIZE,
    SlidingWindow, head_dim_of,
};

impl ModelConfig {
    /// Reads and validates the object of a `config.json`.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field.
    pub fn from_json(config: &Map<String, Value>) -> Result<Self, ConfigError> {
        let (read, faults) = Self::survey(config);
        faults.into_iter().next().map_or(Ok(read), Err)
    }

    /// The same, with all that is wrong. Where that is something, what was read is good for nothing but to look for more.
    pub(crate) fn survey(config: &Map<String, Value>) -> (Self, Vec<ConfigError>) {
        let faults = Faults::default();
        let read = Self::read(config, &faults);
        read.check(&str::to_owned, &faults);
        (read, faults.into_vec())
    }

    /// What stands for a configuration that cannot be read.
    pub(crate) fn unknown() -> Self {
        Self::survey(&Map::new()).0
    }

    fn read(config: &Map<String, Value>, faults: &Faults) -> Self {
        let architecture = architecture(Fields::new(config, faults));
        let dialect = Dialect::of(&architecture);
        let complete = dialect.complete(config);
        let fields = Fields::new(&complete, faults);
        Quantization::read(fields);
        refuse_bidirectional(fields);
        let sizes = Sizes::read(fields);
        let (rope, local_rope) = sizes.ropes(fields, dialect.has_local_rope);
        faults.take(dialect.check_rotary_dim(rope.rotary_dim, sizes.head_dim(), &str::to_owned));
        let (qkv_bias, output_bias) = attention_biases(fields, dialect.biases);
        let read_scale = |field: &str| fields.number(field).unwrap_or(1.0) as f32;
        let stand_in = |size: Option<usize>| size.unwrap_or(STAND_IN_SIZE);
        let num_heads = sizes.num_heads.unwrap_or(1);
        let num_layers = sizes.num_layers.unwrap_or(1);
        let window = |num_layers| SlidingWindow::from_json(fields, dialect.windows, num_layers);
        Self {
            hidden_size: stand_in(sizes.hidden_size),
            intermediate_size: stand_in(fields.required_size("intermediate_size")),
            num_layers,
            num_heads,
            num_kv_heads: fields.size("num_key_value_heads").unwrap_or(num_heads),
            head_dim: sizes.head_dim(),
            // Any token is in such a vocabulary.
            vocab_size: fields.required_size("vocab_size").unwrap_or(MAX_SIZE),
            max_position_embeddings: stand_in(sizes.max_position),
            rms_norm_eps: fields.number("rms_norm_eps").unwrap_or(1e-6) as f32,
            rope,
            local_rope,
            attention_scale: attention_scale(fields, sizes.head_dim()),
            attention_soft_cap: fields.number("attn_logit_softcapping").map(|cap| cap as f32),
            logits_soft_cap: fields.number("final_logit_softcapping").map(|cap| cap as f32),
            embedding_scale: match dialect.scales_embeddings {
                true => (stand_in(sizes.hidden_size) as f32).sqrt(),
                false => read_scale("embedding_multiplier"),
            },
            residual_scale: read_scale("residual_multiplier"),
            logits_scale: 1.0 / read_scale("logits_scaling"),
            norm_offset: dialect.norm_offset,
            moe: dialect.has_experts.then(|| MoeConfig::from_json(fields, num_layers)).flatten(),
            hidden_act: hidden_act(fields),
            tie_word_embeddings: fields.boolean("tie_word_embeddings").unwrap_or(false),
            qkv_bias,
            output_bias,
            mlp_bias: fields.boolean("mlp_bias").unwrap_or(false),
            sliding_window: sizes.num_layers.and_then(window),
            bos_token_id: fields.token_id("bos_token_id"),
            eos_token_ids: fields.token_ids("eos_token_id"),
            dtype: dtype(fields),
            raw: config.clone(),
            architecture,
        }
    }
}

/// The sizes that other fields must fit, as far as they can be read.
struct Sizes {
    hidden_size: Option<usize>,
    num_heads: Option<usize>,
    num_layers: Option<usize>,
    max_position: Option<usize>,
    head_dim: Option<usize>,
}

impl Sizes {
    fn read(fields: Fields<'_>) -> Self {
        let hidden_size = fields.required_size("hidden_size");
        let num_heads = fields.required_size("num_attention_heads");
        let following = || fields.faults().take(head_dim_of(hidden_size?, num_heads?, &str::to_owned));
        Self {
            hidden_size,
            num_heads,
            num_layers: fields.required_size("num_hidden_layers"),
            max_position: fields.required_size("max_position_embeddings"),
            head_dim: fields.size("head_dim").or_else(following),
        }
    }

    fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(STAND_IN_SIZE)
    }

    fn ropes(&self, fields: Fields<'_>, has_local: bool) -> (RopeConfig, Option<RopeConfig>) {
        let context = RopeContext {
            head_dim: self.head_dim(),
            max_position: self.max_position.unwrap_or(STAND_IN_SIZE),
            original_max_position: fields.size("original_max_position_embeddings"),
        };
        let (mut rope, mut local) = match has_local {
            true => RopeConfig::of_kinds(fields, context),
            false => (RopeConfig::from_json(fields, context), None),
        };
        if self.head_dim.is_none() || self.max_position.is_none() {
            // Nothing can be said of numbers that should fit what is not known.
            for rope in std::iter::once(&mut rope).chain(&mut local) {
                rope.scaling = RopeScaling::None;
            }
        }
        (rope, local)
    }
}

/// Its name; empty, with a fault, where there is none.
fn architecture(fields: Fields<'_>) -> String {
    const FIELD: &str = "architectures";
    if let Some(&first) = fields.strings(FIELD).unwrap_or_default().first() {
        return first.to_owned();
    }
    let dialect = fields.string("model_type").and_then(Dialect::of_model_type);
    dialect.map_or_else(
        || {
            fields.faults().add(ConfigError::Missing { field: FIELD.to_owned() });
            String::new()
        },
        |dialect| dialect.architecture.to_owned(),
    )
}

fn refuse_bidirectional(fields: Fields<'_>) {
    const FIELD: &str = "use_bidirectional_attention";
    match fields.find(FIELD) {
        None | Some(Value::Bool(false)) => {}
        Some(given) => fields.refuse(FIELD, given.to_string(), "false"),
    }
}

/// Whether q, k and v have biases, and whether the projection after attention has one.
fn attention_biases(fields: Fields<'_>, biases: Biases) -> (bool, bool) {
    match biases {
        Biases::Qkv => (true, false),
        Biases::QkvIfSet => (fields.boolean("qkv_bias").unwrap_or(false), false),
        Biases::Attention => {
            let on_all = fields.boolean("attention_bias").unwrap_or(false);
            (on_all, on_all)
        }
    }
}

/// Gemma says what the root is taken of, Granite the factor itself.
fn attention_scale(fields: Fields<'_>, head_dim: usize) -> f32 {
    if let Some(scale) = fields.number("attention_multiplier") {
        return scale as f32;
    }
    let scalar = fields.number("query_pre_attn_scalar").unwrap_or(head_dim as f64);
    scalar.sqrt().recip() as f32
}

fn hidden_act(fields: Fields<'_>) -> String {
    let given = fields.string("hidden_activation").or_else(|| fields.string("hidden_act"));
    given.unwrap_or("silu").to_owned()
}

fn dtype(fields: Fields<'_>) -> Option<DType> {
    // Newer files say `dtype`.
    let field = if fields.find("torch_dtype").is_some() { "torch_dtype" } else { "dtype" };
    let given = fields.string(field)?;
    match given.strip_prefix("torch.").unwrap_or(given) {
        "float32" => Some(DType::F32),
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        _ => {
            fields.faults().add(ConfigError::number(field, "float32, float16 or bfloat16", given));
            None
        }
    }
}
