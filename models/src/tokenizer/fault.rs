//! What of a `tokenizer.json` is at fault, where the library that reads it only says that something is.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PaddingParams, PostProcessorWrapper,
    PreTokenizerWrapper, TruncationParams,
};

use super::TokenizerError;

/// The kinds of models that there are.
const MODELS: [&str; 4] = ["BPE", "WordPiece", "WordLevel", "Unigram"];

/// The first part that cannot be what it is; `None` where each by itself could be.
pub(super) fn find(tokenizer: &Value) -> Option<TokenizerError> {
    if !tokenizer.is_object() {
        return Some(TokenizerError::form("tokenizer.json", "an object", Some(tokenizer)));
    }
    find_in_added(tokenizer)
        .or_else(|| find_in_stage::<NormalizerWrapper>(tokenizer, "normalizer", "normalizers"))
        .or_else(|| find_in_stage::<PreTokenizerWrapper>(tokenizer, "pre_tokenizer", "pretokenizers"))
        .or_else(|| find_in_stage::<PostProcessorWrapper>(tokenizer, "post_processor", "processors"))
        .or_else(|| find_in_stage::<DecoderWrapper>(tokenizer, "decoder", "decoders"))
        .or_else(|| find_in_settings::<TruncationParams>(tokenizer, "truncation"))
        .or_else(|| find_in_settings::<PaddingParams>(tokenizer, "padding"))
        .or_else(|| find_in_model(tokenizer.get("model")))
}

fn find_in_settings<T: DeserializeOwned>(tokenizer: &Value, field: &str) -> Option<TokenizerError> {
    let given = tokenizer.get(field).filter(|given| !given.is_null() && !is_kind::<T>(given))?;
    Some(TokenizerError::form(field, "an object with its settings", Some(given)))
}

/// A stage is absent, one of the kinds of its type, or a sequence of such.
fn find_in_stage<T: DeserializeOwned>(tokenizer: &Value, field: &str, list: &str) -> Option<TokenizerError> {
    let stage = tokenizer.get(field).filter(|stage| !stage.is_null())?;
    if is_kind::<T>(stage) {
        return None;
    }
    let steps = stage.get(list).and_then(Value::as_array);
    let step = steps.into_iter().flatten().enumerate().find(|(_, step)| !is_kind::<T>(step));
    let (path, fault) = match step {
        Some((at, step)) => (format!("{field}.{list}[{at}]"), step),
        None => (field.to_owned(), stage),
    };
    Some(TokenizerError::form(&path, "a kind that is known, with its settings", Some(fault)))
}

fn is_kind<T: DeserializeOwned>(value: &Value) -> bool {
    serde_json::from_value::<T>(value.clone()).is_ok()
}

fn find_in_added(tokenizer: &Value) -> Option<TokenizerError> {
    const FIELD: &str = "added_tokens";
    let added = tokenizer.get(FIELD)?;
    let Some(tokens) = added.as_array() else {
        return Some(TokenizerError::form(FIELD, "a list", Some(added)));
    };
    tokens.iter().enumerate().find_map(|(at, token)| {
        let fault = |field: &str, expected, is_right: fn(&Value) -> bool| {
            let given = token.get(field);
            let path = || format!("{FIELD}[{at}].{field}");
            (!given.is_some_and(is_right)).then(|| TokenizerError::form(&path(), expected, given))
        };
        let is_flag = |flag: &Value| flag.is_boolean();
        let flags = ["special", "single_word", "lstrip", "rstrip", "normalized"];
        fault("id", "a token id", is_id)
            .or_else(|| fault("content", "a string", Value::is_string))
            .or_else(|| flags.iter().find_map(|flag| fault(flag, "true or false", is_flag)))
    })
}

fn find_in_model(model: Option<&Value>) -> Option<TokenizerError> {
    let Some(Value::Object(fields)) = model else {
        return Some(TokenizerError::form("model", "an object", model));
    };
    let kind = fields.get("type");
    if kind.is_some_and(|kind| !MODELS.iter().any(|known| kind == known)) {
        return Some(TokenizerError::form("model.type", "BPE, WordPiece, WordLevel or Unigram", kind));
    }
    match fields.get("vocab") {
        Some(Value::Object(vocab)) => vocab.iter().find(|(_, id)| !is_id(id)).map(|(token, id)| {
            TokenizerError::form(&format!("model.vocab[{token:?}]"), "a token id", Some(id))
        }),
        Some(Value::Array(pieces)) => pieces.iter().enumerate().find_map(|(at, piece)| {
            let is_piece = piece.as_array().is_some_and(
                |pair| matches!(&pair[..], [text, score] if text.is_string() && score.is_number()),
            );
            let path = || format!("model.vocab[{at}]");
            (!is_piece).then(|| TokenizerError::form(&path(), "a text and its score", Some(piece)))
        }),
        other => Some(TokenizerError::form("model.vocab", "an object of token ids", other)),
    }
    .or_else(|| find_in_merges(fields.get("merges")))
    .or_else(|| find_in_other_fields(fields))
}

/// A setting with which a model without tokens cannot be made, where without it one can.
fn find_in_other_fields(fields: &Map<String, Value>) -> Option<TokenizerError> {
    let mut empty = json!({"vocab": {}, "merges": []});
    if let Some(kind) = fields.get("type") {
        empty["type"] = kind.clone();
    }
    if !is_kind::<ModelWrapper>(&empty) {
        return None;
    }
    let others = fields.iter().filter(|(name, _)| empty.get(name.as_str()).is_none());
    let is_wrong = |(name, value): &(&String, &Value)| {
        let mut with_field = empty.clone();
        with_field[name.as_str()] = (*value).clone();
        !is_kind::<ModelWrapper>(&with_field)
    };
    let (name, value) = others.into_iter().find(is_wrong)?;
    Some(TokenizerError::form(&format!("model.{name}"), "a value that this setting can have", Some(value)))
}

/// Two texts with a space between, or a list of two.
fn find_in_merges(merges: Option<&Value>) -> Option<TokenizerError> {
    let Some(Value::Array(merges)) = merges else {
        let path = "model.merges";
        return merges.map(|other| TokenizerError::form(path, "a list of pairs of tokens", Some(other)));
    };
    let is_pair = |merge: &Value| match merge {
        Value::String(text) => text.contains(' '),
        Value::Array(pair) => pair.len() == 2 && pair.iter().all(Value::is_string),
        _ => false,
    };
    let (at, merge) = merges.iter().enumerate().find(|(_, merge)| !is_pair(merge))?;
    Some(TokenizerError::form(&format!("model.merges[{at}]"), "a pair of tokens", Some(merge)))
}

fn is_id(value: &Value) -> bool {
    value.as_u64().is_some_and(|id| u32::try_from(id).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TinyTokenizer;

    /// What is said of a tokenizer that `change` has been at; the library refuses it too.
    fn check(change: impl FnOnce(&mut Value), expected: &str) {
        let mut tokenizer = TinyTokenizer::json();
        change(&mut tokenizer);
        assert!(tokenizers::Tokenizer::from_bytes(tokenizer.to_string()).is_err(), "{expected}");
        assert_eq!(find(&tokenizer).map(|error| error.to_string()).as_deref(), Some(expected));
    }

    #[test]
    fn a_sound_tokenizer_has_no_fault() {
        assert!(find(&TinyTokenizer::json()).is_none());
    }

    #[test]
    fn the_part_at_fault_is_named_with_what_it_holds() {
        check(
            |file| file["model"]["type"] = json!("Bpe"),
            "model.type: expected BPE, WordPiece, WordLevel or Unigram, given \"Bpe\"",
        );
        check(|file| file["model"] = json!(null), "model: expected an object, given null");
        check(
            |file| file["model"]["vocab"] = json!(7),
            "model.vocab: expected an object of token ids, given 7",
        );
        check(
            |file| file["model"]["vocab"]["a"] = json!("1"),
            "model.vocab[\"a\"]: expected a token id, given \"1\"",
        );
        check(
            |file| file["model"]["vocab"]["a"] = json!(-1),
            "model.vocab[\"a\"]: expected a token id, given -1",
        );
        check(
            |file| file["model"]["merges"] = json!({}),
            "model.merges: expected a list of pairs of tokens, given {}",
        );
        check(
            |file| file["model"]["merges"][1] = json!(["a"]),
            "model.merges[1]: expected a pair of tokens, given [\"a\"]",
        );
        let setting = "expected a value that this setting can have, given";
        check(|file| file["model"]["unk_token"] = json!(3), &format!("model.unk_token: {setting} 3"));
        check(|file| file["model"]["dropout"] = json!("a"), &format!("model.dropout: {setting} \"a\""));
        check(
            |file| file["truncation"] = json!(5),
            "truncation: expected an object with its settings, given 5",
        );
        check(
            |file| file["added_tokens"][0]["special"] = json!(1),
            "added_tokens[0].special: expected true or false, given 1",
        );
        check(|file| file["added_tokens"] = json!("<s>"), "added_tokens: expected a list, given \"<s>\"");
        check(
            |file| file["added_tokens"][0]["id"] = json!(1.5),
            "added_tokens[0].id: expected a token id, given 1.5",
        );
        check(
            |file| file["added_tokens"][0]["content"] = json!(3),
            "added_tokens[0].content: expected a string, given 3",
        );
        let known = "expected a kind that is known, with its settings, given";
        check(
            |file| file["decoder"] = json!({"type": "Telepathy"}),
            &format!("decoder: {known} {{\"type\":\"Telepathy\"}}"),
        );
        check(
            |file| {
                file["normalizer"] =
                    json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFX"}]})
            },
            &format!("normalizer.normalizers[1]: {known} {{\"type\":\"NFX\"}}"),
        );
        check(|file| file["pre_tokenizer"] = json!([1]), &format!("pre_tokenizer: {known} [1]"));
        check(
            |file| file["post_processor"] = json!({"processors": 1}),
            &format!("post_processor: {known} {{\"processors\":1}}"),
        );
        check(|file| *file = json!([]), "tokenizer.json: expected an object, given []");
    }
}
