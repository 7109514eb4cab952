//! Conversations as requests have them.

use quire_engine::{ChatMessage, ChatPrompt};
use serde_json::{Map, Value};

use super::body::{Body, shown};
use super::error::ApiError;
use super::tools::AskedTools;

/// Takes a conversation out of a body, and how it is to be written out: all fields that a prompt is made of, for every route that
/// has one. What is said of tools comes with it.
pub(crate) fn take(body: &mut Body) -> Result<(ChatPrompt, AskedTools), ApiError> {
    let mut prompt = take_messages(body)?;
    let tools = AskedTools::take(body, &mut prompt)?;
    Ok((prompt, tools))
}

fn take_messages(body: &mut Body) -> Result<ChatPrompt, ApiError> {
    let Some(messages) = body.take_value("messages") else {
        return Err(ApiError::bad_field("messages", "messages is missing: expected a list of messages"));
    };
    let Value::Array(messages) = messages else {
        return Err(ApiError::bad_field("messages", "messages: expected a list of messages"));
    };
    let messages = messages.into_iter().enumerate().map(message).collect::<Result<_, _>>()?;
    let mut template_variables = template_variables(body)?;
    let mut take_switch = |name: &str| -> Result<Option<bool>, ApiError> {
        let given = body.take_bool(name)?;
        Ok(take_variable(&mut template_variables, name)?.or(given))
    };
    let continue_final_message = take_switch("continue_final_message")?.unwrap_or(false);
    let given = take_switch("add_generation_prompt")?;
    if given == Some(true) && continue_final_message {
        let message = "add_generation_prompt and continue_final_message exclude each other";
        return Err(ApiError::bad_field("add_generation_prompt", message));
    }
    Ok(ChatPrompt {
        messages,
        add_generation_prompt: given.unwrap_or(!continue_final_message),
        continue_final_message,
        template_variables,
        chat_template: body.take_text("chat_template")?,
        add_special_tokens: body.take_bool("add_special_tokens")?.unwrap_or(false),
    })
}

/// A switch among the variables of the template: it goes before the field of its name, as in vLLM.
fn take_variable(variables: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    match variables.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(given)) => Ok(Some(given)),
        Some(given) => {
            let message = format!("chat_template_kwargs.{name} is {}: expected true or false", shown(&given));
            Err(ApiError::bad_field("chat_template_kwargs", message))
        }
    }
}

/// What templates see beside the messages.
fn template_variables(body: &mut Body) -> Result<Map<String, Value>, ApiError> {
    let mut variables = match body.take_value("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(_) => {
            return Err(ApiError::bad_field(
                "chat_template_kwargs",
                "chat_template_kwargs: expected an object",
            ));
        }
    };
    match body.take_value("documents") {
        None => {}
        Some(documents @ Value::Array(_)) => _ = variables.insert("documents".to_owned(), documents),
        Some(_) => return Err(ApiError::bad_field("documents", "documents: expected a list of objects")),
    }
    Ok(variables)
}

fn message((index, value): (usize, Value)) -> Result<ChatMessage, ApiError> {
    let refuse = |why: &str| ApiError::bad_field("messages", format!("messages[{index}]: {why}"));
    let fields = value.as_object().ok_or_else(|| refuse("expected an object"))?;
    match fields.get("role") {
        Some(Value::String(_)) => {}
        Some(_) => return Err(refuse("role: expected a string")),
        None => return Err(refuse("role is missing")),
    }
    let expected = "content: expected a string, or a list of parts, each with a type";
    let mut message: ChatMessage = serde_json::from_value(value).map_err(|_| refuse(expected))?;
    read_arguments(&mut message.fields);
    Ok(message)
}

/// Clients send the arguments of a call as JSON in a string, templates expect the object.
fn read_arguments(fields: &mut Map<String, Value>) {
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Some(read) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *arguments = read;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conversation(json: Value) -> Result<ChatPrompt, ApiError> {
        take(&mut Body::parse(json.to_string().as_bytes()).expect("an object")).map(|(prompt, _)| prompt)
    }

    #[test]
    fn messages_and_template_variables_are_read() {
        let prompt = conversation(json!({
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "b"}]},
            ],
            "chat_template_kwargs": {"enable_thinking": false},
        }))
        .expect("a conversation");
        assert!(prompt.add_generation_prompt && !prompt.continue_final_message);
        assert_eq!(prompt.messages[1].fields["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(prompt.template_variables["enable_thinking"], json!(false));
    }

    #[test]
    fn a_message_that_is_none_is_named() {
        for (messages, said) in [
            (json!(["a"]), "messages[0]: expected an object"),
            (json!([{"content": "a"}]), "messages[0]: role is missing"),
            (json!([{"role": 1}]), "messages[0]: role: expected a string"),
            (json!([{"role": "user", "content": 1}]), "messages[0]: content: expected a string"),
            (json!("a"), "messages: expected a list"),
            (Value::Null, "messages is missing"),
        ] {
            let error = conversation(json!({ "messages": messages })).expect_err(said);
            assert!(error.message.starts_with(said), "{}", error.message);
        }
    }

    #[test]
    fn a_final_message_is_continued_without_a_new_turn() {
        let messages = json!([{"role": "user", "content": "a"}]);
        let prompt =
            conversation(json!({"messages": messages, "continue_final_message": true})).expect("one wish");
        assert!(!prompt.add_generation_prompt);
        let both =
            json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": true});
        assert_eq!(
            conversation(both).expect_err("two wishes").param.as_deref(),
            Some("add_generation_prompt")
        );
    }

    #[test]
    fn switches_among_the_variables_go_before_the_fields() {
        let messages = json!([{"role": "user", "content": "a"}]);
        let of = |kwargs: Value, field: Value| {
            let body =
                json!({"messages": messages, "chat_template_kwargs": kwargs, "add_generation_prompt": field});
            conversation(body)
        };
        for (kwargs, field, expected) in [
            (json!({"add_generation_prompt": false}), Value::Null, (false, false)),
            (json!({"add_generation_prompt": true}), json!(false), (true, false)),
            (json!({"add_generation_prompt": null}), json!(false), (false, false)),
            (json!({"continue_final_message": true}), Value::Null, (false, true)),
        ] {
            let prompt = of(kwargs.clone(), field).expect("a conversation");
            assert_eq!((prompt.add_generation_prompt, prompt.continue_final_message), expected, "{kwargs}");
            assert!(prompt.template_variables.is_empty());
        }
        let error = of(json!({"add_generation_prompt": "no"}), Value::Null).expect_err("no switch");
        assert_eq!(error.param.as_deref(), Some("chat_template_kwargs"));
    }
}
