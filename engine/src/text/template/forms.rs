//! Which forms of a message a template can read, found out by trying.

use serde_json::json;

use crate::prompt::{ChatMessage, ChatPrompt};

/// What a template can read. Clients send all of it; a template is given what it can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forms {
    /// Content as a text.
    pub(super) takes_text: bool,
    /// Content as a list of parts.
    pub(super) takes_parts: bool,
    /// No content, in a message that calls tools.
    pub(super) takes_none: bool,
    /// The arguments of a call as an object; otherwise as text.
    pub(super) takes_objects: bool,
}

const MARK: &str = "quireMARK";
const KEY: &str = "quireKEY";

impl Forms {
    /// All of them, as they come.
    pub(super) const ALL: Self =
        Self { takes_text: true, takes_parts: true, takes_none: true, takes_objects: true };

    /// Tries `render` on small conversations, each in forms of its own.
    pub(super) fn find(render: impl Fn(&ChatPrompt) -> Option<String>) -> Self {
        let user = |content: serde_json::Value| {
            let text = render(&prompt(json!([{"role": "user", "content": content}]), json!([])))?;
            Some(text).filter(|text| text.contains(MARK))
        };
        let takes_parts = user(json!([{"type": "text", "text": MARK}]))
            .is_some_and(|text| !["'type'", "\"type\""].iter().any(|key| text.contains(key)));
        let takes_text = !takes_parts || user(json!(MARK)).is_some();
        let call = |content: serde_json::Value, arguments: serde_json::Value| {
            Some(render(&calling(content, arguments))?).filter(|text| text.contains(KEY))
        };
        let (object, text) = (json!({ KEY: MARK }), json!(format!("{{\"{KEY}\": \"{MARK}\"}}")));
        let takes_objects =
            call(json!(""), object.clone()).is_some() || call(json!(""), text.clone()).is_none();
        let arguments = if takes_objects { object } else { text };
        let takes_none = takes_none(
            render(&calling(json!(null), arguments.clone())),
            render(&calling(json!(""), arguments)),
        );
        Self { takes_text, takes_parts, takes_none, takes_objects }
    }
}

/// By what became of a call without content, and of one with an empty text. A template that knows no tools writes no
/// call in either case, and may still fail where there is no content.
fn takes_none(of_none: Option<String>, of_empty: Option<String>) -> bool {
    let Some(of_none) = of_none else { return of_empty.is_none() };
    let loses_call = !of_none.contains(KEY) && of_empty.is_some_and(|of_empty| of_empty.contains(KEY));
    !of_none.contains("None") && !loses_call
}

/// A conversation in which a tool is called.
fn calling(content: serde_json::Value, arguments: serde_json::Value) -> ChatPrompt {
    let function =
        json!({"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}});
    let call =
        json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}});
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "b"},
    ]);
    prompt(messages, json!([{"type": "function", "function": function}]))
}

fn prompt(messages: serde_json::Value, tools: serde_json::Value) -> ChatPrompt {
    let messages: Vec<ChatMessage> = serde_json::from_value(messages).expect("they are messages");
    let mut prompt = ChatPrompt::new(messages);
    if tools.as_array().is_some_and(|tools| !tools.is_empty()) {
        prompt.template_variables.insert("tools".to_owned(), tools);
    }
    prompt
}
