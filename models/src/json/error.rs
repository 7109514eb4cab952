//! Where and why a text is no JSON, in words for whoever wrote it.

use std::fmt;

/// What a text that should be JSON has, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// From 1.
    pub line: usize,
    /// In bytes, from 1.
    pub column: usize,
    /// What belongs there.
    pub expected: &'static str,
    /// How the text goes on there; `None` where it ends.
    pub given: Option<String>,
}

/// What the parser says, and what it means.
const MEANINGS: [(&str, &str); 17] = [
    ("EOF while parsing a list", "`,` or `]`"),
    ("EOF while parsing an object", "`,` or `}`"),
    ("EOF while parsing a string", "the closing `\"` of a string"),
    ("EOF while parsing a value", "a value"),
    ("expected `:`", "`:`"),
    ("expected `,` or `]`", "`,` or `]`"),
    ("expected `,` or `}`", "`,` or `}`"),
    ("expected ident", "true, false or null"),
    ("expected value", "a value"),
    ("invalid escape", "an escape that JSON has"),
    ("invalid number", "a number"),
    ("number out of range", "a number that fits into 64 bits"),
    ("control character", "a string without control characters"),
    ("key must be a string", "a key in double quotes"),
    ("trailing comma", "a further entry behind the comma"),
    ("trailing characters", "the end of the file"),
    ("recursion limit exceeded", "at most 127 levels of lists and objects"),
];

/// For what is left: surrogates without their other half, bytes that are no UTF-8.
const OTHERWISE: &str = "a Unicode character";

impl JsonError {
    /// What the parser says of `text`.
    pub(crate) fn of(error: &serde_json::Error, text: &[u8]) -> Self {
        let message = error.to_string();
        let meaning = MEANINGS.iter().find(|(says, _)| message.starts_with(says));
        let expected = meaning.map_or(OTHERWISE, |(_, means)| means);
        let (line, column) = (error.line().max(1), error.column().max(1));
        Self {
            line,
            column,
            expected,
            given: if error.is_eof() { None } else { excerpt(text, line, column) },
        }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, expected, given } = self;
        write!(f, "line {line}, column {column}: expected {expected}, ")?;
        match given {
            Some(given) => write!(f, "given {given}"),
            None => f.write_str("but the file ends there"),
        }
    }
}

impl std::error::Error for JsonError {}

/// The rest of a line from a column on, shortened.
fn excerpt(text: &[u8], line: usize, column: usize) -> Option<String> {
    const MAX_CHARS: usize = 24;
    let rest = text.split(|&byte| byte == b'\n').nth(line - 1)?.get(column - 1..)?;
    // More bytes than that are never shown.
    let rest = String::from_utf8_lossy(&rest[..rest.len().min(8 * MAX_CHARS)]);
    let rest = rest.trim_end();
    let shown: String = rest.chars().take(MAX_CHARS).collect();
    let more = if shown.len() < rest.len() { "..." } else { "" };
    Some(if rest.is_empty() { "the end of the line".to_owned() } else { format!("{shown}{more}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let error = serde_json::from_str::<serde_json::Value>(text).expect_err("it is no JSON");
        assert_eq!(JsonError::of(&error, text.as_bytes()).to_string(), expected, "{error}");
    }

    #[test]
    fn errors_say_what_belongs_where() {
        check("{\n  \"a\": 1\n  \"b\": 2\n}", "line 3, column 3: expected `,` or `}`, given \"b\": 2");
        check("{\"a\": [1, 2", "line 1, column 11: expected `,` or `]`, but the file ends there");
        check("", "line 1, column 1: expected a value, but the file ends there");
        check("{\"a\": NaN}", "line 1, column 7: expected a value, given NaN}");
        check("{\"a\": 1,}", "line 1, column 9: expected a further entry behind the comma, given }");
        check("{a: 1}", "line 1, column 2: expected a key in double quotes, given a: 1}");
        check("{'a': 1}", "line 1, column 2: expected a key in double quotes, given 'a': 1}");
        check(
            "{} // made by hand, and so on",
            "line 1, column 4: expected the end of the file, given // made by hand, and so ...",
        );
        check("{\"a\": tru}", "line 1, column 10: expected true, false or null, given }");
        check(
            "{\"a\": \"b\nc\"}",
            "line 2, column 1: expected a string without control characters, given c\"}",
        );
    }

    #[test]
    fn no_error_of_a_parser_is_told_in_its_own_words() {
        for text in ["[1.]", "[1e999]", "\"\\x\"", "\"\\ud800\"", "[nul]", "{\"a\" 1}", "[1 2]", "\"abc"] {
            let error = serde_json::from_str::<serde_json::Value>(text).expect_err("it is no JSON");
            let told = JsonError::of(&error, text.as_bytes());
            assert_ne!((told.expected, text.contains("ud800")), (OTHERWISE, false), "{text}: {error}");
        }
    }
}
