//! Messages as templates see them.

use minijinja::value::Value;
use serde_json::Value as Json;

use super::forms::Forms;
use crate::PromptError;
use crate::prompt::{ChatMessage, ContentPart, MessageContent};

/// Messages in the forms that a template can read.
pub(super) fn message_values(messages: &[ChatMessage], forms: Forms) -> Result<Value, PromptError> {
    let values = messages.iter().enumerate().map(|(index, message)| message_value(index, message, forms));
    Ok(Value::from(values.collect::<Result<Vec<_>, _>>()?))
}

fn message_value(index: usize, message: &ChatMessage, forms: Forms) -> Result<Value, PromptError> {
    let content = content_value(message.content.as_ref(), forms)?;
    let mut fields: Vec<(String, Value)> = Vec::with_capacity(message.fields.len() + 2);
    for (name, value) in &message.fields {
        let value = match name.as_str() {
            "tool_calls" => Value::from_serialize(tool_calls(index, value, forms)?),
            _ => Value::from_serialize(value),
        };
        fields.push((name.clone(), value));
    }
    fields.push(("role".to_owned(), Value::from(message.role.as_str())));
    fields.push(("content".to_owned(), content));
    Ok(Value::from_iter(fields))
}

fn content_value(content: Option<&MessageContent>, forms: Forms) -> Result<Value, PromptError> {
    match content {
        None if forms.takes_none => Ok(Value::from(())),
        None => Ok(Value::from("")),
        Some(MessageContent::Parts(parts)) if forms.takes_parts => {
            parts.iter().try_for_each(|part| part_text(part).map(drop))?;
            Ok(Value::from_serialize(parts))
        }
        Some(MessageContent::Text(text)) if !forms.takes_text => {
            Ok(Value::from_serialize(serde_json::json!([{"type": "text", "text": text}])))
        }
        Some(content) => Ok(Value::from(content_text(content)?)),
    }
}

/// The text of a content. Parts are joined by line breaks.
pub(super) fn content_text(content: &MessageContent) -> Result<String, PromptError> {
    match content {
        MessageContent::Text(text) => Ok(text.clone()),
        MessageContent::Parts(parts) => {
            Ok(parts.iter().map(part_text).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
    }
}

/// Types of content that OpenAI and vLLM know beside text.
const NOT_BUILT: [&str; 8] =
    ["audio_url", "file", "image_embeds", "image_pil", "image_url", "input_audio", "refusal", "video_url"];

fn part_text(part: &ContentPart) -> Result<&str, PromptError> {
    if part.kind != "text" {
        let kind = part.kind.clone();
        return Err(match NOT_BUILT.contains(&&*kind) {
            true => PromptError::ContentKind { kind },
            false => PromptError::UnknownContent { kind },
        });
    }
    part.fields.get("text").and_then(Json::as_str).ok_or(PromptError::ContentText)
}

/// The calls of a message, their arguments as objects, where clients write them as text; or as text, for a template that
/// writes them without a filter.
fn tool_calls(message_idx: usize, calls: &Json, forms: Forms) -> Result<Json, PromptError> {
    let mut calls = calls.clone();
    for (call_idx, call) in calls.as_array_mut().into_iter().flatten().enumerate() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        match arguments {
            Json::String(text) if forms.takes_objects => {
                let read = if text.trim().is_empty() {
                    Ok(serde_json::json!({}))
                } else {
                    serde_json::from_str(text)
                };
                let given = text.clone();
                *arguments = read.map_err(|_| PromptError::Arguments { message_idx, call_idx, given })?;
            }
            Json::Object(_) if !forms.takes_objects => *arguments = Json::String(arguments.to_string()),
            _ => {}
        }
    }
    Ok(calls)
}
