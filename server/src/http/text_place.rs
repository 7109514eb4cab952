//! Where tokens stand in a text.

/// A place in a text that tokens make, one after the other. A token stands where the first character begins that it is a part of;
/// bytes that are no character are U+FFFD in the text, one for each maximal part of a character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextPlace {
    num_chars: usize,
    /// The bytes of a character that has begun: the next one of the text.
    partial: Vec<u8>,
}

impl TextPlace {
    /// Behind tokens of which the last ones have these bytes: a character that they begin and do not end goes on.
    pub(crate) fn behind(bytes: &[u8]) -> Self {
        let mut place = Self::default();
        place.take(bytes);
        place.at(0)
    }

    /// The same, `num_chars` characters from the beginning of the text.
    pub(crate) fn at(self, num_chars: usize) -> Self {
        Self { num_chars, ..self }
    }

    /// Takes the bytes of the next token; where it stands.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let is_cut = !self.partial.is_empty() && bytes.first().is_some_and(|&byte| !self.goes_on_with(byte));
        let start = self.num_chars + usize::from(is_cut);
        self.partial.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.partial);
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.num_chars += chunk.valid().chars().count();
            match chunk.invalid() {
                [] => {}
                invalid if chunks.peek().is_none() && may_go_on(invalid) => self.partial = invalid.to_vec(),
                _ => self.num_chars += 1,
            }
        }
        start
    }

    /// Whether a byte is a part of the character that has begun.
    fn goes_on_with(&self, byte: u8) -> bool {
        let bytes = [&self.partial[..], &[byte]].concat();
        std::str::from_utf8(&bytes).is_ok() || may_go_on(&bytes)
    }
}

/// Whether bytes that are no character are the beginning of one.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(tokens: &[&[u8]]) -> Vec<usize> {
        let mut place = TextPlace::default();
        tokens.iter().map(|bytes| place.take(bytes)).collect()
    }

    #[test]
    fn bytes_that_are_no_character_take_the_room_of_one_each() {
        assert_eq!(places(&[b"a", b"\xC3", b"\xA9", b"b"]), [0, 1, 1, 2]);
        assert_eq!(places(&[b"\x99\x82", b"\x99\x82", b"a"]), [0, 2, 4]);
        assert_eq!(places(&[b"T", b"\xD7", b"T", b"\xF0\x9F", b"\xF0", b"x"]), [0, 1, 2, 3, 4, 5]);
        let mut place = TextPlace::behind(b"ab\xF0\x9F");
        assert_eq!([b"\x99\x82"; 3].map(|bytes| place.take(bytes)), [0, 1, 3]);
        assert_eq!(TextPlace::behind(b"ab\x99"), TextPlace::default());
    }

    /// The character of each byte, of all bytes at once.
    fn characters(bytes: &[u8]) -> Vec<usize> {
        let mut of_bytes = Vec::new();
        let mut num_chars = 0;
        for chunk in bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                of_bytes.extend(std::iter::repeat_n(num_chars, c.len_utf8()));
                num_chars += 1;
            }
            of_bytes.extend(std::iter::repeat_n(num_chars, chunk.invalid().len()));
            num_chars += usize::from(!chunk.invalid().is_empty());
        }
        assert_eq!(num_chars, String::from_utf8_lossy(bytes).chars().count());
        of_bytes
    }

    proptest! {
        /// However bytes are split into tokens, each stands where the character of its first byte does.
        #[test]
        fn tokens_stand_where_their_first_byte_does(
            tokens in proptest::collection::vec(prop_oneof![
                proptest::collection::vec(any::<u8>(), 1..4),
                proptest::collection::vec(prop_oneof![Just(0xF0), Just(0x9F), Just(0x99), Just(0x82), Just(b'T')], 1..4),
                any::<char>().prop_map(|c| c.to_string().into_bytes()),
            ], 0..24),
        ) {
            let all = characters(&tokens.concat());
            let starts = tokens.iter().scan(0, |end, token| Some(std::mem::replace(end, *end + token.len())));
            let expected: Vec<_> = starts.map(|start| all[start]).collect();
            let tokens: Vec<_> = tokens.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(places(&tokens), expected);
        }
    }
}
