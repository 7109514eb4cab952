//! A JSON object a line.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::row::{Builder, COLUMNS, Row, lines};
use super::{Trace, TraceError};

struct Object {
    line: usize,
    fields: Fields,
}

/// The members of an object, and the first column that it names twice.
#[derive(Default)]
struct Fields {
    values: BTreeMap<String, Value>,
    twice: Option<&'static str>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            let known = COLUMNS.into_iter().find(|column| *column == name);
            if fields.values.insert(name, value).is_some() {
                fields.twice = fields.twice.or(known);
            }
        }
        Ok(fields)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, _seq: A) -> Result<Fields, A::Error> {
        Err(de::Error::custom("an array, expected one object a line"))
    }
}

impl Row for Object {
    fn line(&self) -> usize {
        self.line
    }

    fn get(&self, column: &'static str) -> Option<String> {
        match self.fields.values.get(column)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// `7` and `"7"` are one name; what is neither a text nor a whole number is none.
    fn name(&self, column: &'static str) -> Result<Option<String>, TraceError> {
        match self.fields.values.get(column) {
            None | Some(Value::Null | Value::String(_)) => Ok(self.get(column)),
            Some(Value::Number(number)) if !number.is_f64() => Ok(self.get(column)),
            Some(other) => {
                let (line, given) = (self.line, other.to_string());
                Err(TraceError::Value { line, column, given, expected: "a text or a whole number" })
            }
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Trace, TraceError> {
    let mut builder = Builder::default();
    for (index, line) in lines(text).enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = index + 1;
        let fields: Fields = serde_json::from_str(line)
            .map_err(|error| TraceError::NotJson { line: line_number, reason: reason(&error) })?;
        if let Some(column) = fields.twice {
            return Err(TraceError::Duplicate { line: line_number, column });
        }
        builder.push(&Object { line: line_number, fields })?;
    }
    builder.finish()
}

/// What is wrong, without the line of the text that was read, which is a line of its own.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => format!("{reason}, at column {}", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Arrivals;

    #[track_caller]
    fn check(text: &str, message: &str) {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn a_mark_of_byte_order_and_fields_that_nobody_reads_do_no_harm() {
        let trace =
            Trace::parse("\u{feff}{\"prompt_tokens\": 5, \"output_tokens\": 2, \"x\": 1, \"x\": 2}").unwrap();
        assert_eq!(trace.requests.len(), 1);
        let array = Trace::parse("[\n{\"prompt_tokens\": 5, \"output_tokens\": 2}]").unwrap_err();
        assert!(array.to_string().starts_with("line 1: not a JSON object"), "{array}");
    }

    #[test]
    fn lines_are_requests_and_other_fields_are_ignored() {
        let trace = parse(
            "{\"id\": 0, \"prompt_tokens\": 558, \"output_tokens\": 162, \"arrival_unit\": 0.388826}\n\n\
             {\"id\": 1, \"prompt_tokens\": 28, \"output_tokens\": 346, \"arrival_unit\": 0.76763, \"tenant\": 7}\n",
        )
        .unwrap();
        assert_eq!((trace.requests.len(), trace.arrivals), (2, Arrivals::MeanGaps));
        assert_eq!(
            (trace.requests[1].output_tokens, trace.tenant_name(&trace.requests[1])),
            (346, Some("7"))
        );
        assert_eq!(trace.requests[0].arrival, 0.388826);
    }

    #[test]
    fn refusals_name_line_and_column() {
        check("", "no requests");
        check(
            "[{\"prompt_tokens\": 5}]",
            "line 1: not a JSON object: an array, expected one object a line, at column ",
        );
        check("\n{\"a\": }", "line 2: not a JSON object: expected value, at column 7");
        check("{\"output_tokens\": 5, \"output_tokens\": 6}", "line 1: `output_tokens` is there twice");
        check("{\"prompt_tokens\": 5}", "line 1: no `output_tokens`");
        check("{\"prompt_tokens\": 5, \"output_tokens\": 0}", "line 1, column `output_tokens`: `0`");
        check("{\"prompt_tokens\": 5, \"output_tokens\": 1}\n[1]", "line 2: not a JSON object");
        let mixed = "{\"prompt_tokens\": 5, \"output_tokens\": 1}\n\
                     {\"prompt_tokens\": 5, \"output_tokens\": 1, \"arrival_s\": 1}";
        check(mixed, "line 2: `arrival_s` is on some lines only");
        let named =
            |column, name| format!("{{\"prompt_tokens\": 5, \"output_tokens\": 1, \"{column}\": {name}}}");
        for name in ["true", "{\"x\":1}", "[1]", "1.5"] {
            let expected = format!("line 1, column `tenant`: `{name}`, expected a text or a whole number");
            check(&named("tenant", name), &expected);
            check(&named("prefix", name), "line 1, column `prefix`: ");
        }
        check("{\"prompt_tokens\": 5, \"output_tokens\": 1, \"arrival_s\": -1}", "column `arrival_s`: `-1`");
    }
}
