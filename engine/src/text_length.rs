//! Texts that are far too long for the context: found out from their beginning, since the tokens of megabytes take seconds and
//! memory.

use crate::PromptError;

/// Bytes of which the tokens are counted at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes of a token in few texts: shorter texts are not looked at twice.
const TOKEN_BYTES: usize = 8;

/// In which bytes at the end of a piece a space is looked for, to cut there.
const CUT_BYTES: usize = 256;

/// Bytes of a text that is tokenized whole where its tokens need not fit: a MiB, or 16 for each token of the context.
const WHOLE_BYTES: usize = 1 << 20;
const BYTES_A_TOKEN: usize = 16;

/// How long a text may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextLimit {
    /// As long as it likes: its author waits for it alone.
    None,
    /// Not far longer than a context of so many tokens.
    Context(usize),
    /// Of so many bytes.
    Bytes(usize),
}

impl TextLimit {
    /// That of a text whose tokens need not fit into a context of so many tokens: those who count them, or keep the last ones.
    /// Memory and time of its tokens are some hundred times those of the text.
    pub(crate) fn beside(max_model_len: usize) -> Self {
        Self::Bytes(WHOLE_BYTES.max(max_model_len.saturating_mul(BYTES_A_TOKEN)))
    }

    /// Refuses a text that is too long for sure; tokens of pieces are counted with `count`.
    ///
    /// # Errors
    ///
    /// [`PromptError::TextTooLong`], [`PromptError::TooManyBytes`]; those of `count`.
    pub(crate) fn check(
        self,
        text: &str,
        count: impl FnMut(&str) -> Result<usize, PromptError>,
    ) -> Result<(), PromptError> {
        match self {
            Self::Bytes(max_bytes) if text.len() > max_bytes => {
                Err(PromptError::TooManyBytes { num_bytes: text.len(), max_bytes })
            }
            Self::None | Self::Bytes(_) => Ok(()),
            Self::Context(max_model_len) => check_text(text, max_model_len, count),
        }
    }
}

/// Counts the tokens of a long text piece by piece, with `count`, until it is sure not to fit.
///
/// Where a text is cut it may have a few tokens more than as a whole. So a text is refused here only with more than twice the
/// tokens that fit, and a thousand; all others are as long as their tokens say.
///
/// # Errors
///
/// [`PromptError::TextTooLong`]; those of `count`.
fn check_text(
    text: &str,
    max_model_len: usize,
    mut count: impl FnMut(&str) -> Result<usize, PromptError>,
) -> Result<(), PromptError> {
    let enough = max_model_len.saturating_mul(2).saturating_add(1000);
    if text.len() <= enough.saturating_mul(TOKEN_BYTES) {
        return Ok(());
    }
    let (mut rest, mut num_tokens) = (text, 0);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(cut(rest));
        num_tokens += count(piece)?;
        if num_tokens > enough {
            return Err(PromptError::TextTooLong { num_bytes: text.len(), max_model_len });
        }
        rest = behind;
    }
    Ok(())
}

/// Where the first piece of a text ends: before a space, if there is one near.
fn cut(text: &str) -> usize {
    let floor = |at: usize| (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    if text.len() <= PIECE_BYTES {
        return text.len();
    }
    let (from, to) = (floor(PIECE_BYTES - CUT_BYTES), floor(PIECE_BYTES));
    text[from..to].rfind(char::is_whitespace).map_or(to, |at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word is a token.
    fn words(text: &str) -> Result<usize, PromptError> {
        Ok(text.split_whitespace().count())
    }

    #[test]
    fn a_text_is_refused_from_its_beginning_and_only_where_it_cannot_fit() {
        let mut num_bytes = 0;
        let text = "wörd ".repeat(1_000_000);
        let counted = check_text(&text, 1000, |piece| {
            num_bytes += piece.len();
            words(piece)
        });
        assert_eq!(counted, Err(PromptError::TextTooLong { num_bytes: text.len(), max_model_len: 1000 }));
        assert!(num_bytes <= 2 * PIECE_BYTES, "{num_bytes} bytes");
        for len in [10_000, 1_000_000] {
            let long_words = "ö".repeat(len) + " word";
            assert_eq!(check_text(&long_words, 1000, words), Ok(()), "{len}");
        }
        // Of no length at which the tokens themselves tell.
        let fits_not = "wörd ".repeat(2900);
        assert_eq!(check_text(&fits_not, 1000, |_| panic!("it is short")), Ok(()));
        assert_eq!(check_text(&text, usize::MAX, |_| panic!("all fits")), Ok(()));
    }

    #[test]
    fn a_text_that_need_not_fit_has_a_bound_of_bytes() {
        for (max_model_len, max_bytes) in [(8192, 1 << 20), (1 << 17, 2 << 20), (usize::MAX, usize::MAX)] {
            assert_eq!(TextLimit::beside(max_model_len), TextLimit::Bytes(max_bytes));
        }
        let check = |text: &str| TextLimit::Bytes(4).check(text, |_| panic!("nothing is counted"));
        assert_eq!(check("a bc"), Ok(()));
        assert_eq!(check("a bcd"), Err(PromptError::TooManyBytes { num_bytes: 5, max_bytes: 4 }));
        assert_eq!(TextLimit::None.check("a bcd", |_| panic!("nothing is counted")), Ok(()));
    }

    #[test]
    fn the_pieces_are_all_of_a_text_and_end_before_spaces() {
        let text = "dé ".repeat(100_000);
        let mut pieces = String::new();
        let tokens = check_text(&text, 10_000_000, words);
        assert_eq!(tokens, Ok(()));
        let counted = check_text(&text, 100, |piece| {
            assert!(pieces.is_empty() || piece.starts_with(' '));
            pieces += piece;
            Ok(1)
        });
        assert_eq!((counted, pieces == text), (Ok(()), true));
    }
}
