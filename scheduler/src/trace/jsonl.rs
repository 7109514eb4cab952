//! A JSON object a line.

use serde_json::{Map, Value};

use super::row::{Builder, Row};
use super::{Trace, TraceError};

struct Object {
    line: usize,
    fields: Map<String, Value>,
}

impl Row for Object {
    fn line(&self) -> usize {
        self.line
    }

    fn get(&self, column: &'static str) -> Option<String> {
        match self.fields.get(column)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Trace, TraceError> {
    let mut builder = Builder::default();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = index + 1;
        let fields = serde_json::from_str(line)
            .map_err(|error| TraceError::NotJson { line: line_number, reason: error.to_string() })?;
        builder.push(&Object { line: line_number, fields })?;
    }
    builder.finish()
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
    fn lines_are_requests_and_other_fields_are_ignored() {
        let trace = parse(
            "{\"id\": 0, \"prompt_tokens\": 558, \"output_tokens\": 162, \"arrival_unit\": 0.388826}\n\n\
             {\"id\": 1, \"prompt_tokens\": 28, \"output_tokens\": 346, \"arrival_unit\": 0.76763, \"tenant\": 7}\n",
        )
        .unwrap();
        assert_eq!((trace.requests.len(), trace.arrivals), (2, Arrivals::MeanGaps));
        assert_eq!((trace.requests[1].output_tokens, trace.tenants), (346, vec!["7".to_owned()]));
        assert_eq!(trace.requests[0].arrival, 0.388826);
    }

    #[test]
    fn refusals_name_line_and_column() {
        check("", "no requests");
        check("{\"prompt_tokens\": 5}", "line 1: no `output_tokens`");
        check("{\"prompt_tokens\": 5, \"output_tokens\": 0}", "line 1, column `output_tokens`: `0`");
        check("{\"prompt_tokens\": 5, \"output_tokens\": 1}\n[1]", "line 2: not a JSON object");
        let mixed = "{\"prompt_tokens\": 5, \"output_tokens\": 1}\n\
                     {\"prompt_tokens\": 5, \"output_tokens\": 1, \"arrival_s\": 1}";
        check(mixed, "line 2: `arrival_s` is on some lines only");
        check("{\"prompt_tokens\": 5, \"output_tokens\": 1, \"arrival_s\": -1}", "column `arrival_s`: `-1`");
    }
}
