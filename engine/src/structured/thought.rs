//! Reasoning in front of a form.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use super::special::SpecialTokens;
use crate::chat::{ReasoningFormat, ReasoningPlace};

/// What may come before a form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Thought {
    /// Nothing.
    #[default]
    None,
    /// Reasoning between its marks, or nothing.
    Optional,
    /// Reasoning between its marks: what begins with the opening mark is reasoning, also where the form would allow it.
    Marked,
    /// Reasoning up to its closing mark.
    Begun,
}

impl Thought {
    /// For an output that begins there.
    pub(crate) fn of(format: ReasoningFormat, place: ReasoningPlace) -> Self {
        match (place, format) {
            (ReasoningPlace::Closed, _) => Self::None,
            (ReasoningPlace::Open, _) | (_, ReasoningFormat::DeepSeekR1) => Self::Begun,
            (ReasoningPlace::Unsaid, ReasoningFormat::Qwen3) => Self::Optional,
        }
    }

    /// What free text is behind it: none that is reasoning to who reads the text.
    pub(super) fn text_behind(self) -> &'static str {
        match self {
            Self::Optional => r"/(?s:.*)/ & ~/(?s:\s*<think>.*)/",
            Self::None | Self::Marked | Self::Begun => "/(?s:.*)/",
        }
    }

    /// A grammar of the reasoning, then of the form.
    pub(super) fn before(self, mut form: TopLevelGrammar, special: &SpecialTokens) -> TopLevelGrammar {
        const FORM: &str = "form";
        let start = match self {
            Self::None => return form,
            Self::Optional => "thought?",
            Self::Marked | Self::Begun => "thought",
        };
        if let Some(first) = form.grammars.first_mut() {
            first.name = Some(FORM.to_owned());
        }
        let lark = format!("start: {start} @{FORM}\n{}\nTEXT: /(?s:.*)/\n", self.rule(special));
        form.grammars.insert(0, GrammarWithLexer { lark_grammar: Some(lark), ..Default::default() });
        form
    }

    /// Reasoning ends with the first closing mark, as the reader of the text has it. A mark that is a token and no text ends
    /// the text in front of it; a mark of text ends a lexeme, which ends as soon as it can.
    fn rule(self, special: &SpecialTokens) -> String {
        let marks = [ReasoningFormat::OPEN, ReasoningFormat::CLOSE];
        let [open_is_token, close_is_token] = marks.map(|mark| special.first_in(mark).is_some());
        let [open, close] = marks.map(|mark| special.write(mark));
        let begin = match (self, open_is_token) {
            (Self::Begun, true) => format!("{open}?"),
            // It is text like any other.
            (Self::Begun, false) => String::new(),
            _ => open,
        };
        match (open_is_token, close_is_token) {
            (_, true) => format!("thought: {begin} TEXT? {close}"),
            (true, false) => format!("thought: {begin} text\ntext[lazy]: TEXT {close}"),
            (false, false) => format!("thought[lazy]: {begin} TEXT {close}"),
        }
    }
}
