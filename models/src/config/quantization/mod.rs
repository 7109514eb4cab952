//! `quantization_config`: how the weights of a folder are quantized.

mod compressed_tensors;
mod known;
mod settings;

use serde_json::{Map, Value};

use super::ConfigError;
use super::faults::Faults;
use super::fields::Fields;

use settings::{bits, group_size, refuse_set, sizes};

/// The methods that can be read, for messages.
const KNOWN: &str = "gptq, awq, fp8, fbgemm_fp8, compressed-tensors, modelopt";

/// The method of a tool that says the rest in `quant_algo`.
const MODELOPT: &str = "modelopt";

const FIELD: &str = "quantization_config";
/// What older files of compressed-tensors call it.
const OLD_FIELD: &str = "compression_config";

/// How the weights of linear layers are stored. Which layers are quantized is told by the tensors that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantization {
    /// GPTQ: integers packed along the columns, in groups that may be in any order.
    Gptq {
        /// Bits of an integer, 4 or 8.
        bits: u32,
        /// Columns of a group; `None` for one group over all columns.
        group_size: Option<usize>,
        /// Whether zero points are stored less one: the first version of the format, which most files have.
        zeros_less_one: bool,
        /// Whether columns are in groups by their weight, which a tensor must then say (`g_idx`).
        act_order: bool,
    },
    /// AWQ: 4-bit integers packed along the rows in an order of their own.
    Awq {
        /// Columns of a group; `None` for one group over all columns.
        group_size: Option<usize>,
    },
    /// 8-bit floats with scales.
    Fp8 {
        /// Rows and columns that share a scale; `None` where the shape of the scales says it.
        block: Option<[usize; 2]>,
    },
    /// The format of the library compressed-tensors: packed integers, 8-bit integers, 8-bit floats.
    CompressedTensors {
        /// Rows and columns that share a scale; `None` where the shape of the scales says it.
        block: Option<[usize; 2]>,
        /// Whether every module has zero points: no group is symmetric.
        has_zeros: bool,
        /// Whether every module has the group of each column, by whose weight they were chosen.
        act_order: bool,
    },
}

impl Quantization {
    /// Reads the quantization of a `config.json`, if there is one.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field: a method that is not known, settings of it that are not supported.
    pub fn from_json(config: &Map<String, Value>) -> Result<Option<Self>, ConfigError> {
        let faults = Faults::default();
        let read = Self::read(Fields::new(config, &faults));
        faults.first_or(read)
    }

    /// The same, of a configuration whose faults are collected; `None` also where it cannot be read.
    pub(super) fn read(config: Fields<'_>) -> Option<Self> {
        let fields = config.object(FIELD).or_else(|| config.object(OLD_FIELD))?;
        let method = fields.string("quant_method").map(str::to_lowercase);
        match method.as_deref() {
            Some("gptq") => Some(gptq(fields)),
            Some("awq") => Some(awq(fields)),
            Some("fp8" | "fbgemm_fp8") => Some(Self::Fp8 { block: sizes(fields, "weight_block_size") }),
            Some("compressed-tensors") => Some(compressed_tensors::read(fields)),
            Some(MODELOPT) => Some(modelopt(fields)),
            // bitsandbytes says so by flags too.
            given => {
                let flags = ["load_in_4bit", "load_in_8bit"];
                let is_bitsandbytes = flags.iter().any(|flag| fields.find(flag) == Some(&Value::Bool(true)));
                let given = given.unwrap_or(if is_bitsandbytes { "bitsandbytes" } else { "unnamed" });
                fields.faults().add(ConfigError::Quantization { given: given.to_owned(), known: KNOWN });
                None
            }
        }
    }

    /// Whether a `config.json` has the settings of one.
    pub(crate) fn is_named(config: &Map<String, Value>) -> bool {
        Self::settings(config).is_some()
    }

    fn settings(config: &Map<String, Value>) -> Option<&Value> {
        [FIELD, OLD_FIELD].iter().find_map(|field| config.get(*field).filter(|value| !value.is_null()))
    }

    /// Whether a field is one of its settings.
    pub(crate) fn is_field(path: &str) -> bool {
        path.starts_with(FIELD)
    }

    /// The field of `config.json` that stands for settings that a tool writes elsewhere.
    pub(crate) fn field(method: &str, mut settings: Map<String, Value>) -> (String, Value) {
        settings.insert("quant_method".to_owned(), method.into());
        (FIELD.to_owned(), settings.into())
    }

    /// Its name in `quantization_config`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gptq { .. } => "gptq",
            Self::Awq { .. } => "awq",
            Self::Fp8 { .. } => "fp8",
            Self::CompressedTensors { .. } => "compressed-tensors",
        }
    }

    /// Whether a `config.json` asks for quantized activations: fp8 does, and groups of compressed-tensors that have
    /// `input_activations`.
    pub fn has_quantized_activations(config: &Map<String, Value>) -> bool {
        let Some(found) = Self::settings(config) else { return false };
        let groups = found.get("config_groups").and_then(Value::as_object);
        let method = found.get("quant_method").and_then(Value::as_str).map(str::to_lowercase);
        match method.as_deref() {
            Some("fp8" | "fbgemm_fp8" | MODELOPT) => true,
            Some("compressed-tensors") => groups
                .is_some_and(|groups| groups.values().any(|group| group["input_activations"].is_object())),
            _ => false,
        }
    }
}

fn gptq(fields: Fields<'_>) -> Quantization {
    let zeros_less_one = match fields.string("checkpoint_format") {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(given) => {
            fields.refuse("checkpoint_format", given, "gptq or gptq_v2");
            true
        }
    };
    refuse_set(fields, &["dynamic", "rotation", "adapter", "is_marlin_format"]);
    Quantization::Gptq {
        bits: bits(fields, &["bits"], &[4, 8], 4),
        group_size: group_size(fields, &["group_size"]),
        zeros_less_one,
        act_order: fields.boolean("desc_act").unwrap_or(false),
    }
}

fn awq(fields: Fields<'_>) -> Quantization {
    bits(fields, &["bits", "w_bit"], &[4], 4);
    match fields.string("version").map(str::to_lowercase).as_deref() {
        None | Some("gemm") => {}
        Some(given) => fields.refuse("version", given, "gemm"),
    }
    Quantization::Awq { group_size: group_size(fields, &["group_size", "q_group_size"]) }
}

/// The tool of the name writes 8-bit floats as `fp8` does.
fn modelopt(fields: Fields<'_>) -> Quantization {
    match fields.string("quant_algo") {
        Some("FP8" | "FP8_PER_CHANNEL_PER_TOKEN") => {}
        given => fields.refuse("quant_algo", given.unwrap_or("nothing"), "FP8"),
    }
    Quantization::Fp8 { block: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(quantization: Value) -> Result<Option<Quantization>, String> {
        let config = json!({ "quantization_config": quantization });
        Quantization::from_json(config.as_object().unwrap()).map_err(|error| error.to_string())
    }

    fn refused(quantization: Value, says: &str) {
        let error = read(quantization).unwrap_err();
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn what_files_say_is_understood() {
        assert_eq!(read(Value::Null), Ok(None));
        let gptq = |group_size, zeros_less_one| Quantization::Gptq {
            bits: 4,
            group_size,
            zeros_less_one,
            act_order: zeros_less_one,
        };
        let file =
            json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": true, "sym": true});
        assert_eq!(read(file), Ok(Some(gptq(Some(64), true))));
        let file =
            json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"});
        assert_eq!(read(file), Ok(Some(gptq(None, false))));
        let file = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"});
        assert_eq!(read(file), Ok(Some(Quantization::Awq { group_size: Some(128) })));
        let file =
            json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 64]});
        assert_eq!(read(file), Ok(Some(Quantization::Fp8 { block: Some([128, 64]) })));
        let file = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group"}}}});
        let plain =
            |has_zeros, act_order| Quantization::CompressedTensors { block: None, has_zeros, act_order };
        assert_eq!(read(file), Ok(Some(plain(false, false))));
        let file = json!({"quant_method": "compressed-tensors", "transform_config": {}, "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "symmetric": false, "actorder": "group"}}}});
        assert_eq!(read(file), Ok(Some(plain(true, true))));
        let file = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
        assert_eq!(read(file), Ok(Some(Quantization::Fp8 { block: None })));
    }

    #[test]
    fn what_would_change_weights_and_is_not_heeded_is_refused() {
        let transform = json!({"config_groups": {"R1": {"type": "hadamard", "apply": []}}});
        refused(
            json!({"quant_method": "compressed-tensors", "transform_config": transform}),
            "quantization_config.transform_config: {\"config_groups\":",
        );
        let dynamic = json!({"-:.*down.*": {}});
        refused(
            json!({"quant_method": "gptq", "dynamic": dynamic}),
            "quantization_config.dynamic: {\"-:.*down.*\":{}} is not supported, expected none",
        );
        refused(json!({"quant_method": "gptq", "rotation": "hadamard"}), "rotation: \"hadamard\"");
        let off = json!({"quant_method": "gptq", "dynamic": {}, "rotation": null, "is_marlin_format": false});
        assert!(read(off).is_ok());
        refused(
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "quant_algo: NVFP4 is not supported",
        );
    }

    #[test]
    fn what_is_not_supported_is_named() {
        refused(
            json!({"quant_method": "bitsandbytes"}),
            "\"bitsandbytes\" is not supported; known are gptq, awq",
        );
        refused(json!({"load_in_4bit": true}), "\"bitsandbytes\"");
        refused(json!({"quant_method": "aqlm"}), "\"aqlm\"");
        refused(json!({}), "\"unnamed\"");
        refused(
            json!({"quant_method": "gptq", "bits": 3}),
            "quantization_config.bits: 3 is not supported, expected 4 or 8",
        );
        refused(json!({"quant_method": "gptq", "checkpoint_format": "marlin"}), "checkpoint_format: marlin");
        refused(json!({"quant_method": "awq", "version": "gemv"}), "version: gemv");
        refused(json!({"quant_method": "awq", "group_size": 0}), "group_size: 0");
        refused(json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size");
        let format = |format| json!({"quant_method": "compressed-tensors", "format": format});
        refused(format("marlin-24"), "format: marlin-24");
        refused(format("nvfp4-pack-quantized"), "expected pack-quantized");
        let file = json!({"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "float"}}}});
        refused(file, "config_groups.group_0.weights: float of 4 bits");
        let groups = |groups| json!({"quant_method": "compressed-tensors", "config_groups": groups});
        refused(groups(json!([1])), "quantization_config.config_groups: expected an object, given [1]");
        refused(groups(json!({"a": 1})), "quantization_config.config_groups.a: expected an object, given 1");
        refused(groups(json!({"a": {"weights": "int4"}})), "config_groups.a.weights: expected an object");
        refused(groups(json!({"a": {"format": 4}})), "config_groups.a.format: expected a string, given 4");
    }
}
