//! Where a model keeps its chat templates. They are text here; who renders them knows the language.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::{file, json};

const FILE: &str = "chat_template.jinja";
/// A folder of templates whose files are their names.
const OTHERS: &str = "additional_chat_templates";
/// Where processors of texts and images keep theirs.
const PROCESSOR_FILE: &str = "chat_template.json";
const CONFIG: &str = "tokenizer_config.json";
const FIELD: &str = "chat_template";
const KEY: &str = "tokenizer.chat_template";
/// The one that is meant where nobody names one.
const DEFAULT: &str = "default";

/// The chat templates of a model, by name; the one that is meant where nobody names one is `default`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    by_name: BTreeMap<String, String>,
}

impl ChatTemplates {
    /// The template to use where nobody names one.
    pub fn default_template(&self) -> Option<&str> {
        self.named(DEFAULT)
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
    /// `additional_chat_templates`, `chat_template.json`, and `tokenizer_config.json`, each with one or a named list. What
    /// cannot be read is left out, and told in `errors`.
    pub(super) fn from_folder(folder: &Path, errors: &mut Vec<Error>) -> Self {
        let mut by_name = BTreeMap::new();
        for file in [CONFIG, PROCESSOR_FILE] {
            by_name.extend(take(templates_in(folder.join(file)), errors).unwrap_or_default());
        }
        let path = folder.join(FILE);
        if take(file::is_there(&path), errors) == Some(true) {
            by_name.extend(take(read_text(path), errors).map(|text| (DEFAULT.to_owned(), text)));
        }
        for path in take(templates_of(&folder.join(OTHERS)), errors).unwrap_or_default() {
            let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
            by_name.extend(name.and_then(|name| Some((name, take(read_text(path), errors)?))));
        }
        Self { by_name }
    }

    /// Those of a GGUF file: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for others. What cannot be read is
    /// left out, and told in `errors`.
    pub(super) fn from_gguf(file: &Gguf, errors: &mut Vec<Error>) -> Self {
        let metadata = file.metadata();
        let mut by_name = BTreeMap::new();
        for key in metadata.keys().filter(|key| key.starts_with(KEY)) {
            let name = match key[KEY.len()..].strip_prefix('.') {
                Some(name) => name,
                None if key.len() == KEY.len() => DEFAULT,
                // `tokenizer.chat_templates` is the list of the names.
                None => continue,
            };
            let text = take(metadata.string(key).map_err(|source| file.error(source)), errors).flatten();
            by_name.extend(text.map(|text| (name.to_owned(), text.to_owned())));
        }
        Self { by_name }
    }
}

fn take<T>(read: Result<T>, errors: &mut Vec<Error>) -> Option<T> {
    read.map_err(|error| errors.push(error)).ok()
}

/// The templates in a JSON file, if it is there and has some.
fn templates_in(path: PathBuf) -> Result<Vec<(String, String)>> {
    let config = json::read_if_there(&path)?.unwrap_or_default();
    named_texts(config.get(FIELD).unwrap_or(&Value::Null)).map_err(|(expected, given)| {
        let given = json::described(given);
        Error::JsonForm { path, expected, given }
    })
}

fn read_text(path: PathBuf) -> Result<String> {
    let bytes = crate::file::read(&path)?;
    let invalid =
        |error| Error::Io { path, source: std::io::Error::new(std::io::ErrorKind::InvalidData, error) };
    String::from_utf8(bytes).map_err(invalid)
}

/// The files of a model's folder that hold nothing but chat templates; a file named here need not be there.
pub(crate) fn template_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = templates_of(&folder.join(OTHERS))?;
    files.sort();
    files.extend([PROCESSOR_FILE, FILE].map(|name| folder.join(name)));
    Ok(files)
}

/// The templates of a folder; none where there is no folder.
fn templates_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { path: folder.to_owned(), source };
    if !file::is_there(folder)? {
        return Ok(Vec::new());
    }
    let paths = fs::read_dir(folder).map_err(io)?.map(|entry| Ok(entry?.path()));
    let paths = paths.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "jinja")).collect())
}

type Refused<'a> = (&'static str, &'a Value);

/// One text, a list of objects that each have a name and a template, or an object of texts by name.
fn named_texts(given: &Value) -> Result<Vec<(String, String)>, Refused<'_>> {
    match given {
        Value::Null => Ok(Vec::new()),
        Value::String(template) => Ok(vec![(DEFAULT.to_owned(), template.clone())]),
        Value::Array(templates) => templates.iter().map(named_text).collect(),
        Value::Object(templates) => {
            let text = |(name, text): (&String, _)| Ok((name.clone(), text_of(text)?));
            templates.iter().map(text).collect()
        }
        other => Err(("chat_template to be a text, or named texts", other)),
    }
}

fn named_text(entry: &Value) -> Result<(String, String), Refused<'_>> {
    let field = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let both = field("name").zip(field("template"));
    both.ok_or(("a name and a template, both texts, in each entry of chat_template", entry))
}

fn text_of(template: &Value) -> Result<String, Refused<'_>> {
    let text = template.as_str().map(str::to_owned);
    text.ok_or(("each template of chat_template to be a text", template))
}
