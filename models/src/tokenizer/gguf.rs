//! A tokenizer rebuilt from a GGUF file's metadata.

use std::borrow::Cow;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper};

use super::pre_tokenizer::Family;
use super::sentence_piece::{self, Pieces};
use super::{NamedTokens, Tokenizer, TokenizerError, refuse, word_piece};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Metadata};
use crate::parallel;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

/// Token types of the format.
const KNOWN_TYPES: std::ops::RangeInclusive<i64> = 0..=6;
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Opens as much as can be opened, with everything that is wrong.
pub(super) fn survey(file: &Gguf, errors: &mut Vec<Error>) -> Option<Tokenizer> {
    let before = errors.len();
    let reader = Reader { file, metadata: file.metadata() };
    let (flags, tokens) = (reader.flags(errors), told(errors, reader.strings(TOKENS))?);
    let types = told(errors, reader.types(tokens.len()));
    let named = reader.named_tokens(&tokens, errors);
    let types = types.unwrap_or_else(|| vec![NORMAL; tokens.len()]);
    // Merges are sound or not whatever types and roles there are.
    let is_sound = errors.len() == before;
    if !is_sound && !matches!(reader.string(MODEL), Ok(Some("gpt2"))) {
        return None;
    }
    let built = told(errors, reader.build(&tokens, &types, &named))?;
    let completed = complete(built, &types, flags, &named).map_err(|source| refuse(file.path(), source));
    let inner = told(errors, completed)?;
    is_sound.then(|| Tokenizer::of_list(inner, named, tokens.len()))
}

/// The value, or what is wrong taken in.
fn told<T>(errors: &mut Vec<Error>, read: Result<T>) -> Option<T> {
    read.map_err(|error| errors.push(error)).ok()
}

/// A tokenizer without special tokens, and what is needed to give it those.
struct Built<'a> {
    inner: tokenizers::Tokenizer,
    /// The tokens as the tokenizer writes them.
    texts: Vec<Cow<'a, str>>,
    /// What is put around a text where the file does not say.
    adds_bos: bool,
    adds_eos: bool,
}

/// What the file says of a frame around a text.
struct Flags {
    adds_bos: Option<bool>,
    adds_eos: Option<bool>,
}

/// What goes around a text.
struct Frame<'a> {
    front: Option<&'a str>,
    back: Option<&'a str>,
}

fn vocab(tokens: &[&str]) -> Vocab {
    let mut vocab = Vocab::with_capacity(tokens.len());
    vocab.extend(tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id)));
    vocab
}

fn build_bpe(vocab: Vocab, merges: Merges, family: Family) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(family.ignores_merges)
        .build()
        .map_err(TokenizerError::Build)?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let normalizer = family.composes.then(|| NormalizerWrapper::from(NFC));
    inner.with_normalizer(normalizer).map_err(TokenizerError::Build)?;
    inner.with_pre_tokenizer(Some(family.pre_tokenizer()?));
    inner.with_decoder(Some(ByteLevel::new(true, true, true)));
    Ok(inner)
}

/// Control tokens, and that for what is unknown, are special; what users defined is found in text but is not special.
fn added_tokens(tokens: &[Cow<'_, str>], types: &[i64]) -> Vec<AddedToken> {
    let added =
        tokens.iter().zip(types).filter(|(_, kind)| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED));
    added
        .map(|(token, kind)| AddedToken::from(token.as_ref(), *kind != USER_DEFINED).normalized(false))
        .collect()
}

fn complete(
    built: Built<'_>,
    types: &[i64],
    flags: Flags,
    named: &NamedTokens,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let Built { mut inner, texts, adds_bos, adds_eos } = built;
    let frame = Frame {
        front: named.bos.as_deref().filter(|_| flags.adds_bos.unwrap_or(adds_bos)),
        back: named.eos.as_deref().filter(|_| flags.adds_eos.unwrap_or(adds_eos)),
    };
    inner.add_tokens(added_tokens(&texts, types)).map_err(TokenizerError::Build)?;
    if let Some(processor) = frame.processor(&inner)? {
        inner.with_post_processor(Some(processor));
    }
    Ok(inner)
}

impl Frame<'_> {
    fn processor(&self, inner: &tokenizers::Tokenizer) -> Result<Option<TemplateProcessing>, TokenizerError> {
        if self.front.is_none() && self.back.is_none() {
            return Ok(None);
        }
        let pieces: Vec<&str> = self.front.into_iter().chain(["$A"]).chain(self.back).collect();
        let special = self.front.into_iter().chain(self.back);
        let special: Vec<(String, u32)> =
            special.filter_map(|text| Some((text.to_owned(), inner.token_to_id(text)?))).collect();
        let build = |message: String| TokenizerError::Build(message.into());
        let mut builder = TemplateProcessing::builder();
        builder.try_single(pieces).map_err(build)?.special_tokens(special);
        builder.build().map(Some).map_err(|error| build(error.to_string()))
    }
}

struct Reader<'a> {
    file: &'a Gguf,
    metadata: Metadata<'a>,
}

impl<'a> Reader<'a> {
    fn build(&self, tokens: &[&'a str], types: &[i64], named: &NamedTokens) -> Result<Built<'a>> {
        match self.string(MODEL)?.ok_or_else(|| self.missing(MODEL))? {
            "gpt2" => self.byte_level(tokens),
            "llama" => self.sentence_piece(tokens, named),
            "bert" => self.word_piece(tokens, types, named),
            other => Err(refuse(self.file.path(), TokenizerError::Model { given: other.to_owned() })),
        }
    }

    fn byte_level(&self, tokens: &[&'a str]) -> Result<Built<'a>> {
        let refuse = |source| refuse(self.file.path(), source);
        let family = Family::named(self.string(PRE)?.unwrap_or("default")).map_err(refuse)?;
        // Each is a copy of all texts.
        let (vocab, merges) = parallel::both(|| vocab(tokens), || self.merges(tokens));
        Ok(Built {
            inner: build_bpe(vocab, merges?, family).map_err(refuse)?,
            texts: tokens.iter().map(|token| Cow::Borrowed(*token)).collect(),
            adds_bos: family.adds_bos,
            adds_eos: false,
        })
    }

    fn sentence_piece(&self, tokens: &[&'a str], named: &NamedTokens) -> Result<Built<'a>> {
        let refuse = |source| refuse(self.file.path(), source);
        let scores = self.metadata.floats(SCORES).map_err(|source| self.file.error(source))?;
        let scores: Vec<f32> = scores.ok_or_else(|| self.missing(SCORES))?.collect();
        if scores.len() != tokens.len() {
            return Err(refuse(TokenizerError::Length {
                key: SCORES,
                expected: tokens.len(),
                given: scores.len(),
            }));
        }
        if let Some((at, given)) = scores.iter().enumerate().find(|(_, score)| !score.is_finite()) {
            let (field, given) = (format!("{SCORES}[{at}]"), given.to_string());
            return Err(refuse(TokenizerError::Form { field, expected: "a finite number", given }));
        }
        let unknown = named.unk.as_deref().or_else(|| tokens.iter().copied().find(|token| *token == "<unk>"));
        let adds_space_prefix = self.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let pieces = Pieces { tokens, scores: &scores, unknown, adds_space_prefix };
        Ok(Built {
            inner: sentence_piece::build(&pieces).map_err(refuse)?,
            texts: tokens.iter().map(|token| Cow::Borrowed(*token)).collect(),
            adds_bos: true,
            adds_eos: false,
        })
    }

    /// The frame of BERT is its classification and its separation token, under the names of BOS and EOS or their own.
    fn word_piece(&self, tokens: &[&'a str], types: &[i64], named: &NamedTokens) -> Result<Built<'a>> {
        let is_plain = |id: usize| types.get(id).is_none_or(|kind| *kind == NORMAL);
        let unknown = named.unk.as_deref().unwrap_or("[UNK]");
        let inner = word_piece::build(tokens, is_plain, unknown);
        let texts = tokens.iter().enumerate();
        let texts = texts.map(|(id, token)| match is_plain(id) {
            true => Cow::Owned(word_piece::unmarked(token)),
            false => Cow::Borrowed(*token),
        });
        Ok(Built {
            inner: inner.map_err(|source| refuse(self.file.path(), source))?,
            texts: texts.collect(),
            adds_bos: true,
            adds_eos: true,
        })
    }

    /// Merges as pairs. Each is checked to join tokens to a token that is not longer than any: the
    /// builder below trusts the lengths.
    fn merges(&self, tokens: &[&str]) -> Result<Merges> {
        let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
        let pair = |merge: &str| {
            let (left, right) = merge.split_once(' ')?;
            (left.len() + right.len() <= longest).then(|| (left.to_owned(), right.to_owned()))
        };
        let merges = self.strings(MERGES)?;
        merges
            .into_iter()
            .map(|merge| {
                pair(merge).ok_or_else(|| {
                    refuse(self.file.path(), TokenizerError::Merge { given: merge.to_owned() })
                })
            })
            .collect()
    }

    fn named_tokens(&self, tokens: &[&str], errors: &mut Vec<Error>) -> NamedTokens {
        let mut named = |roles: &[&str]| told(errors, self.named_token(roles, tokens)).flatten();
        NamedTokens {
            bos: named(&["bos", "cls"]),
            eos: named(&["eos", "seperator", "separator"]),
            pad: named(&["padding"]),
            unk: named(&["unknown"]),
        }
    }

    /// The token under the first of these names that the file has.
    fn named_token(&self, roles: &[&str], tokens: &[&str]) -> Result<Option<String>> {
        let keys = roles.iter().map(|role| format!("tokenizer.ggml.{role}_token_id"));
        let Some(key) = keys.into_iter().find(|key| self.metadata.contains(key)) else { return Ok(None) };
        let Some(given) = self.metadata.unsigned(&key).map_err(|source| self.file.error(source))? else {
            return Ok(None);
        };
        match usize::try_from(given).ok().and_then(|id| tokens.get(id)) {
            Some(token) => Ok(Some((*token).to_owned())),
            None => {
                let source = TokenizerError::TokenId { key, given, num_tokens: tokens.len() };
                Err(refuse(self.file.path(), source))
            }
        }
    }

    /// The type of each token; all are normal where the file does not say.
    fn types(&self, num_tokens: usize) -> Result<Vec<i64>> {
        let Some(types) = self.metadata.integers(TYPES).map_err(|source| self.file.error(source))? else {
            return Ok(vec![NORMAL; num_tokens]);
        };
        if types.len() != num_tokens {
            let source = TokenizerError::Length { key: TYPES, expected: num_tokens, given: types.len() };
            return Err(refuse(self.file.path(), source));
        }
        let types: Vec<i64> = types.collect();
        if let Some((at, given)) = types.iter().enumerate().find(|(_, kind)| !KNOWN_TYPES.contains(kind)) {
            let (field, given) = (format!("{TYPES}[{at}]"), given.to_string());
            let source = TokenizerError::Form { field, expected: "a type from 0 to 6", given };
            return Err(refuse(self.file.path(), source));
        }
        Ok(types)
    }

    fn flags(&self, errors: &mut Vec<Error>) -> Flags {
        Flags {
            adds_bos: told(errors, self.flag("tokenizer.ggml.add_bos_token")).flatten(),
            adds_eos: told(errors, self.flag("tokenizer.ggml.add_eos_token")).flatten(),
        }
    }

    fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.metadata.string(key).map_err(|source| self.file.error(source))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.metadata.boolean(key).map_err(|source| self.file.error(source))
    }

    fn strings(&self, key: &'static str) -> Result<Vec<&'a str>> {
        let strings = self.metadata.strings(key).map_err(|source| self.file.error(source))?;
        let strings = strings.ok_or_else(|| self.missing(key))?;
        strings.collect::<Result<_, _>>().map_err(|source| self.file.error(source))
    }

    fn missing(&self, key: &'static str) -> Error {
        refuse(self.file.path(), TokenizerError::MissingKey { key })
    }
}
