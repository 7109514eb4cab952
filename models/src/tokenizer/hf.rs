//! A tokenizer from the files of a Hugging Face folder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{NamedTokens, Tokenizer, TokenizerError, fault, refuse};
use crate::error::Result;
use crate::{file, json};

pub(super) const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

pub(super) fn open_folder(folder: &Path) -> Result<Tokenizer> {
    let path = folder.join(FILE);
    if !file::is_there(&path)? {
        return Err(refuse(folder, TokenizerError::NoFile { file: FILE }));
    }
    open_file(&path)
}

/// A `tokenizer.json`, and what is read beside it.
pub(super) fn files_of(path: &Path) -> [PathBuf; 2] {
    [path.to_owned(), path.with_file_name(CONFIG)]
}

/// Opens `tokenizer.json`, and takes the roles of tokens from the `tokenizer_config.json` beside it.
pub(super) fn open_file(path: &Path) -> Result<Tokenizer> {
    let config_path = path.with_file_name(CONFIG);
    let config = json::read_if_there(&config_path)?.unwrap_or_default();
    let named = named_tokens(&config).map_err(|source| refuse(&config_path, source))?;
    let bytes = file::read(path)?;
    json::check_encoding(path, &bytes)?;
    match parse(&bytes) {
        Ok(inner) => Ok(Tokenizer::new(inner, named)),
        // Where it is no JSON, that is what there is to say.
        Err(error) => json::parse(path, &bytes)
            .and_then(|value| Err(refuse(path, fault::find(&value).unwrap_or(error)))),
    }
}

/// The library trusts a file's merges to fit its vocabulary and panics where they do not. A downloaded
/// file must not end the process, and the value is dropped whole, so nothing broken can be seen after.
fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    match catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(bytes))) {
        Ok(parsed) => parsed.map_err(|source| TokenizerError::Invalid { file: FILE, source }),
        Err(_) => Err(TokenizerError::Inconsistent { file: FILE }),
    }
}

fn named_tokens(config: &Map<String, Value>) -> Result<NamedTokens, TokenizerError> {
    Ok(NamedTokens {
        bos: named_token(config, "bos_token")?,
        eos: named_token(config, "eos_token")?,
        pad: named_token(config, "pad_token")?,
        unk: named_token(config, "unk_token")?,
    })
}

/// A role is a string, or an object with the string as its content.
fn named_token(config: &Map<String, Value>, role: &str) -> Result<Option<String>, TokenizerError> {
    match config.get(role) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Object(token)) => match token.get("content") {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            other => Err(TokenizerError::form(&format!("{role}.content"), "a string", other)),
        },
        other => Err(TokenizerError::form(role, "a string, or an object with a string as content", other)),
    }
}
