//! SentencePiece's byte pair encoding, from the scores that a GGUF file keeps of it.
//!
//! Such a model joins, of all neighbours, those whose union has the best score. Written as merges: every way to cut a token
//! into two others, the best tokens first, as the converters of `transformers` write them into a `tokenizer.json`.

use std::collections::{BTreeSet, HashMap};

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Sequence as Normalizers};

use super::TokenizerError;

/// What stands for a space in tokens.
const SPACE: &str = "\u{2581}";

/// What a file says of its tokens.
pub(super) struct Pieces<'a> {
    pub(super) tokens: &'a [&'a str],
    /// One for each token, the best the largest.
    pub(super) scores: &'a [f32],
    /// Stands for characters that have no bytes among the tokens.
    pub(super) unknown: Option<&'a str>,
    /// Whether a text is read as if a space stood in front of it.
    pub(super) adds_space_prefix: bool,
}

/// A tokenizer without special tokens.
pub(super) fn build(pieces: &Pieces<'_>) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let mut vocab = Vocab::with_capacity(pieces.tokens.len());
    vocab.extend(pieces.tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id)));
    let mut model = BPE::builder().vocab_and_merges(vocab, merges(pieces)).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = pieces.unknown {
        model = model.unk_token(unknown.to_owned());
    }
    let mut inner = tokenizers::Tokenizer::new(model.build().map_err(TokenizerError::Build)?);
    let normalizer = normalizer(pieces.adds_space_prefix)?;
    inner.with_normalizer(Some(normalizer)).map_err(TokenizerError::Build)?;
    inner.with_decoder(Some(decoder(pieces.adds_space_prefix)?));
    Ok(inner)
}

/// Every pair of tokens that joins to a token, the best first. Cuts of one token come in the order of their parts' ids where
/// texts get a space in front, the longest left parts first where they do not: so the converters of Llama and of Gemma.
fn merges(pieces: &Pieces<'_>) -> Merges {
    let ids: HashMap<&str, usize> = pieces.tokens.iter().copied().zip(0..).collect();
    // Most cuts have a part as long as no token: looking for those would take long where tokens are.
    let lengths: BTreeSet<usize> = pieces.tokens.iter().map(|token| token.len()).collect();
    let is_token = |part: &str| lengths.contains(&part.len()) && ids.contains_key(part);
    let mut all: Vec<(f32, &str, &str)> = Vec::new();
    for (token, &score) in pieces.tokens.iter().zip(pieces.scores) {
        let places = lengths.range(1..token.len().max(1)).filter(|at| token.is_char_boundary(**at));
        let cuts = places.map(|at| token.split_at(*at));
        let mut cuts: Vec<_> = cuts.filter(|(left, right)| is_token(right) && is_token(left)).collect();
        cuts.sort_by_key(|(left, right)| (ids[left], ids[right]));
        all.extend(cuts.into_iter().map(|(left, right)| (score, left, right)));
    }
    let len = |text: &str| text.chars().count();
    if pieces.adds_space_prefix {
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
    } else {
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| (len(b.1), len(b.2)).cmp(&(len(a.1), len(a.2)))));
    }
    all.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}

fn normalizer(adds_space_prefix: bool) -> Result<NormalizerWrapper, TokenizerError> {
    let replace = NormalizerWrapper::from(Replace::new(" ", SPACE).map_err(TokenizerError::Build)?);
    if !adds_space_prefix {
        return Ok(replace);
    }
    Ok(Normalizers::new(vec![Prepend::new(SPACE.to_owned()).into(), replace]).into())
}

fn decoder(adds_space_prefix: bool) -> Result<DecoderWrapper, TokenizerError> {
    let replace = Replace::new(SPACE, " ").map_err(TokenizerError::Build)?;
    let mut parts: Vec<DecoderWrapper> =
        vec![replace.into(), ByteFallback::default().into(), Fuse::default().into()];
    if adds_space_prefix {
        parts.push(Strip::new(' ', 1, 0).into());
    }
    Ok(Decoders::new(parts).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [&str; 9] = ["<unk>", "<0x41>", "a", "b", "\u{2581}", "ab", "\u{2581}a", "\u{2581}ab", "c"];

    fn ids(adds_space_prefix: bool, text: &str) -> Vec<u32> {
        let scores = [0.0, 0.0, -8.0, -9.0, -7.0, -1.0, -2.0, -3.0, -10.0];
        let pieces = Pieces { tokens: &TOKENS, scores: &scores, unknown: Some("<unk>"), adds_space_prefix };
        build(&pieces).unwrap().encode(text, false).unwrap().get_ids().to_vec()
    }

    #[test]
    fn the_best_union_is_made_first() {
        // "ab" scores more than "_a", and "_" with "ab" is a token too.
        assert_eq!(ids(true, "ab"), [7]);
        assert_eq!(ids(false, "ab"), [5]);
        assert_eq!(ids(false, "a ab"), [2, 7]);
        assert_eq!(ids(true, ""), [0; 0]);
    }

    #[test]
    fn a_token_of_a_million_characters_is_cut_in_no_time() {
        let long = "x".repeat(1_000_000);
        let tokens = ["<unk>", "x", "xx", &long];
        let pieces = Pieces { tokens: &tokens, scores: &[0.0; 4], unknown: None, adds_space_prefix: false };
        assert_eq!(merges(&pieces), [("x".to_owned(), "x".to_owned())]);
    }

    #[test]
    fn a_character_without_a_token_is_its_bytes_or_unknown() {
        assert_eq!(ids(false, "A"), [1]);
        assert_eq!(ids(false, "aéa"), [2, 0, 2]);
    }
}
