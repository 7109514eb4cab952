//! Requests from a file, one JSON object a line.

use std::fmt;
use std::io::BufRead;

use quire_engine::{ChatMessage, ChatPrompt, ParamError, ParamLimits, Prompt, Request, SamplingParams};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};

/// A request as its line has it: parameters that it does not give are filled in later.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputLine {
    /// Its number in the file, from 1.
    pub(crate) number: usize,
    prompt: Prompt,
    params: Map<String, Value>,
    tenant: Option<String>,
    priority: i32,
}

impl InputLine {
    /// The request, with `defaults` for parameters that the line does not give.
    pub(crate) fn request(&self, defaults: &SamplingParams) -> Result<Request, ParamError> {
        let mut request = Request::new(self.prompt.clone(), defaults.with_json(&self.params)?);
        request.tenant.clone_from(&self.tenant);
        request.priority = self.priority;
        Ok(request)
    }
}

/// The lines of a file: those that can become requests, and those that cannot.
#[derive(Debug, Default)]
pub(crate) struct Input {
    file: String,
    pub(crate) lines: Vec<InputLine>,
    bad: Vec<(usize, LineError)>,
}

impl Input {
    /// Whether the file holds nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.bad.is_empty()
    }

    /// Whether no line is left that the model could be asked about.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.lines.is_empty() && !self.bad.is_empty()
    }

    /// Adds a line that turned out to be bad.
    pub(crate) fn refuse(&mut self, number: usize, error: LineError) {
        self.bad.push((number, error));
    }

    /// Nothing, unless lines are bad.
    pub(crate) fn checked(self) -> Result<(), InputError> {
        if self.bad.is_empty() { Ok(()) } else { Err(self.refused()) }
    }

    /// All bad lines, in the order of the file.
    pub(crate) fn refused(mut self) -> InputError {
        self.bad.sort_by_key(|(number, _)| *number);
        InputError { file: self.file, lines: self.bad }
    }
}

/// Lines that are no requests; nothing was run.
#[derive(Debug, thiserror::Error)]
pub struct InputError {
    /// The file.
    pub file: String,
    /// All bad lines, by number.
    pub lines: Vec<(usize, LineError)>,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bad line(s), nothing was run", self.file, self.lines.len())?;
        self.lines.iter().try_for_each(|(number, error)| write!(f, "\n  line {number}: {error}"))
    }
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Not JSON.
    #[error("not a JSON object{}", place(.0))]
    Json(serde_json::Error),
    /// Bytes that are no text.
    #[error("cannot be read: {0}")]
    Read(std::io::Error),
    /// Nothing to continue, or several things.
    #[error("expected one of prompt, prompt_token_ids and messages, given: {}", list(given))]
    Prompt {
        /// The fields that the line has of these.
        given: Vec<&'static str>,
    },
    /// A field of another type.
    #[error("{field}: {source}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What was expected.
        source: serde_json::Error,
    },
    /// A length that is no number of tokens.
    #[error("{field} is {given}: expected a whole number from 1 to {max}")]
    Length {
        /// Its name.
        field: &'static str,
        /// Its value.
        given: String,
        /// The most that any model could take.
        max: usize,
    },
    /// Lengths that no sequence of the model may have.
    #[error(
        "prompt_tokens {input_len} and output_tokens {output_len} are {} tokens together: expected at most max_model_len = {max_model_len}",
        input_len + output_len
    )]
    TooLong {
        /// Tokens of the prompt.
        input_len: usize,
        /// Tokens of the output.
        output_len: usize,
        /// The limit in force.
        max_model_len: usize,
    },
    /// A field that is neither a part of a request nor a parameter, or a parameter that is refused.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The engine refuses the request.
    #[error(transparent)]
    Request(#[from] quire_engine::Error),
}

/// What some editors put at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

const PROMPT_FIELDS: [&str; 3] = ["prompt", "prompt_token_ids", "messages"];

/// Reads all lines; empty ones are passed over. `defaults` are those of the command line, `limits` those that are
/// known without the model.
pub(crate) fn read(
    file: &str,
    reader: impl BufRead,
    defaults: &SamplingParams,
    limits: &ParamLimits,
) -> Input {
    let mut input = Input { file: file.to_owned(), ..Input::default() };
    for (number, line) in (1..).zip(reader.lines()) {
        match line {
            Ok(line) => {
                let line = if number == 1 { byte_order_mark_off(&line) } else { &line };
                if !line.trim().is_empty() {
                    match parse(number, line, defaults, limits) {
                        Ok(line) => input.lines.push(line),
                        Err(error) => input.refuse(number, error),
                    }
                }
            }
            // Bytes that are no text were read up to the end of their line; any other error is the end.
            Err(error) => {
                let is_over = error.kind() != std::io::ErrorKind::InvalidData;
                input.refuse(number, LineError::Read(error));
                if is_over {
                    break;
                }
            }
        }
    }
    input
}

/// The body of a fuzz target: reads `data` as an input file. It must return, whatever the bytes are.
pub fn fuzz_request(data: &[u8]) {
    let _ = read("fuzz", data, &SamplingParams::default(), &permissive_limits(20));
}

/// Limits of a model that allows all that any model could: what exceeds these is wrong whatever the model.
/// `max_logprobs` is a setting and known before.
pub(crate) fn permissive_limits(max_logprobs: usize) -> ParamLimits {
    ParamLimits { vocab_size: usize::MAX, max_logprobs, ..ParamLimits::default() }
}

/// A first line without what some editors put before it.
pub(crate) fn byte_order_mark_off(line: &str) -> &str {
    line.trim_start_matches(BYTE_ORDER_MARK)
}

fn parse(
    number: usize,
    line: &str,
    defaults: &SamplingParams,
    limits: &ParamLimits,
) -> Result<InputLine, LineError> {
    let mut fields: Map<String, Value> = serde_json::from_str(line).map_err(LineError::Json)?;
    let prompt = take_prompt(&mut fields)?;
    let tenant = take(&mut fields, "tenant")?;
    let priority = take(&mut fields, "priority")?.unwrap_or_default();
    defaults.with_json(&fields)?.check(limits)?;
    Ok(InputLine { number, prompt, params: fields, tenant, priority })
}

fn take_prompt(fields: &mut Map<String, Value>) -> Result<Prompt, LineError> {
    let is_given = |field: &&str| fields.get(*field).is_some_and(|value| !value.is_null());
    let given: Vec<_> = PROMPT_FIELDS.into_iter().filter(is_given).collect();
    if given.len() != 1 {
        return Err(LineError::Prompt { given });
    }
    let text = take::<String>(fields, "prompt")?.map(Prompt::Text);
    let ids = take::<Vec<u32>>(fields, "prompt_token_ids")?.map(Prompt::TokenIds);
    let chat =
        take::<Vec<ChatMessage>>(fields, "messages")?.map(|messages| Prompt::Chat(ChatPrompt::new(messages)));
    text.or(ids).or(chat).ok_or(LineError::Prompt { given })
}

/// Takes a field out; `null` counts as absent.
fn take<T: DeserializeOwned>(
    fields: &mut Map<String, Value>,
    field: &'static str,
) -> Result<Option<T>, LineError> {
    // Not `swap_remove`: errors name the first bad field of the line.
    let value = fields.shift_remove(field).unwrap_or_default();
    serde_json::from_value(value).map_err(|source| LineError::Field { field, source })
}

/// What is wrong with a line that is no object, and at which column: the number of the line is told beside it.
fn place(error: &serde_json::Error) -> String {
    let (what, column) = (error.to_string(), error.column());
    match error.classify() {
        // Some other kind of value.
        Category::Data => String::new(),
        Category::Eof => format!(": it ends too early (column {column})"),
        Category::Syntax | Category::Io => {
            let what = what.split(" at line ").next().unwrap_or_default();
            format!(": {what} (column {column})")
        }
    }
}

fn list(fields: &[&str]) -> String {
    if fields.is_empty() { "none".to_owned() } else { fields.join(", ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_bytes(bytes: &[u8]) -> Result<Vec<InputLine>, InputError> {
        let mut input = read("x.jsonl", bytes, &SamplingParams::default(), &permissive_limits(20));
        let lines = std::mem::take(&mut input.lines);
        input.checked().map(|()| lines)
    }

    fn check(line: &str, expected: &str) {
        let error = read_bytes(format!("\n{line}\n").as_bytes()).expect_err(line).to_string();
        assert!(error.contains("line 2: ") && error.contains(expected), "{line} gave {error}");
    }

    #[test]
    fn the_three_kinds_of_prompt_are_read() {
        let lines = br#"{"prompt": "a", "max_tokens": 3, "seed": null}
            {"prompt_token_ids": [1, 2], "priority": -1, "tenant": "t"}

            {"messages": [{"role": "user", "content": "hi"}]}"#;
        let lines = read_bytes(lines).expect("all are good");
        assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 2, 4]);
        let requests: Vec<_> =
            lines.iter().map(|line| line.request(&SamplingParams::default()).expect("checked")).collect();
        assert_eq!((&requests[0].prompt, requests[0].params.max_tokens), (&Prompt::from("a"), Some(3)));
        assert_eq!((&requests[1].prompt, requests[1].priority), (&Prompt::TokenIds(vec![1, 2]), -1));
        assert_eq!(requests[1].tenant.as_deref(), Some("t"));
        assert_eq!(requests[2].prompt, Prompt::from(vec![ChatMessage::user("hi")]));
    }

    #[test]
    fn a_bad_line_is_told_by_number_and_field() {
        check("[1]", "not a JSON object");
        check(r#"{"prompt": "a""#, "not a JSON object");
        check(r#"{"max_tokens": 1}"#, "given: none");
        check(r#"{"prompt": "a", "messages": []}"#, "given: prompt, messages");
        check(r#"{"prompt": 5}"#, "prompt: invalid type");
        check(r#"{"prompt_token_ids": [-1]}"#, "prompt_token_ids: invalid value");
        check(r#"{"prompt": "a", "max_token": 1}"#, "max_token is not a sampling parameter");
        check(r#"{"prompt": "a", "top_k": "x"}"#, "top_k");
        check(r#"{"prompt": "a", "temperature": -1}"#, "temperature is -1: expected");
        check(r#"{"prompt": "a", "logprobs": 21}"#, "logprobs is 21: expected 0 to max_logprobs = 20");
        check(r#"{"prompt": "a", "priority": 1.5}"#, "priority: invalid type");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        assert_eq!(read_bytes("\u{feff}{\"prompt\": \"a\"}\n".as_bytes()).expect("good").len(), 1);
    }

    #[test]
    fn lines_after_one_that_is_no_text_are_read() {
        let error = read_bytes(b"\xff\n{\"prompt\": \"a\"}\n{}\n").expect_err("two are bad");
        assert_eq!(error.lines.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn all_bad_lines_are_listed() {
        let error = read_bytes(&b"1\n{\"prompt\": \"a\"}\n{}\n"[..]).expect_err("two are bad");
        assert_eq!(error.lines.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3]);
        assert!(
            error.to_string().starts_with("x.jsonl: 2 bad line(s), nothing was run\n  line 1: "),
            "{error}"
        );
    }

    proptest! {
        /// Whatever a file holds, each of its lines is a request, empty, or listed as bad.
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in "[\\[\\]{}\",:0-9a-z_\n]{0,80}") {
            for input in [bytes.as_slice(), json.as_bytes(), format!("{{\"prompt\":\"a\",{json}}}").as_bytes()] {
                fuzz_request(input);
            }
        }
    }
}
