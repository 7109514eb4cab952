//! From tokens to text, one request at a time.

use std::sync::Arc;

use quire_models::{TextOptions, TextStream, Tokenizer};

/// Tokens of the prompt that a text may depend on.
const NUM_CONTEXT: usize = 5;

/// Turns the tokens of one output into text, as they come. Joined, the pieces are the text; none ends inside a
/// character. A token outside of the vocabulary is nothing.
pub(crate) trait Detokenizer: Send {
    /// Takes a token; appends what is certain to be text now.
    fn push(&mut self, token_id: u32, text: &mut String);

    /// The end: appends what was waiting for a continuation.
    fn flush(&mut self, text: &mut String);

    /// Whether it never makes text: then no token waits for any.
    fn is_silent(&self) -> bool {
        false
    }
}

/// Makes detokenizers, and texts of single tokens. Without a tokenizer there is no text.
#[derive(Clone)]
pub(crate) struct TextDecoder {
    tokenizer: Option<Arc<Tokenizer>>,
}

impl TextDecoder {
    pub(crate) fn new(tokenizer: Option<Arc<Tokenizer>>) -> Self {
        Self { tokenizer }
    }

    /// The tokenizer, to be kept.
    pub(crate) fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    pub(crate) fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_deref()
    }

    /// For an output that continues `prompt`. Without options it makes no text.
    pub(crate) fn detokenizer(&self, prompt: &[u32], options: Option<TextOptions>) -> Box<dyn Detokenizer> {
        let (Some(tokenizer), Some(options)) = (self.tokenizer.clone(), options) else {
            return Box::new(NoText);
        };
        let context = &prompt[prompt.len().saturating_sub(NUM_CONTEXT)..];
        let stream = TextStream::after(&tokenizer, context, options);
        Box::new(StreamDetokenizer { tokenizer, stream })
    }

    /// The text of tokens, special ones too, up to a character that they begin and do not end.
    pub(crate) fn text_before(&self, token_ids: &[u32]) -> String {
        let mut text = String::new();
        if let Some(tokenizer) = &self.tokenizer {
            let mut stream = TextStream::new(TextOptions::default());
            token_ids.iter().for_each(|&id| stream.push(tokenizer, id, &mut text));
        }
        text
    }

    /// A token alone: parts of a character show as U+FFFD, special tokens as they are written.
    pub(crate) fn token_text(&self, token_id: u32) -> String {
        self.tokenizer.as_ref().map_or_else(String::new, |tokenizer| tokenizer.decode(&[token_id]))
    }

    /// The bytes of a token that is not made of whole characters.
    pub(crate) fn broken_bytes(&self, token_id: u32) -> Option<Vec<u8>> {
        let bytes = self.tokenizer.as_ref()?.token_bytes(token_id)?;
        std::str::from_utf8(bytes).is_err().then(|| bytes.to_vec())
    }
}

/// The text of a tokenizer.
struct StreamDetokenizer {
    tokenizer: Arc<Tokenizer>,
    stream: TextStream,
}

impl Detokenizer for StreamDetokenizer {
    fn push(&mut self, token_id: u32, text: &mut String) {
        self.stream.push(&self.tokenizer, token_id, text);
    }

    fn flush(&mut self, text: &mut String) {
        self.stream.flush(&self.tokenizer, text);
    }
}

/// The detokenizer of a model without a tokenizer, and of a request that wants no text.
struct NoText;

impl Detokenizer for NoText {
    fn push(&mut self, _token_id: u32, _text: &mut String) {}

    fn flush(&mut self, _text: &mut String) {}

    fn is_silent(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quire_models::testing::TinyTokenizer;
    use serde_json::{Value, json};

    use super::*;

    fn open(json: &Value) -> Arc<Tokenizer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, json.to_string()).unwrap();
        Arc::new(Tokenizer::open(&path).unwrap())
    }

    const WORDS: [&str; 6] = ["<s>", "▁Hello", "▁world", "▁!", "▁", "a"];

    fn byte_token(byte: u8) -> u32 {
        (WORDS.len() + usize::from(byte)) as u32
    }

    /// In the manner of SentencePiece: a space is part of the word it precedes, the first one is dropped, and bytes
    /// that are no token are tokens of their own.
    fn sentence_piece() -> Arc<Tokenizer> {
        let words = WORDS.into_iter().map(str::to_owned);
        let tokens = words.chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let vocab: serde_json::Map<String, Value> =
            tokens.zip(0..).map(|(token, id)| (token, id.into())).collect();
        open(&json!({
            "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [{
                "id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }],
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<s>"},
        }))
    }

    fn options(skip_special_tokens: bool) -> Option<TextOptions> {
        Some(TextOptions { skip_special_tokens, ..TextOptions::default() })
    }

    fn pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special_tokens: bool) -> Vec<String> {
        let decoder = TextDecoder::new(Some(Arc::clone(tokenizer)));
        let mut detokenizer = decoder.detokenizer(&[], options(skip_special_tokens));
        let mut pieces: Vec<String> = ids.iter().map(|&id| piece(detokenizer.as_mut(), id)).collect();
        pieces.push(String::new());
        detokenizer.flush(pieces.last_mut().unwrap());
        pieces
    }

    fn piece(detokenizer: &mut dyn Detokenizer, id: u32) -> String {
        let mut piece = String::new();
        detokenizer.push(id, &mut piece);
        piece
    }

    #[test]
    fn br_29_spaces_and_bytes_of_sentence_piece() {
        let tokenizer = sentence_piece();
        let bytes = "你".bytes().map(byte_token);
        let ids: Vec<u32> = [1, 2].into_iter().chain(bytes).chain([3]).collect();
        assert_eq!(pieces(&tokenizer, &ids, true), ["Hello", " world", "", "", "你", " !", ""]);
        let with_special = [1, 0, 2];
        assert_eq!(pieces(&tokenizer, &with_special, true).concat(), "Hello world");
        assert_eq!(pieces(&tokenizer, &with_special, false).concat(), "Hello<s> world");
        let invalid = [1, byte_token(0xFF), 2];
        assert_eq!(pieces(&tokenizer, &invalid, true), ["Hello", "\u{FFFD}", " world", ""]);
    }

    #[test]
    fn parts_of_a_character_have_bytes_of_their_own() {
        let decoder = TextDecoder::new(Some(sentence_piece()));
        assert_eq!(decoder.token_text(byte_token(0xE4)), "\u{FFFD}");
        assert_eq!(decoder.broken_bytes(byte_token(0xE4)), Some(vec![0xE4]));
        assert_eq!((decoder.broken_bytes(byte_token(b'x')), decoder.broken_bytes(1)), (None, None));
        assert_eq!(decoder.broken_bytes(0), None, "a special token");
    }

    #[test]
    fn a_character_begun_by_the_prompt_is_finished() {
        let tokenizer = open(&TinyTokenizer::json());
        let bytes: Vec<u32> = "é".bytes().map(TinyTokenizer::byte).collect();
        let mut detokenizer = TextDecoder::new(Some(tokenizer)).detokenizer(&bytes[..1], options(true));
        assert_eq!(piece(detokenizer.as_mut(), bytes[1]), "é");
    }

    proptest! {
        /// Bytes that are tokens give the text of all bytes at once.
        #[test]
        fn byte_level_pieces_make_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let tokenizer = open(&TinyTokenizer::json());
            let ids: Vec<u32> = bytes.iter().map(|&byte| TinyTokenizer::byte(byte)).collect();
            let whole = pieces(&tokenizer, &ids, true).concat();
            prop_assert_eq!(&whole, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(whole, tokenizer.decode(&ids));
        }

        /// Words and characters written in bytes give the text of all tokens at once, in whole characters.
        #[test]
        fn window_pieces_make_the_whole(
            parts in proptest::collection::vec(prop_oneof![(1..6_u32).prop_map(|id| vec![id]),
                any::<char>().prop_map(|c| c.to_string().bytes().map(byte_token).collect())], 0..12),
        ) {
            let tokenizer = sentence_piece();
            let ids = parts.concat();
            let pieces = pieces(&tokenizer, &ids, true);
            prop_assert_eq!(&pieces.concat(), &tokenizer.decode(&ids));
            prop_assert_eq!(pieces.concat(), tokenizer.inner().decode(&ids, true).unwrap());
        }
    }
}
