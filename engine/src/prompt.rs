//! What a model is asked to continue.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The beginning that a model continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Plain text. The tokenizer puts the model's first token in front, where the model has one.
    Text(String),
    /// Plain text, and nothing in front of it.
    BareText(String),
    /// Tokens, used as they are.
    TokenIds(Vec<u32>),
    /// A conversation, written out by the model's chat template.
    Chat(ChatPrompt),
}

impl Prompt {
    /// Bytes of its text, of all that a template sees; none where it is tokens already.
    pub(crate) fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::BareText(text) => text.len(),
            Self::TokenIds(_) => 0,
            Self::Chat(chat) => {
                let of_messages: usize = chat.messages.iter().map(ChatMessage::num_bytes).sum();
                of_messages + chat.template_variables.values().map(value_bytes).sum::<usize>()
            }
        }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(token_ids: Vec<u32>) -> Self {
        Self::TokenIds(token_ids)
    }
}

impl From<Vec<ChatMessage>> for Prompt {
    fn from(messages: Vec<ChatMessage>) -> Self {
        Self::Chat(ChatPrompt::new(messages))
    }
}

/// A conversation, and how its template is to be filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// What was said, the oldest first.
    pub messages: Vec<ChatMessage>,
    /// Whether the text ends with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open, so that the model goes on with it.
    pub continue_final_message: bool,
    /// More variables for the template, such as `tools` or `documents`.
    pub template_variables: Map<String, Value>,
    /// A template in place of the model's.
    pub chat_template: Option<String>,
    /// Whether the tokenizer frames what the template has written as it frames plain text. Templates write that frame
    /// themselves, as a rule; where one leaves out the first token of the model, it is added in any case.
    pub add_special_tokens: bool,
}

impl ChatPrompt {
    /// A conversation to be answered by the assistant.
    pub fn new(messages: Vec<ChatMessage>) -> Self {
        Self {
            messages,
            add_generation_prompt: true,
            continue_final_message: false,
            template_variables: Map::new(),
            chat_template: None,
            add_special_tokens: false,
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what the template knows besides.
    pub role: String,
    /// What was said. An assistant's message that only calls tools has none.
    #[serde(default)]
    pub content: Option<MessageContent>,
    /// Further fields, such as `name`, `tool_calls` or `tool_call_id`, handed to the template.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl ChatMessage {
    /// Bytes of what was said, and of what stands beside it.
    fn num_bytes(&self) -> usize {
        let of_fields = |fields: &Map<String, Value>| fields.values().map(value_bytes).sum::<usize>();
        let of_content = match &self.content {
            None => 0,
            Some(MessageContent::Text(text)) => text.len(),
            Some(MessageContent::Parts(parts)) => parts.iter().map(|part| of_fields(&part.fields) + 1).sum(),
        };
        self.role.len() + of_content + of_fields(&self.fields)
    }

    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let content = Some(MessageContent::Text(content.into()));
        Self { role: role.into(), content, fields: Map::new() }
    }

    /// What the model is told of its part.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What the user said.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// About as many bytes as it has as a text.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(values) => 2 + values.iter().map(value_bytes).sum::<usize>(),
        Value::Object(fields) => {
            2 + fields.iter().map(|(name, value)| name.len() + 4 + value_bytes(value)).sum::<usize>()
        }
    }
}

/// The content of a message: text, or parts of several kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MessageContent {
    /// Text.
    Text(String),
    /// Parts, in order. Parts of text are joined by line breaks; other kinds are not built yet.
    Parts(Vec<ContentPart>),
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContentPart {
    /// Its kind: `text`, `image_url`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// Its fields; `text` for a part of text.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl fmt::Display for MessageContent {
    /// The text of the parts, for messages to people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| part.fields.get("text")?.as_str())
                .try_for_each(|text| f.write_str(text)),
        }
    }
}
