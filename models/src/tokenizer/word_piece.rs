//! BERT's WordPiece, as GGUF files keep it: words that begin a token are marked, not those that continue one.

use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

use super::TokenizerError;

/// What a GGUF file puts in front of the beginning of a word.
const WORD: char = '\u{2581}';
/// What the library puts in front of what continues one.
const CONTINUATION: &str = "##";

/// A tokenizer without special tokens. `is_plain` tells ordinary tokens from those with a role.
pub(super) fn build(
    tokens: &[&str],
    is_plain: impl Fn(usize) -> bool,
    unknown: &str,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let text = |id: usize, token: &str| if is_plain(id) { unmarked(token) } else { token.to_owned() };
    let entries = tokens.iter().enumerate().map(|(id, token)| (text(id, token), id as u32));
    let model = WordPiece::builder()
        .vocab(entries.collect::<Vocab>())
        .unk_token(unknown.to_owned())
        .continuing_subword_prefix(CONTINUATION.to_owned())
        .build()
        .map_err(TokenizerError::Build)?;
    let mut inner = tokenizers::Tokenizer::new(model);
    // Files do not say whether case counts; those that are converted are the ones for which it does not.
    let normalizer = BertNormalizer::new(true, true, None, true);
    inner.with_normalizer(Some(normalizer)).map_err(TokenizerError::Build)?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(WordPieceDecoder::default()));
    Ok(inner)
}

/// The token as BERT's own vocabulary has it.
pub(super) fn unmarked(token: &str) -> String {
    match token.strip_prefix(WORD) {
        Some(word) => word.to_owned(),
        None => format!("{CONTINUATION}{token}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_into_the_longest_pieces() {
        let tokens = ["[UNK]", "\u{2581}un", "able", "aff", "\u{2581}cafe"];
        let tokenizer = build(&tokens, |id| id > 0, "[UNK]").unwrap();
        let ids = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        assert_eq!(ids("Unaffable café"), [1, 3, 2, 4]);
        assert_eq!(ids("xyz"), [0]);
    }
}
