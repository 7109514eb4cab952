//! Bytes to characters, as they come.

/// Collects bytes and gives out whole characters. What can never become one is given out as U+FFFD, one for each
/// maximal part of a character (Unicode Standard 3.9, table 3-8), as when all bytes are decoded at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Utf8Stream {
    /// The beginning of a character: `partial[..num_partial]`.
    partial: [u8; 4],
    num_partial: usize,
}

impl Utf8Stream {
    /// Appends the characters to `text` that are complete with `bytes`.
    pub(super) fn push(&mut self, mut bytes: &[u8], text: &mut String) {
        while self.num_partial > 0
            && let Some((&byte, rest)) = bytes.split_first()
        {
            if self.extend(byte, text) {
                bytes = rest;
            }
        }
        self.push_from_start(bytes, text);
    }

    /// Gives out what is left: the beginning of a character that will not be completed.
    pub(super) fn flush(&mut self, text: &mut String) {
        if std::mem::take(&mut self.num_partial) > 0 {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// The next byte of a character that has begun. False if it is none: then it begins something else.
    fn extend(&mut self, byte: u8, text: &mut String) -> bool {
        self.partial[self.num_partial] = byte;
        match std::str::from_utf8(&self.partial[..=self.num_partial]) {
            Ok(character) => {
                text.push_str(character);
                self.num_partial = 0;
                true
            }
            Err(error) if error.error_len().is_none() => {
                self.num_partial += 1;
                true
            }
            Err(_) => {
                text.push(char::REPLACEMENT_CHARACTER);
                self.num_partial = 0;
                false
            }
        }
    }

    /// Bytes in front of which no character has begun.
    fn push_from_start(&mut self, mut bytes: &[u8], text: &mut String) {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(valid) => return text.push_str(valid),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).expect("it was found valid"));
            let Some(num_invalid) = error.error_len() else {
                self.partial[..rest.len()].copy_from_slice(rest);
                self.num_partial = rest.len();
                return;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            bytes = &rest[num_invalid..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<String>, String) {
        let mut stream = Utf8Stream::default();
        let mut pieces: Vec<String> = pieces
            .into_iter()
            .map(|piece| {
                let mut text = String::new();
                stream.push(piece, &mut text);
                text
            })
            .collect();
        let mut last = String::new();
        stream.flush(&mut last);
        pieces.push(last);
        let all = pieces.concat();
        (pieces, all)
    }

    #[test]
    fn br_28_no_piece_holds_half_a_character() {
        let text = "你好🙂é";
        let (pieces, all) = decode(text.as_bytes().chunks(1));
        assert_eq!(all, text);
        assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')));
    }

    #[test]
    fn br_28_a_cut_character_and_an_invalid_byte_are_one_replacement_each() {
        assert_eq!(decode("a🙂".as_bytes()[..4].chunks(1)).1, "a\u{FFFD}");
        let (pieces, _) = decode([&b"a"[..], b"\xFF", b"b"]);
        assert_eq!(pieces, ["a", "\u{FFFD}", "b", ""]);
    }

    proptest! {
        /// However bytes are split, the text is that of all of them at once.
        #[test]
        fn splits_do_not_matter(
            bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..64), any::<String>().prop_map(String::into_bytes)],
            cuts in proptest::collection::vec(0_usize..64, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (_, all) = decode(cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]));
            prop_assert_eq!(all, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
