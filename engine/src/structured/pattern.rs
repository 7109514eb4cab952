//! Regular expressions, before the compiler sees them.

use llguidance::derivre::{RegexAst, RegexBuilder};

/// What is wrong with an expression that the compiler would read as another one, if anything is: a backslash at its end, which it passes over.
pub(super) fn fault(regex: &str) -> Option<&'static str> {
    let num_backslashes = regex.bytes().rev().take_while(|&byte| byte == b'\\').count();
    (num_backslashes % 2 == 1).then_some("it ends with a backslash that escapes nothing")
}

/// What is wrong with an expression that the compiler takes as it is.
pub(super) fn syntax_fault(regex: &str) -> Option<String> {
    RegexBuilder::new().mk(&RegexAst::Regex(regex.to_owned())).err().map(|error| error.to_string())
}
