//! Messages of the model, as the wire has them.

use quire_engine::FinishReason;
use quire_engine::chat::{ChatDelta, ChatOutput, ToolCall};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// A whole answer.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    role: String,
    content: Option<String>,
    /// The name that vLLM 0.7 has for it, and the one of today.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "calls")]
    tool_calls: Vec<ToolCall>,
}

impl Message {
    /// `echo` is what the answer begins with though the client said it.
    pub(crate) fn new(role: &str, echo: &str, output: ChatOutput) -> Self {
        let ChatOutput { reasoning, content, tool_calls } = output;
        let has_other = reasoning.is_some() || !tool_calls.is_empty();
        let content = match content {
            None if has_other && echo.is_empty() => None,
            content => Some(format!("{echo}{}", content.unwrap_or_default())),
        };
        Self { role: role.to_owned(), content, reasoning_content: reasoning.clone(), reasoning, tool_calls }
    }
}

fn calls<S: Serializer>(calls: &[ToolCall], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(calls.iter().map(|ToolCall { id, name, arguments }| {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }))
}

/// A piece of an answer. Keys that say nothing are left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct MessageDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

impl<'a> MessageDelta<'a> {
    /// The first piece of an answer.
    pub(crate) fn first(role: &'a str, echo: String) -> Self {
        Self { role: Some(role), ..Self::content(echo) }
    }

    pub(crate) fn content(text: String) -> Self {
        Self { content: Some(text), ..Self::default() }
    }
}

impl From<ChatDelta> for MessageDelta<'_> {
    /// A call is told once with its name, then its arguments part by part.
    fn from(delta: ChatDelta) -> Self {
        match delta {
            ChatDelta::Content(text) => Self::content(text),
            ChatDelta::Reasoning(text) => {
                Self { reasoning_content: Some(text.clone()), reasoning: Some(text), ..Self::default() }
            }
            ChatDelta::ToolCall { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                Self { tool_calls: vec![call], ..Self::default() }
            }
            ChatDelta::Arguments { index, part } => {
                let call = json!({"index": index, "function": {"arguments": part}});
                Self { tool_calls: vec![call], ..Self::default() }
            }
        }
    }
}

/// Why a choice ended. An output that the model ended itself, with calls, ended to call tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChatFinish {
    ToolCalls,
    #[serde(untagged)]
    Other(FinishReason),
}

impl ChatFinish {
    pub(crate) fn of(reason: FinishReason, has_called: bool) -> Self {
        if has_called && reason == FinishReason::Stop { Self::ToolCalls } else { Self::Other(reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_calls_alone_has_no_content() {
        let call = ToolCall { id: "1".into(), name: "f".into(), arguments: "{}".into() };
        let output = ChatOutput { tool_calls: vec![call], ..ChatOutput::default() };
        let message = serde_json::to_value(Message::new("assistant", "", output)).expect("plain");
        let calls = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
        assert_eq!(message, json!({"role": "assistant", "content": null, "tool_calls": calls}));
        let plain =
            serde_json::to_value(Message::new("assistant", "a", ChatOutput::default())).expect("plain");
        assert_eq!(plain, json!({"role": "assistant", "content": "a"}));
    }

    #[test]
    fn an_end_has_one_name() {
        for (reason, has_called, expected) in [
            (FinishReason::Stop, true, "tool_calls"),
            (FinishReason::Stop, false, "stop"),
            (FinishReason::Length, true, "length"),
        ] {
            assert_eq!(serde_json::to_value(ChatFinish::of(reason, has_called)).expect("a name"), expected);
        }
    }
}
