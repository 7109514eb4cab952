//! A tokenizer from the files of a Hugging Face folder.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{NamedTokens, Tokenizer, TokenizerError, fault, refuse};
use crate::caught::caught;
use crate::error::{Error, Result};
use crate::{file, json};

pub(super) const FILE: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// Opens the tokenizer of a folder as far as it can be, and adds everything that is wrong to `errors`.
pub(super) fn survey_folder(folder: &Path, errors: &mut Vec<Error>) -> Option<Tokenizer> {
    let path = folder.join(FILE);
    match file::is_there(&path) {
        Ok(true) => survey_file(&path, errors),
        absent => {
            // The roles of its tokens may be wrong as well.
            survey_named(&folder.join(CONFIG), errors);
            let missing = || refuse(folder, TokenizerError::NoFile { file: FILE });
            errors.push(absent.map_or_else(|error| error, |_| missing()));
            None
        }
    }
}

/// A `tokenizer.json`, and what is read beside it.
pub(super) fn files_of(path: &Path) -> [PathBuf; 2] {
    [path.to_owned(), path.with_file_name(CONFIG)]
}

/// Opens `tokenizer.json`, and takes the roles of tokens from the `tokenizer_config.json` beside it.
pub(super) fn survey_file(path: &Path, errors: &mut Vec<Error>) -> Option<Tokenizer> {
    let named = survey_named(&path.with_file_name(CONFIG), errors);
    let inner = read(path).map_err(|error| errors.push(error)).ok()?;
    Some(Tokenizer::new(inner, named))
}

fn read(path: &Path) -> Result<tokenizers::Tokenizer> {
    let bytes = file::read(path)?;
    json::check_encoding(path, &bytes)?;
    // Where it is no JSON, that is what there is to say.
    parse(&bytes).or_else(|error| {
        json::parse(path, &bytes).and_then(|value| Err(refuse(path, fault::find(&value).unwrap_or(error))))
    })
}

/// The library trusts a file's merges to fit its vocabulary and panics where they do not. A downloaded
/// file must not end the process, and the value is dropped whole, so nothing broken can be seen after.
fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    match caught(|| tokenizers::Tokenizer::from_bytes(bytes)) {
        Some(parsed) => parsed.map_err(|source| TokenizerError::Invalid { file: FILE, source }),
        None => Err(TokenizerError::Inconsistent { file: FILE }),
    }
}

/// The roles of tokens; none of those that cannot be read.
fn survey_named(path: &Path, errors: &mut Vec<Error>) -> NamedTokens {
    let config = json::read_if_there(path).map_err(|error| errors.push(error));
    let config = config.ok().flatten().unwrap_or_default();
    let mut role = |role| {
        let read = named_token(&config, role);
        read.map_err(|source| errors.push(refuse(path, source))).ok().flatten()
    };
    NamedTokens {
        bos: role("bos_token"),
        eos: role("eos_token"),
        pad: role("pad_token"),
        unk: role("unk_token"),
    }
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
