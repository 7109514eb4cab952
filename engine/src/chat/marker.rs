//! A mark within a text, found character by character.

/// Looks for a mark. Its first character occurs in it once, so that a beginning which comes to nothing holds no other.
#[derive(Clone, Debug)]
pub(super) struct Marker {
    mark: &'static str,
    /// Bytes of it that have come.
    num_matched: usize,
}

/// What a character led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The mark is complete.
    Mark,
    /// It may become one.
    Maybe,
    /// It is none: what is before this character and looked like one is given with it.
    Text(&'static str),
}

impl Marker {
    pub(super) fn new(mark: &'static str) -> Self {
        debug_assert!(
            mark.chars().skip(1).all(|c| !mark.starts_with(c)),
            "{mark}: its first character is unique"
        );
        Self { mark, num_matched: 0 }
    }

    /// Takes a character. On [`Found::Text`] the character itself is text too, or it is [`Found::Maybe`] at its turn.
    pub(super) fn take(&mut self, c: char) -> Found {
        if self.mark[self.num_matched..].starts_with(c) {
            self.num_matched += c.len_utf8();
            if self.num_matched < self.mark.len() {
                return Found::Maybe;
            }
            self.num_matched = 0;
            return Found::Mark;
        }
        Found::Text(self.flush())
    }

    /// What looked like a mark, and is none if nothing follows.
    pub(super) fn flush(&mut self) -> &'static str {
        &self.mark[..std::mem::take(&mut self.num_matched)]
    }

    /// Takes a character; text that is none of the mark goes to `write`. Whether the mark is complete.
    pub(super) fn scan(&mut self, c: char, mut write: impl FnMut(&str)) -> bool {
        match self.take(c) {
            Found::Mark => true,
            Found::Maybe => false,
            Found::Text(before) => {
                write(before);
                if self.take(c) == Found::Text("") {
                    write(c.encode_utf8(&mut [0; 4]));
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_and_what_resembles_it_is_text() {
        let mut marker = Marker::new("<ab>");
        let (mut text, mut num_found) = (String::new(), 0);
        for c in "x<a<ab>é<ab".chars() {
            num_found += u32::from(marker.scan(c, |piece| text.push_str(piece)));
        }
        text.push_str(marker.flush());
        assert_eq!((text.as_str(), num_found), ("x<aé<ab", 1));
    }
}
