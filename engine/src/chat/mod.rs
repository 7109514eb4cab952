//! What a chat model's text means: its reasoning, its answer, and the tools that it calls.
//!
//! Pure functions of text, one state machine for each output, which knows nothing of HTTP. A machine reads its text
//! character by character, so that it cannot matter in which pieces the text comes.
//!
//! ```
//! use quire_engine::chat::{ChatDelta, ChatParser, ChatParserOptions, ToolFormat, ToolParsing};
//!
//! let tools = ToolParsing::Auto { format: ToolFormat::Hermes, names: vec!["add".to_owned()] };
//! let mut parser = ChatParser::new(ChatParserOptions { tools, ..ChatParserOptions::default() });
//!
//! let mut deltas = parser.push("Well.\n<tool_call>\n{\"name\": \"add\", \"argum");
//! deltas.extend(parser.push("ents\": {\"a\": 1}}\n</tool_call>"));
//! deltas.extend(parser.finish());
//!
//! assert_eq!(deltas[0], ChatDelta::Content("Well.".to_owned()));
//! assert!(matches!(&deltas[1], ChatDelta::ToolCall { index: 0, name, .. } if name == "add"));
//! assert_eq!(deltas[2], ChatDelta::Arguments { index: 0, part: "{\"a\": 1}".to_owned() });
//! ```

mod answer_tokens;
mod call_id;
mod delta;
mod hermes;
mod json_call;
mod json_list;
mod json_value;
mod llama3_json;
mod marker;
mod mistral;
mod parser;
mod python_literal;
mod pythonic;
mod reasoning;
mod sink;
mod tool;
mod tool_choice;
mod tool_format;

pub use answer_tokens::AnswerTokens;
pub use delta::{ChatDelta, ChatOutput, ToolCall};
pub use parser::{ChatParser, ChatParserOptions, ToolParsing};
pub use reasoning::{ReasoningFormat, ReasoningPlace};
pub use tool::{Tool, ToolError};
pub use tool_choice::ToolChoice;
pub use tool_format::ToolFormat;
