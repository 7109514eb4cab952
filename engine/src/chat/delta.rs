//! What a text turns out to say.

use serde::Serialize;

/// A piece of what a model says. The pieces of a kind, joined, are the whole; a call's name comes before its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatDelta {
    /// More of the model's reasoning.
    Reasoning(String),
    /// More of its answer.
    Content(String),
    /// A tool is called.
    ToolCall {
        /// The place of the call among the calls of this output.
        index: u32,
        /// The name of the call, which no other call has.
        id: String,
        /// The name of the tool.
        name: String,
    },
    /// More of the arguments of a call, which are JSON where the model has not gone wrong or been cut.
    Arguments {
        /// The place of the call.
        index: u32,
        /// The next part.
        part: String,
    },
}

/// All that an output says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChatOutput {
    /// The reasoning, if there was any.
    pub reasoning: Option<String>,
    /// The answer, if there was any.
    pub content: Option<String>,
    /// The calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// The name of the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// Its arguments: JSON where the model has not gone wrong or been cut.
    pub arguments: String,
}

impl ChatOutput {
    /// Takes a piece.
    pub fn push(&mut self, delta: ChatDelta) {
        match delta {
            ChatDelta::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            ChatDelta::Content(text) => self.content.get_or_insert_default().push_str(&text),
            ChatDelta::ToolCall { id, name, .. } => {
                self.tool_calls.push(ToolCall { id, name, arguments: String::new() });
            }
            ChatDelta::Arguments { index, part } => {
                if let Some(call) = self.tool_calls.get_mut(index as usize) {
                    call.arguments.push_str(&part);
                }
            }
        }
    }
}

impl Extend<ChatDelta> for ChatOutput {
    fn extend<T: IntoIterator<Item = ChatDelta>>(&mut self, deltas: T) {
        deltas.into_iter().for_each(|delta| self.push(delta));
    }
}
