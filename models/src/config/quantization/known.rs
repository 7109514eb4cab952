//! Settings of `quantization_config` by name.

use serde_json::{Map, Value};

use super::Quantization;

/// Those that are heeded, those that must be off, those that the tensors tell as well, and those that tell how a checkpoint was
/// made or would be run by others.
const KNOWN: [&str; 61] = [
    "activation_scale_ub",
    "activation_scheme",
    "adapter",
    "backend",
    "batch_size",
    "bits",
    "block_name_to_quantize",
    "cache_block_outputs",
    "checkpoint_format",
    "config_groups",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "dequantize",
    "desc_act",
    "disable_exllama",
    "do_fuse",
    "dynamic",
    "exclude_modules",
    "exllama_config",
    "fmt",
    "format",
    "fuse_max_seq_len",
    "global_compression_ratio",
    "group_size",
    "ignore",
    "ignored_layers",
    "is_marlin_format",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "lm_head",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_convert",
    "modules_to_fuse",
    "modules_to_not_convert",
    "pack_dtype",
    "pad_token_id",
    "producer",
    "q_group_size",
    "quant_algo",
    "quant_method",
    "quantization_status",
    "rotation",
    "scale_fmt",
    "sparsity_config",
    "static_groups",
    "sym",
    "tokenizer",
    "transform_config",
    "true_sequential",
    "use_exllama",
    "version",
    "w_bit",
    "weight_block_size",
    "zero_point",
];

impl Quantization {
    /// The settings of a `config.json` that nothing here knows, sorted; what is `null` or empty asks for nothing.
    pub(crate) fn unknown_settings(config: &Map<String, Value>) -> Vec<&str> {
        let is_set = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(object) => !object.is_empty(),
            _ => true,
        };
        let settings = Self::settings(config).and_then(Value::as_object).into_iter().flatten();
        let unknown = settings.filter(|(name, value)| is_set(value) && !KNOWN.contains(&name.as_str()));
        unknown.map(|(name, _)| name.as_str()).collect()
    }
}
