//! Values of Python, written as JSON.

use serde_json::{Map, Number, Value};

/// Lists within lists that are followed.
const MAX_DEPTH: usize = 64;

/// Reads a literal: a number, a text, `True`, `False`, `None` (or JSON's names), a list, a tuple, a dictionary of texts.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut literal = Literal { rest: text.trim() };
    let value = literal.value(MAX_DEPTH)?;
    literal.rest.trim_start().is_empty().then_some(value)
}

struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.list(']', depth),
            '(' => self.list(')', depth),
            '{' => self.dictionary(depth),
            '\'' | '"' => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    fn eat(&mut self, c: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn list(&mut self, closer: char, depth: usize) -> Option<Value> {
        self.rest = &self.rest[1..];
        let mut values = Vec::new();
        while !self.eat(closer) {
            values.push(self.value(depth)?);
            if !self.eat(',') && !self.rest.trim_start().starts_with(closer) {
                return None;
            }
        }
        Some(values.into())
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        self.rest = &self.rest[1..];
        let mut map = Map::new();
        while !self.eat('}') {
            let Value::String(key) = self.value(depth)? else { return None };
            if !self.eat(':') {
                return None;
            }
            map.insert(key, self.value(depth)?);
            if !self.eat(',') && !self.rest.trim_start().starts_with('}') {
                return None;
            }
        }
        Some(map.into())
    }

    fn string(&mut self) -> Option<String> {
        let mut chars = self.rest.chars();
        let quote = chars.next()?;
        let mut text = String::new();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{C}'),
                    '0' => text.push('\0'),
                    '\n' => {}
                    'x' => text.push(code(&mut chars, 2)?),
                    'u' => text.push(code(&mut chars, 4)?),
                    'U' => text.push(code(&mut chars, 8)?),
                    c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-._".contains(c));
        let word = &self.rest[..end.unwrap_or(self.rest.len())];
        self.rest = &self.rest[word.len()..];
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            _ => number(word).map(Value::Number),
        }
    }
}

/// A number as Python writes it: `.5` and `5.` are numbers too.
fn number(word: &str) -> Option<Number> {
    let digits = word.trim_start_matches(['+', '-']);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') || digits.starts_with("._") {
        return None;
    }
    let plain = word.trim_start_matches('+').replace('_', "");
    if let Ok(number) = serde_json::from_str::<Number>(&plain) {
        return Some(number);
    }
    Number::from_f64(plain.parse().ok()?)
}

fn code(chars: &mut std::str::Chars<'_>, num_digits: usize) -> Option<char> {
    let digits: String = chars.take(num_digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == num_digits)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(parse(text).map(|value| value.to_string()).as_deref(), expected, "{text}");
    }

    #[test]
    fn literals_become_json() {
        check("1", Some("1"));
        check(" -1.5e3 ", Some("-1500.0"));
        check(".5", Some("0.5"));
        check("1_000", Some("1000"));
        check(r#"'it\'s "so"\n\x41\u00e9'"#, Some(r#""it's \"so\"\nAé""#));
        check("[True, None, (1, 2,), {'a': {\"b\": []}}]", Some(r#"[true,null,[1,2],{"a":{"b":[]}}]"#));
        for broken in [
            "",
            "x",
            "1 2",
            "[1",
            "[1 2]",
            "{1: 2}",
            "{'a' 1}",
            "'a",
            "'\\uD800'",
            "1+2",
            "__import__",
            "infinity",
        ] {
            check(broken, None);
        }
        check(&"[".repeat(100_000), None);
        check(&("[".repeat(70) + &"]".repeat(70)), None);
    }
}
