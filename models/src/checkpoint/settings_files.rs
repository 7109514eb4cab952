//! What tools say of a quantization in files of their own.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::Quantization;
use crate::error::{Error, Result};
use crate::json;

/// A tool's file, the method that it is about, and the object of the file that has the settings; none where all of it is.
struct SettingsFile {
    name: &'static str,
    method: &'static str,
    object: Option<&'static str>,
}

/// Those of ModelOpt, AutoGPTQ and AutoAWQ.
const FILES: [SettingsFile; 3] = [
    SettingsFile { name: "hf_quant_config.json", method: "modelopt", object: Some("quantization") },
    SettingsFile { name: "quantize_config.json", method: "gptq", object: None },
    SettingsFile { name: "quant_config.json", method: "awq", object: None },
];

/// Adds the settings of the first file that is there to `config` as the field of `config.json` that they stand for, unless
/// that has one already. The name of the file, where it did.
pub(super) fn add(folder: &Path, config: &mut Map<String, Value>) -> Result<Option<&'static str>> {
    if Quantization::is_named(config) {
        return Ok(None);
    }
    for file in &FILES {
        let path = folder.join(file.name);
        let Some(content) = json::read_if_there(&path)? else { continue };
        config.extend([Quantization::field(file.method, file.settings(&path, content)?)]);
        return Ok(Some(file.name));
    }
    Ok(None)
}

impl SettingsFile {
    fn settings(&self, path: &Path, mut content: Map<String, Value>) -> Result<Map<String, Value>> {
        let Some(object) = self.object else { return Ok(content) };
        match content.remove(object) {
            Some(Value::Object(settings)) => Ok(settings),
            other => {
                let given = other.as_ref().map_or_else(|| "nothing".to_owned(), json::described);
                Err(Error::JsonForm {
                    path: path.to_owned(),
                    expected: "quantization to be an object",
                    given,
                })
            }
        }
    }
}
