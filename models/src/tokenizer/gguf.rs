//! A tokenizer rebuilt from a GGUF file's metadata.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper};

use super::pre_tokenizer::Family;
use super::{NamedTokens, Tokenizer, TokenizerError, refuse};
use crate::error::Result;
use crate::gguf::{Gguf, Metadata};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// Token types of the format.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

pub(super) fn open(file: &Gguf) -> Result<Tokenizer> {
    let reader = Reader { file, metadata: file.metadata() };
    let family = reader.family()?;
    let tokens = reader.strings(TOKENS)?;
    let merges = reader.merges(&tokens)?;
    let model = build_bpe(&tokens, merges, family).map_err(|source| refuse(file.path(), source))?;

    let mut inner = tokenizers::Tokenizer::new(model);
    let named = reader.named_tokens(&tokens)?;
    let frame = reader.frame(family, &named)?;
    let added = reader.added_tokens(&tokens)?;
    assemble(&mut inner, family, added, frame).map_err(|source| refuse(file.path(), source))?;
    Ok(Tokenizer::new(inner, named))
}

/// What goes around a text.
struct Frame<'a> {
    front: Option<&'a str>,
    back: Option<&'a str>,
}

fn build_bpe(tokens: &[&str], merges: Merges, family: Family) -> Result<BPE, TokenizerError> {
    let mut vocab = Vocab::with_capacity(tokens.len());
    vocab.extend(tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id)));
    BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(family.ignores_merges)
        .build()
        .map_err(TokenizerError::Build)
}

fn assemble(
    inner: &mut tokenizers::Tokenizer,
    family: Family,
    added: Vec<AddedToken>,
    frame: Frame<'_>,
) -> Result<(), TokenizerError> {
    let normalizer = family.composes.then(|| NormalizerWrapper::from(NFC));
    inner.with_normalizer(normalizer).map_err(TokenizerError::Build)?;
    inner.with_pre_tokenizer(Some(family.pre_tokenizer()?));
    inner.with_decoder(Some(ByteLevel::new(true, true, true)));
    inner.add_tokens(added).map_err(TokenizerError::Build)?;
    if let Some(processor) = frame.processor(inner)? {
        inner.with_post_processor(Some(processor));
    }
    Ok(())
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
    fn family(&self) -> Result<Family> {
        let model = self.string(MODEL)?.ok_or_else(|| self.missing(MODEL))?;
        if model != "gpt2" {
            return Err(refuse(self.file.path(), TokenizerError::Model { given: model.to_owned() }));
        }
        Family::named(self.string(PRE)?.unwrap_or("default"))
            .map_err(|source| refuse(self.file.path(), source))
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

    fn named_tokens(&self, tokens: &[&str]) -> Result<NamedTokens> {
        Ok(NamedTokens {
            bos: self.named_token("bos", tokens)?,
            eos: self.named_token("eos", tokens)?,
            pad: self.named_token("padding", tokens)?,
            unk: self.named_token("unknown", tokens)?,
        })
    }

    fn named_token(&self, role: &str, tokens: &[&str]) -> Result<Option<String>> {
        let key = format!("tokenizer.ggml.{role}_token_id");
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

    /// Control tokens are special; what users defined is found in text but is not special.
    fn added_tokens(&self, tokens: &[&str]) -> Result<Vec<AddedToken>> {
        let Some(types) = self.metadata.integers(TYPES).map_err(|source| self.file.error(source))? else {
            return Ok(Vec::new());
        };
        if types.len() != tokens.len() {
            let source = TokenizerError::Length { key: TYPES, expected: tokens.len(), given: types.len() };
            return Err(refuse(self.file.path(), source));
        }
        let added = tokens.iter().zip(types).filter(|(_, kind)| matches!(*kind, CONTROL | USER_DEFINED));
        Ok(added.map(|(token, kind)| AddedToken::from(*token, kind == CONTROL).normalized(false)).collect())
    }

    fn frame<'n>(&self, family: Family, named: &'n NamedTokens) -> Result<Frame<'n>> {
        let adds_bos = self.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(family.adds_bos);
        let adds_eos = self.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        Ok(Frame {
            front: named.bos.as_deref().filter(|_| adds_bos),
            back: named.eos.as_deref().filter(|_| adds_eos),
        })
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

    fn missing(&self, key: &'static str) -> crate::Error {
        refuse(self.file.path(), TokenizerError::MissingKey { key })
    }
}
