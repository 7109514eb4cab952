//! The lengths of requests, from a file.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};

use super::limits::{BenchError, MAX_LEN, MAX_REQUESTS};
use super::workload::Shape;
use crate::cli::input::{InputError, LineError, byte_order_mark_off};
use crate::error::{Error, Result};

/// The lines of a trace, an object each with `prompt_tokens` and `output_tokens`: good ones and bad ones.
#[derive(Debug)]
pub(super) struct Trace {
    file: String,
    /// By number, from 1.
    lines: Vec<(usize, Shape)>,
    bad: Vec<(usize, LineError)>,
}

impl Trace {
    /// Reads all lines; empty ones are passed over. Bad ones among good ones wait for what the model says of the others:
    /// one list has them all.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let fail = |source: io::Error| Error::Read { path: path.to_owned(), source };
        if path.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        let mut trace = Self { file: path.display().to_string(), lines: Vec::new(), bad: Vec::new() };
        for (number, line) in (1..).zip(BufReader::new(File::open(path).map_err(fail)?).lines()) {
            trace.add(number, &line.map_err(fail)?)?;
        }
        match (trace.lines.is_empty(), trace.bad.is_empty()) {
            (true, true) => Err(BenchError::EmptyTrace { file: trace.file }.into()),
            (true, false) => Err(trace.refused().into()),
            _ => Ok(trace),
        }
    }

    /// The lengths of all lines, if all are good and none is longer than the model takes.
    pub(super) fn checked(mut self, max_model_len: usize) -> Result<Vec<Shape>, InputError> {
        let too_long = self.lines.iter().filter(|(_, shape)| shape.num_tokens() > max_model_len);
        self.bad.extend(too_long.map(|&(number, shape)| {
            let Shape { input_len, output_len } = shape;
            (number, LineError::TooLong { input_len, output_len, max_model_len })
        }));
        match self.bad.is_empty() {
            true => Ok(self.lines.into_iter().map(|(_, shape)| shape).collect()),
            false => Err(self.refused()),
        }
    }

    fn add(&mut self, number: usize, line: &str) -> Result<(), BenchError> {
        let line = if number == 1 { byte_order_mark_off(line) } else { line };
        if line.trim().is_empty() {
            return Ok(());
        }
        match parse(line) {
            Ok(shape) => self.lines.push((number, shape)),
            Err(error) => self.bad.push((number, error)),
        }
        match self.lines.len().max(self.bad.len()) <= MAX_REQUESTS {
            true => Ok(()),
            false => Err(BenchError::TooManyRequests { file: self.file.clone() }),
        }
    }

    fn refused(mut self) -> InputError {
        self.bad.sort_by_key(|(number, _)| *number);
        InputError { file: self.file, lines: self.bad }
    }
}

fn parse(line: &str) -> Result<Shape, LineError> {
    let fields: Map<String, Value> = serde_json::from_str(line).map_err(LineError::Json)?;
    let length = |field: &'static str| {
        let given = fields.get(field).unwrap_or(&Value::Null);
        let length = given.as_u64().and_then(|n| usize::try_from(n).ok());
        length.filter(|n| (1..=MAX_LEN).contains(n)).ok_or_else(|| LineError::Length {
            field,
            given: if given.is_null() { "missing".to_owned() } else { given.to_string() },
            max: MAX_LEN,
        })
    };
    Ok(Shape { input_len: length("prompt_tokens")?, output_len: length("output_tokens")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Trace> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        std::fs::write(&path, text).unwrap();
        Trace::read(&path)
    }

    #[test]
    fn lengths_are_read_and_other_fields_passed_over() {
        let trace = read(b"{\"id\": 1, \"prompt_tokens\": 5, \"output_tokens\": 2}\n\n").unwrap();
        assert_eq!(trace.checked(7).unwrap(), [Shape { input_len: 5, output_len: 2 }]);
    }

    #[test]
    fn all_bad_lines_are_in_one_list_each_with_one_place() {
        let lines = [
            r#"{"prompt_tokens": 5, "output_tokens": 2}"#,
            r#"{"prompt_tokens": 5"#,
            "",
            "[1]",
            r#"{"prompt_tokens": 5}"#,
            r#"{"prompt_tokens": 99999999999, "output_tokens": 2}"#,
            r#"{"prompt_tokens": 0, "output_tokens": 2}"#,
            r#"{"prompt_tokens": "x", "output_tokens": 2}"#,
            r#"{"prompt_tokens": 6, "output_tokens": 2}"#,
        ];
        let error = read(lines.join("\n").as_bytes()).unwrap().checked(7).unwrap_err();
        let numbers: Vec<_> = error.lines.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [2, 4, 5, 6, 7, 8, 9]);
        let text = error.to_string();
        for part in [
            "7 bad line(s)",
            "line 2: not a JSON object: it ends too early (column 19)",
            "line 4: not a JSON object\n",
            "line 5: output_tokens is missing",
            "line 6: prompt_tokens is 99999999999: expected a whole number from 1 to 16777216",
            "line 7: prompt_tokens is 0",
            "line 8: prompt_tokens is \"x\"",
            "line 9: prompt_tokens 6 and output_tokens 2 are 8 tokens together: expected at most max_model_len = 7",
        ] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(!text.contains("line 1"), "{text}");
    }

    #[test]
    fn what_holds_no_request_is_refused() {
        for text in [&b""[..], b"\n\n", b"{}", b"GGUF\xff\n"] {
            let error = read(text).unwrap_err();
            assert!(error.is_usage(), "{error}");
        }
    }
}
