//! Log-probabilities as the two APIs write them.

use quire_engine::{TokenLogprob, TokenLogprobs};
use serde::Serialize;
use serde_json::{Map, Value};

use super::text_place::TextPlace;

/// What JSON has in place of minus infinity.
const FLOOR: f32 = -9999.0;

/// How tokens are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenForm {
    /// As their text.
    #[default]
    Text,
    /// As `token_id:ID`.
    Id,
}

impl TokenForm {
    fn write(self, token: &TokenLogprob) -> String {
        self.write_as(token.token_id, &token.token)
    }

    fn write_as(self, token_id: u32, text: &str) -> String {
        match self {
            Self::Text => text.to_owned(),
            Self::Id => format!("token_id:{token_id}"),
        }
    }
}

/// `logprobs` of a completion's choice: four lists of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

impl CompletionLogprobs {
    /// Adds the token that stands at `place`, which it moves on.
    pub(crate) fn push(&mut self, token: &TokenLogprobs, place: &mut TextPlace, form: TokenForm) {
        let mut top = Map::new();
        for one in token.top.iter().chain([&token.token]) {
            top.entry(form.write(one)).or_insert_with(|| floored(one.logprob).into());
        }
        self.text_offset.push(place.take(bytes_of(&token.token)));
        self.token_logprobs.push(Some(floored(token.token.logprob)));
        self.tokens.push(form.write(&token.token));
        self.top_logprobs.push(Some(top));
    }

    /// Adds the first token of a prompt, which nothing predicts.
    pub(crate) fn push_first(&mut self, token_id: u32, text: &str, form: TokenForm) {
        self.text_offset.push(0);
        self.token_logprobs.push(None);
        self.tokens.push(form.write_as(token_id, text));
        self.top_logprobs.push(None);
    }
}

/// The bytes of a token, those of its text unless they are no whole characters.
fn bytes_of(token: &TokenLogprob) -> &[u8] {
    token.bytes.as_deref().unwrap_or(token.token.as_bytes())
}

/// `logprobs` of a chat's choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatTokenLogprobs>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ChatTokenLogprobs {
    #[serde(flatten)]
    token: ChatTokenLogprob,
    top_logprobs: Vec<ChatTokenLogprob>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ChatTokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    pub(crate) fn of(tokens: &[TokenLogprobs], form: TokenForm) -> Self {
        let one = |token: &TokenLogprob| ChatTokenLogprob {
            token: form.write(token),
            logprob: floored(token.logprob),
            bytes: bytes_of(token).to_vec(),
        };
        let content = tokens.iter().map(|token| ChatTokenLogprobs {
            token: one(&token.token),
            top_logprobs: token.top.iter().map(one).collect(),
        });
        Self { content: content.collect() }
    }
}

fn floored(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.max(FLOOR) } else { FLOOR }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(token_id: u32, text: &str, logprob: f32) -> TokenLogprob {
        TokenLogprob { token_id, token: text.to_owned(), bytes: None, logprob }
    }

    #[test]
    fn br_37_a_masked_token_is_a_number() {
        let masked = f32::NEG_INFINITY;
        let tokens = [TokenLogprobs {
            token: token(5, "é", -1.0),
            rank: 1,
            top: vec![token(5, "é", -1.0), token(6, "b", masked)],
        }];
        let mut logprobs = CompletionLogprobs::default();
        let mut place = TextPlace::default().at(3);
        logprobs.push(&tokens[0], &mut place, TokenForm::Text);
        assert_eq!(place, TextPlace::default().at(4));
        let expected = json!({"text_offset": [3], "token_logprobs": [-1.0], "tokens": ["é"], "top_logprobs": [{"é": -1.0, "b": -9999.0}]});
        assert_eq!(serde_json::to_value(&logprobs).expect("plain"), expected);
        let chat = serde_json::to_value(ChatLogprobs::of(&tokens, TokenForm::Id)).expect("plain");
        assert_eq!(
            chat["content"][0]["top_logprobs"][1],
            json!({"token": "token_id:6", "logprob": -9999.0, "bytes": [98]})
        );
        assert_eq!(chat["content"][0]["bytes"], json!([195, 169]));
    }

    #[test]
    fn a_part_of_a_character_has_its_own_bytes() {
        let part = TokenLogprob { bytes: Some(vec![0xF0, 0x9F]), ..token(5, "\u{FFFD}", -1.0) };
        let tokens = [TokenLogprobs { token: part, rank: 1, top: vec![] }];
        let chat = serde_json::to_value(ChatLogprobs::of(&tokens, TokenForm::Text)).expect("plain");
        assert_eq!(chat["content"][0]["bytes"], json!([0xF0, 0x9F]));
    }

    #[test]
    fn the_sampled_token_is_listed_even_below_the_best() {
        let mut logprobs = CompletionLogprobs::default();
        logprobs.push(
            &TokenLogprobs { token: token(7, "z", -4.0), rank: 9, top: vec![token(1, "a", -0.5)] },
            &mut TextPlace::default(),
            TokenForm::Text,
        );
        assert_eq!(
            serde_json::to_value(&logprobs).expect("plain")["top_logprobs"][0],
            json!({"a": -0.5, "z": -4.0})
        );
    }
}
