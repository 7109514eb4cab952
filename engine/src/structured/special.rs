//! Special tokens in grammars: no text, but tokens by their numbers.

use std::cmp::Reverse;

use quire_models::Tokenizer;
use serde_json::Value;

/// The special tokens of a vocabulary, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct SpecialTokens(Vec<(String, u32)>);

impl SpecialTokens {
    pub(super) fn new(tokens: impl IntoIterator<Item = (String, u32)>) -> Self {
        Self(tokens.into_iter().collect())
    }

    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.inner().get_added_tokens_decoder();
        let special =
            added.into_iter().filter(|(id, token)| tokenizer.is_special(*id) && !token.content.is_empty());
        Self::new(special.map(|(id, token)| (token.content, id)))
    }

    /// The first special token of a text, where it stands: the longest, if several stand there.
    pub(super) fn first_in(&self, text: &str) -> Option<(usize, &str, u32)> {
        let found = self.0.iter().filter_map(|(name, id)| Some((text.find(name)?, &name[..], *id)));
        found.min_by_key(|(at, name, _)| (*at, Reverse(name.len())))
    }

    /// A text as a grammar has it; nothing where it is empty.
    pub(super) fn write(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((at, name, id)) = self.first_in(rest) {
            parts.extend(quoted(&rest[..at]));
            parts.push(format!("<[{id}]>"));
            rest = &rest[at + name.len()..];
        }
        parts.extend(quoted(rest));
        parts.join(" ")
    }
}

fn quoted(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| Value::from(text).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_those_at_one_place_counts() {
        let special = SpecialTokens::new([("<a".to_owned(), 1), ("<a>".to_owned(), 2)]);
        assert_eq!(special.write("x<a>\"<ay"), r#""x" <[2]> "\"" <[1]> "y""#);
        assert_eq!(special.write(""), "");
    }
}
