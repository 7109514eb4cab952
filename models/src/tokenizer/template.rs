//! Where a model keeps its chat templates. They are text here; who renders them knows the language.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::json;

const FILE: &str = "chat_template.jinja";
/// A folder of templates whose files are their names.
const OTHERS: &str = "additional_chat_templates";
/// Where processors of texts and images keep theirs.
const PROCESSOR_FILE: &str = "chat_template.json";
const CONFIG: &str = "tokenizer_config.json";
const KEY: &str = "tokenizer.chat_template";

/// The chat templates of a model, by name; the one that is meant where nobody names one is `default`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    by_name: BTreeMap<String, String>,
}

impl ChatTemplates {
    /// The template to use where nobody names one.
    pub fn default_template(&self) -> Option<&str> {
        self.named("default")
    }

    /// A template by name, such as `tool_use`.
    pub fn named(&self, name: &str) -> Option<&str> {
        self.by_name.get(name).map(String::as_str)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Those of a folder, the newer places before the older ones: `chat_template.jinja` with the files of
    /// `additional_chat_templates`, `chat_template.json`, and `tokenizer_config.json`, each with one or a named list.
    pub(super) fn from_folder(folder: &Path) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        for file in [CONFIG, PROCESSOR_FILE] {
            let config: Map<String, Value> = json::read_if_there(&folder.join(file))?.unwrap_or_default();
            match config.get("chat_template") {
                Some(Value::String(template)) => {
                    by_name.insert("default".to_owned(), template.clone());
                }
                Some(Value::Array(templates)) => by_name.extend(templates.iter().filter_map(named_template)),
                Some(Value::Object(templates)) => {
                    let texts = templates.iter().filter_map(|(name, text)| Some((name, text.as_str()?)));
                    by_name.extend(texts.map(|(name, text)| (name.clone(), text.to_owned())));
                }
                None | Some(Value::Null) => {}
                Some(other) => {
                    let expected = "chat_template to be a text, or named texts";
                    let (path, given) = (folder.join(file), json::described(other));
                    return Err(Error::JsonForm { path, expected, given });
                }
            }
        }
        let path = folder.join(FILE);
        if path.exists() {
            by_name.insert("default".to_owned(), read_text(path)?);
        }
        let others = std::fs::read_dir(folder.join(OTHERS)).into_iter().flatten().flatten();
        for path in
            others.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "jinja"))
        {
            if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
                by_name.insert(name.to_owned(), read_text(path.clone())?);
            }
        }
        Ok(Self { by_name })
    }

    /// Those of a GGUF file: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for others.
    pub(super) fn from_gguf(file: &Gguf) -> Result<Self> {
        let metadata = file.metadata();
        let mut by_name = BTreeMap::new();
        for key in metadata.keys().filter(|key| key.starts_with(KEY)) {
            let name = match key[KEY.len()..].strip_prefix('.') {
                Some(name) => name,
                None if key.len() == KEY.len() => "default",
                // `tokenizer.chat_templates` is the list of the names.
                None => continue,
            };
            if let Some(template) = metadata.string(key).map_err(|source| file.error(source))? {
                by_name.insert(name.to_owned(), template.to_owned());
            }
        }
        Ok(Self { by_name })
    }
}

fn read_text(path: std::path::PathBuf) -> Result<String> {
    let bytes = crate::file::read(&path)?;
    let invalid =
        |error| Error::Io { path, source: std::io::Error::new(std::io::ErrorKind::InvalidData, error) };
    String::from_utf8(bytes).map_err(invalid)
}

fn named_template(entry: &Value) -> Option<(String, String)> {
    let field = |name: &str| entry.get(name)?.as_str().map(str::to_owned);
    Some((field("name")?, field("template")?))
}
