//! What a tokenizer's decoder does to each token.

use tokenizers::{Decoder, DecoderWrapper};

/// How tokens become text, where that can be said token by token.
#[derive(Debug)]
pub(super) enum Rule {
    /// Every token is a run of bytes in GPT-2's alphabet; added tokens are written as they are.
    Bytes,
    /// Tokens are words, parted by a space each.
    Words,
    /// Every token is rewritten by itself; only the first of a text may be rewritten otherwise.
    Rewritten(Rewriting),
}

/// What is done to a token.
#[derive(Debug)]
pub(super) struct Rewriting {
    stages: Vec<Stage>,
    /// Whether `<0x41>` is a byte, and not six characters.
    has_bytes: bool,
    /// What is taken away at the beginning of the text.
    pub(super) strip: Option<Strip>,
}

/// Characters that a text does not begin with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strip {
    pub(super) character: char,
    /// So many of them at most.
    pub(super) count: usize,
}

#[derive(Debug)]
enum Stage {
    /// Text in place of another.
    Replace { from: String, to: String },
    /// What the library does, which may ask whether a token is the first.
    Library(DecoderWrapper),
}

impl Rule {
    /// The rule of a decoder; none where neighbours count further than in the rules above.
    pub(super) fn of(decoder: Option<&DecoderWrapper>) -> Option<Self> {
        let Some(decoder) = decoder else { return Some(Self::Words) };
        let stages = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            single => std::slice::from_ref(single),
        };
        if let [DecoderWrapper::ByteLevel(_)] | [DecoderWrapper::ByteLevel(_), DecoderWrapper::Fuse(_)] =
            stages
        {
            return Some(Self::Bytes);
        }
        Rewriting::of(stages).map(Self::Rewritten)
    }

    /// The bytes of a token, as the first of a text or as a later one.
    pub(super) fn bytes(&self, token: &str, is_added: bool, is_first: bool) -> Vec<u8> {
        match self {
            Self::Bytes if is_added => token.as_bytes().to_vec(),
            Self::Bytes => bytes_of(token),
            Self::Words if is_first => token.as_bytes().to_vec(),
            Self::Words => [b" ", token.as_bytes()].concat(),
            Self::Rewritten(rewriting) => rewriting.bytes(token, is_first),
        }
    }

    /// What is taken away at the beginning of a text.
    pub(super) fn strip(&self) -> Option<Strip> {
        match self {
            Self::Rewritten(rewriting) => rewriting.strip,
            Self::Bytes | Self::Words => None,
        }
    }
}

impl Rewriting {
    fn of(decoders: &[DecoderWrapper]) -> Option<Self> {
        let (mut stages, mut has_bytes, mut strip, mut is_fused) = (Vec::new(), false, None, false);
        for decoder in decoders {
            match decoder {
                DecoderWrapper::ByteFallback(_) if !is_fused => has_bytes = true,
                DecoderWrapper::Fuse(_) => is_fused = true,
                DecoderWrapper::Strip(found) if is_fused && found.stop == 0 && strip.is_none() => {
                    strip = Some(Strip { character: found.content, count: found.start });
                }
                DecoderWrapper::Replace(_) if !is_fused => stages.push(replacement(decoder)?),
                DecoderWrapper::WordPiece(_) | DecoderWrapper::Metaspace(_) if !is_fused => {
                    stages.push(Stage::Library(decoder.clone()));
                }
                _ => return None,
            }
        }
        Some(Self { stages, has_bytes, strip })
    }

    fn bytes(&self, token: &str, is_first: bool) -> Vec<u8> {
        if let Some(byte) = byte_token(token).filter(|_| self.has_bytes) {
            return vec![byte];
        }
        self.stages.iter().fold(token.to_owned(), |token, stage| stage.rewrite(token, is_first)).into_bytes()
    }
}

impl Stage {
    /// A token that the library refuses stays as it is.
    fn rewrite(&self, token: String, is_first: bool) -> String {
        match self {
            Self::Replace { from, to } => token.replace(from, to),
            Self::Library(decoder) => {
                let front = if is_first { vec![] } else { vec!["x".to_owned()] };
                let chain = [front, vec![token.clone()]].concat();
                decoder.decode_chain(chain).ok().and_then(|mut chain| chain.pop()).unwrap_or(token)
            }
        }
    }
}

/// A replacement that does not look beyond a token. Its pattern is not public, but written out with it.
fn replacement(decoder: &DecoderWrapper) -> Option<Stage> {
    let written = serde_json::to_value(decoder).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    match text(&written["pattern"]["String"]) {
        Some(from) => Some(Stage::Replace { from, to: text(&written["content"])? }),
        None => Some(Stage::Library(decoder.clone())),
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

/// The bytes that a token of the byte alphabet stands for. One with other characters is written as it is.
fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The inverse of the byte alphabet of GPT-2 (Radford et al. 2019, `bytes_to_unicode`): printable characters of
/// Latin-1 stand for themselves, the other bytes in ascending order for the characters from U+0100 on.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        let mut bytes: Vec<u8> = (0..=0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(bytes_of("Ġcafé"), [b" caf", &[0xE9][..]].concat());
        assert_eq!(bytes_of("\u{120}\u{121}"), [0x20, 0x7F]);
        assert_eq!(bytes_of("<｜end｜>"), "<｜end｜>".as_bytes());
    }

    #[test]
    fn an_added_token_is_written_as_it_is() {
        assert_eq!(Rule::Bytes.bytes("é", true, false), "é".as_bytes());
        assert_eq!(Rule::Bytes.bytes("é", false, false), [0xE9]);
    }

    #[test]
    fn bytes_are_two_digits() {
        assert_eq!(byte_token("<0xE9>"), Some(0xE9));
        for other in ["<0xE>", "<0xE90>", "0xE9", "<0x+9>", "<0xéé>", "<0x é>"] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }
}
