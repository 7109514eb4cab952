//! `quantization_config`: how the weights of a folder are quantized.

use serde_json::{Map, Value};

use super::ConfigError;
use super::fields::Fields;

/// The methods that can be read, for messages.
const KNOWN: &str = "gptq, awq, fp8, fbgemm_fp8, compressed-tensors";

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
    },
}

impl Quantization {
    /// Reads the quantization of a `config.json`, if there is one.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field: a method that is not known, settings of it that are not supported.
    pub fn from_json(config: &Map<String, Value>) -> Result<Option<Self>, ConfigError> {
        let fields = Fields::new(config);
        let found = match fields.object(FIELD)? {
            Some(found) => Some(found),
            None => fields.object(OLD_FIELD)?,
        };
        found.map(Self::from_fields).transpose()
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
        let Some(found) = [FIELD, OLD_FIELD].iter().find_map(|field| config.get(*field)) else {
            return false;
        };
        let groups = found.get("config_groups").and_then(Value::as_object);
        match found.get("quant_method").and_then(Value::as_str) {
            Some("fp8" | "fbgemm_fp8") => true,
            Some("compressed-tensors") => groups
                .is_some_and(|groups| groups.values().any(|group| group["input_activations"].is_object())),
            _ => false,
        }
    }

    fn from_fields(fields: Fields<'_>) -> Result<Self, ConfigError> {
        match fields.string("quant_method")? {
            Some("gptq") => gptq(fields),
            Some("awq") => awq(fields),
            Some("fp8" | "fbgemm_fp8") => Ok(Self::Fp8 { block: weight_block_size(fields)? }),
            Some("compressed-tensors") => compressed_tensors(fields),
            // bitsandbytes says so by flags too.
            given => {
                let flags = ["load_in_4bit", "load_in_8bit"];
                let is_bitsandbytes = flags.iter().any(|flag| fields.find(flag) == Some(&Value::Bool(true)));
                let given = given.unwrap_or(if is_bitsandbytes { "bitsandbytes" } else { "unnamed" });
                Err(ConfigError::Quantization { given: given.to_owned(), known: KNOWN })
            }
        }
    }
}

fn gptq(fields: Fields<'_>) -> Result<Quantization, ConfigError> {
    let bits = bits(fields, &["bits"], &[4, 8], 4)?;
    let zeros_less_one = match fields.string("checkpoint_format")? {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(given) => return Err(unsupported(fields, "checkpoint_format", given, "gptq or gptq_v2")),
    };
    Ok(Quantization::Gptq { bits, group_size: group_size(fields, &["group_size"])?, zeros_less_one })
}

fn awq(fields: Fields<'_>) -> Result<Quantization, ConfigError> {
    bits(fields, &["bits", "w_bit"], &[4], 4)?;
    match fields.string("version")?.map(str::to_lowercase).as_deref() {
        None | Some("gemm") => {}
        Some(given) => return Err(unsupported(fields, "version", given, "gemm")),
    }
    Ok(Quantization::Awq { group_size: group_size(fields, &["group_size", "q_group_size"])? })
}

fn compressed_tensors(fields: Fields<'_>) -> Result<Quantization, ConfigError> {
    const EXPECTED: &str = "pack-quantized, int-quantized, float-quantized, naive-quantized or dense";
    let known = |format: &str| {
        let single = ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense"];
        single.contains(&format) || format == "mixed-precision"
    };
    if let Some(given) = fields.string("format")?.filter(|format| !known(format)) {
        return Err(unsupported(fields, "format", given, EXPECTED));
    }
    if let Some(sparsity) = fields.object("sparsity_config")?
        && let Some(given) = sparsity.string("format")?.filter(|format| *format != "dense")
    {
        return Err(unsupported(fields, "sparsity_config.format", given, "dense"));
    }
    let groups_path = fields.path("config_groups");
    let mut block = None;
    if let Some(groups) = fields.object_at("config_groups", &groups_path)? {
        for name in groups.names() {
            let path = groups.path(name);
            let Some(group) = groups.object_at(name, &path)? else { continue };
            if let Some(given) = group.string("format")?.filter(|format| !known(format)) {
                return Err(unsupported(group, "format", given, EXPECTED));
            }
            block = group_block(group)?.or(block);
        }
    }
    Ok(Quantization::CompressedTensors { block })
}

/// What shares a scale in a group of compressed-tensors, where the group says so.
fn group_block(group: Fields<'_>) -> Result<Option<[usize; 2]>, ConfigError> {
    let path = group.path("weights");
    let Some(weights) = group.object_at("weights", &path)? else { return Ok(None) };
    let kind = (weights.string("type")?.unwrap_or("int"), weights.size("num_bits")?.unwrap_or(8));
    if !matches!(kind, ("int", 4 | 8) | ("float", 8)) {
        let given = format!("{} of {} bits", kind.0, kind.1);
        return Err(unsupported(group, "weights", &given, "int of 4 or 8 bits, or float of 8 bits"));
    }
    match weights.string("strategy")? {
        Some("block") => sizes(weights, "block_structure"),
        _ => Ok(None),
    }
}

fn weight_block_size(fields: Fields<'_>) -> Result<Option<[usize; 2]>, ConfigError> {
    sizes(fields, "weight_block_size")
}

/// Two sizes of at least one.
fn sizes(fields: Fields<'_>, field: &str) -> Result<Option<[usize; 2]>, ConfigError> {
    let Some(value) = fields.find(field) else { return Ok(None) };
    let read = |at: usize| usize::try_from(value.as_array()?.get(at)?.as_u64()?).ok().filter(|&n| n > 0);
    match (value.as_array().map(Vec::len), read(0), read(1)) {
        (Some(2), Some(rows), Some(columns)) => Ok(Some([rows, columns])),
        _ => Err(ConfigError::number(&fields.path(field), "two numbers of at least 1", value)),
    }
}

fn bits(fields: Fields<'_>, names: &[&str], supported: &[u32], default: u32) -> Result<u32, ConfigError> {
    for name in names {
        let Some(given) = fields.size(name)? else { continue };
        return match supported.iter().find(|&&bits| bits as usize == given) {
            Some(&bits) => Ok(bits),
            None => {
                let expected: Vec<_> = supported.iter().map(u32::to_string).collect();
                Err(unsupported(fields, name, &given.to_string(), &expected.join(" or ")))
            }
        };
    }
    Ok(default)
}

/// -1 stands for one group.
fn group_size(fields: Fields<'_>, names: &[&str]) -> Result<Option<usize>, ConfigError> {
    for name in names {
        match fields.find(name).map(Value::as_i64) {
            None => continue,
            Some(Some(-1)) => return Ok(None),
            Some(Some(size)) if size > 0 => return Ok(usize::try_from(size).ok()),
            Some(_) => {
                let given = fields.find(name).map(Value::to_string).unwrap_or_default();
                return Err(unsupported(fields, name, &given, "-1 or a number of columns"));
            }
        }
    }
    Ok(Some(128))
}

fn unsupported(fields: Fields<'_>, field: &str, given: &str, expected: &str) -> ConfigError {
    ConfigError::Unsupported {
        field: fields.path(field),
        given: given.to_owned(),
        expected: expected.to_owned(),
    }
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
        let gptq = |group_size, zeros_less_one| Quantization::Gptq { bits: 4, group_size, zeros_less_one };
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
        assert_eq!(read(file), Ok(Some(Quantization::CompressedTensors { block: None })));
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
