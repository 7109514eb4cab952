//! What the tool ModelOpt says of a quantization in a file of its own.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::Quantization;
use crate::error::{Error, Result};
use crate::json;

pub(super) const FILE: &str = "hf_quant_config.json";

/// Adds the settings of the file, if there is one, to `config` as the field of `config.json` that they stand for, unless that
/// has one already. Whether it did.
pub(super) fn add_settings(folder: &Path, config: &mut Map<String, Value>) -> Result<bool> {
    let path = folder.join(FILE);
    let Some(file) = json::read_if_there(&path)?.filter(|_| !Quantization::is_named(config)) else {
        return Ok(false);
    };
    match file.get("quantization") {
        Some(Value::Object(settings)) => {
            config.extend([Quantization::modelopt_field(settings.clone())]);
            Ok(true)
        }
        other => {
            let given = other.map_or_else(|| "nothing".to_owned(), json::described);
            Err(Error::JsonForm { path, expected: "quantization to be an object", given })
        }
    }
}
