//! A tokenizer from the files of a Hugging Face folder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Map, Value};

use super::{NamedTokens, Tokenizer, TokenizerError, refuse};
use crate::error::Result;
use crate::json;

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

pub(super) fn open_folder(folder: &Path) -> Result<Tokenizer> {
    let path = folder.join(FILE);
    if !path.exists() {
        return Err(refuse(folder, TokenizerError::NoFile { file: FILE }));
    }
    open_file(&path)
}

/// Opens `tokenizer.json`, and takes the roles of tokens from the `tokenizer_config.json` beside it.
pub(super) fn open_file(path: &Path) -> Result<Tokenizer> {
    let config: Map<String, Value> = json::read_if_there(&path.with_file_name(CONFIG))?.unwrap_or_default();
    let bytes = crate::file::read(path)?;
    json::check_encoding(path, &bytes)?;
    let inner = parse(&bytes).map_err(|source| refuse(path, source))?;
    Ok(Tokenizer::new(inner, named_tokens(&config)))
}

/// The library trusts a file's merges to fit its vocabulary and panics where they do not. A downloaded
/// file must not end the process, and the value is dropped whole, so nothing broken can be seen after.
fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    match catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(bytes))) {
        Ok(parsed) => parsed.map_err(|source| TokenizerError::Invalid { file: FILE, source }),
        Err(_) => Err(TokenizerError::Inconsistent { file: FILE }),
    }
}

fn named_tokens(config: &Map<String, Value>) -> NamedTokens {
    // A role is a string, or an object with the string as its content.
    let named = |role: &str| {
        let value = config.get(role)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.map(str::to_owned)
    };
    NamedTokens {
        bos: named("bos_token"),
        eos: named("eos_token"),
        pad: named("pad_token"),
        unk: named("unk_token"),
    }
}
