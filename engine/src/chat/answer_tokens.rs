//! Which tokens of an output are its answer.

use super::call_id::{CallIdForm, CallIds};
use super::parser::ChatParserOptions;
use super::reasoning::Reasoning;
use super::sink::Sink;

/// Tells the tokens of an answer, and of its calls, from those of the reasoning before it and its marks, by the texts of the
/// tokens. Tokens of which that is not certain yet are kept back.
///
/// ```
/// use quire_engine::chat::{AnswerTokens, ChatParserOptions, ReasoningFormat};
///
/// let options = ChatParserOptions { reasoning: Some(ReasoningFormat::Qwen3), ..ChatParserOptions::default() };
/// let mut tokens = AnswerTokens::new(&options);
/// let mut answer = Vec::new();
/// for text in ["<th", "ink>", "hm", "</think>", "So", "."] {
///     answer.extend(tokens.push(text, text));
/// }
/// answer.extend(tokens.finish());
/// assert_eq!(answer, ["So", "."]);
/// ```
#[derive(Debug)]
pub struct AnswerTokens<T> {
    /// None where there is no reasoning.
    reasoning: Option<Reasoning>,
    /// Tokens that may be the beginning of reasoning.
    undecided: Vec<T>,
    sink: Sink,
}

impl<T> AnswerTokens<T> {
    /// At the beginning of an output that is read in that way.
    pub fn new(options: &ChatParserOptions) -> Self {
        let reasoning = options.reasoning.map(|format| Reasoning::new(format, options.reasoning_place));
        Self { reasoning, undecided: Vec::new(), sink: Sink::new(CallIds::new(0, CallIdForm::Long)) }
    }

    /// Takes the next token, with its text alone. What is certain to be the answer's now.
    pub fn push(&mut self, text: &str, token: T) -> Vec<T> {
        let Some(reasoning) = &mut self.reasoning else { return vec![token] };
        // Behind the reasoning all tokens are the answer's, those without a text too.
        let mut is_of_answer = reasoning.has_ended();
        for c in text.chars() {
            reasoning.take(c, &mut self.sink, &mut |_, _: &mut Sink| is_of_answer = true);
            if reasoning.has_begun() {
                self.undecided.clear();
            }
        }
        self.sink.take();
        match (reasoning.has_ended(), reasoning.has_begun()) {
            (true, _) if is_of_answer => {
                self.undecided.push(token);
                std::mem::take(&mut self.undecided)
            }
            (false, false) => {
                self.undecided.push(token);
                Vec::new()
            }
            // The reasoning's, or its mark's.
            _ => Vec::new(),
        }
    }

    /// The output has ended; what was kept back and is the answer's.
    pub fn finish(&mut self) -> Vec<T> {
        let undecided = std::mem::take(&mut self.undecided);
        let Some(reasoning) = &mut self.reasoning else { return undecided };
        reasoning.finish(&mut self.sink, &mut |_, _: &mut Sink| ());
        self.sink.take();
        if reasoning.has_ended() { undecided } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reasoning::{ReasoningFormat, ReasoningPlace};
    use super::*;

    #[track_caller]
    fn check(format: ReasoningFormat, place: ReasoningPlace, texts: &[&'static str], expected: &[&str]) {
        let options = ChatParserOptions {
            reasoning: Some(format),
            reasoning_place: place,
            ..ChatParserOptions::default()
        };
        let mut tokens = AnswerTokens::new(&options);
        let mut answer: Vec<&str> = texts.iter().flat_map(|text| tokens.push(text, *text)).collect();
        answer.extend(tokens.finish());
        assert_eq!(answer, expected, "{texts:?}");
    }

    #[test]
    fn what_is_no_reasoning_is_the_answers() {
        use ReasoningFormat::{DeepSeekR1, Qwen3};
        use ReasoningPlace::{Closed, Open, Unsaid};
        check(Qwen3, Unsaid, &["a", "", "b"], &["a", "", "b"]);
        check(Qwen3, Unsaid, &["\n", "<thi", "s>"], &["\n", "<thi", "s>"]);
        check(Qwen3, Unsaid, &["\n", "<think>", "a", "</thi", "nk>", "\n", "b", ""], &["\n", "b", ""]);
        check(Qwen3, Unsaid, &["\n", "<think>a</think>b", "c"], &["<think>a</think>b", "c"]);
        check(Qwen3, Unsaid, &["<think>", "a", ""], &[]);
        check(Qwen3, Unsaid, &["\n", "<thi"], &["\n", "<thi"]);
        check(Qwen3, Open, &["a", "</think>", "b"], &["b"]);
        check(Qwen3, Closed, &["<think>", "a"], &["<think>", "a"]);
        check(DeepSeekR1, Unsaid, &["a", "b</th", "ink>c", "d"], &["ink>c", "d"]);
        check(DeepSeekR1, Unsaid, &["a", "\u{FFFD}", "b"], &[]);
        check(DeepSeekR1, Unsaid, &["<thi"], &[]);
    }

    #[test]
    fn without_reasoning_all_tokens_are_the_answers() {
        let mut tokens = AnswerTokens::new(&ChatParserOptions::default());
        assert_eq!(tokens.push("<think>", 1), [1]);
        assert!(tokens.finish().is_empty());
    }
}
