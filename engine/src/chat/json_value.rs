//! Where a value ends, in JSON and in Python.

/// Follows one value, character by character, as far as it takes to see its end.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueScan {
    /// The brackets that are to be closed.
    closers: Vec<char>,
    /// The quote that ends the string one is in.
    quote: Option<char>,
    is_escaped: bool,
    has_begun: bool,
}

/// What a character is to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// A part, and more is to come.
    Inside,
    /// The last part.
    Last,
    /// No part: the value ended before it.
    After,
    /// Nothing that can stand there.
    Bad,
}

impl ValueScan {
    /// Takes a character. White space before the value is a part of it.
    pub(super) fn take(&mut self, c: char) -> Scan {
        if let Some(quote) = self.quote {
            return self.take_in_string(c, quote);
        }
        match c {
            '{' | '[' | '(' => self.open(c),
            '}' | ']' | ')' => self.close(c),
            '"' | '\'' => self.open_string(c),
            ',' | ':' => self.inside_or(Scan::After),
            c if c.is_whitespace() && self.has_begun => self.inside_or(Scan::After),
            c if c.is_whitespace() => Scan::Inside,
            c if c.is_ascii_alphanumeric() || "+-._".contains(c) => {
                self.has_begun = true;
                Scan::Inside
            }
            _ => Scan::Bad,
        }
    }

    fn take_in_string(&mut self, c: char, quote: char) -> Scan {
        match c {
            _ if std::mem::take(&mut self.is_escaped) => Scan::Inside,
            '\\' => {
                self.is_escaped = true;
                Scan::Inside
            }
            c if c == quote => {
                self.quote = None;
                self.inside_or(Scan::Last)
            }
            _ => Scan::Inside,
        }
    }

    fn open(&mut self, c: char) -> Scan {
        if self.has_begun && self.closers.is_empty() {
            return Scan::Bad;
        }
        self.has_begun = true;
        self.closers.push(match c {
            '{' => '}',
            '[' => ']',
            _ => ')',
        });
        Scan::Inside
    }

    fn close(&mut self, c: char) -> Scan {
        match self.closers.pop() {
            Some(closer) if closer == c => self.inside_or(Scan::Last),
            Some(_) => Scan::Bad,
            None if self.has_begun => Scan::After,
            None => Scan::Bad,
        }
    }

    fn open_string(&mut self, c: char) -> Scan {
        if self.has_begun && self.closers.is_empty() {
            return Scan::Bad;
        }
        self.has_begun = true;
        self.quote = Some(c);
        Scan::Inside
    }

    fn inside_or(&self, outside: Scan) -> Scan {
        if self.closers.is_empty() { outside } else { Scan::Inside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of a text is its first value, and how that was seen.
    fn end(text: &str) -> (usize, Scan) {
        let mut scan = ValueScan::default();
        let mut ends = text.char_indices().map(|(at, c)| (at, scan.take(c)));
        ends.find(|(_, scan)| *scan != Scan::Inside).unwrap_or((text.len(), Scan::Inside))
    }

    #[test]
    fn a_value_ends_where_its_last_bracket_or_quote_closes() {
        assert_eq!(end(r#"{"a": [1, "}\"]"]}x"#), (17, Scan::Last));
        assert_eq!(end(r#" "a,b" ,"#), (5, Scan::Last));
        assert_eq!(end("12,"), (2, Scan::After));
        assert_eq!(end("true }"), (4, Scan::After));
        assert_eq!(end("{]"), (1, Scan::Bad));
        assert_eq!(end("[<"), (1, Scan::Bad));
        assert_eq!(end("]"), (0, Scan::Bad));
        assert_eq!(end("{\"a"), (3, Scan::Inside));
    }
}
