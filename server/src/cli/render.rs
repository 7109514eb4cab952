//! `quire render`.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use quire_engine::{ChatMessage, ChatPrompt, Prompt, RenderedPrompt};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Context;
use super::model::ModelArgs;
use super::output::{OutputFormat, write_line};
use crate::error::{Error, Result};
use crate::start;

#[derive(Args)]
#[command(group = ArgGroup::new("what").args(["prompt", "chat"]).required(true))]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A conversation: a list of messages, or an object with messages and what a chat request may give beside them: tools,
    /// documents, add_generation_prompt, continue_final_message, chat_template, chat_template_kwargs; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    chat: Option<PathBuf>,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
    /// The same as --output-format json.
    #[arg(long, conflicts_with = "output_format")]
    json: bool,
}

/// A conversation as a file has it. Other fields of a request say nothing about the prompt.
#[derive(Deserialize)]
struct Conversation {
    messages: Vec<ChatMessage>,
    tools: Option<Value>,
    documents: Option<Value>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template: Option<String>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_special_tokens: Option<bool>,
}

pub(crate) fn run(context: &Context<'_>, args: &RenderArgs) -> Result<()> {
    // What is wrong with the file is told before a model is fetched.
    let prompt = match &args.chat {
        Some(path) => Prompt::Chat(read_conversation(path)?),
        None => Prompt::Text(args.prompt.clone().unwrap_or_default()),
    };
    let (options, parts) = args.model.resolve(context, None)?;
    let renderer = start::builder(options, &parts).plan()?.renderer()?;
    let rendered = renderer.render(prompt)?;
    let mut stdout = io::stdout().lock();
    match args.output_format {
        OutputFormat::Text if !args.json => write_text(&mut stdout, &rendered).map_err(Error::Stdout),
        _ => write_line(&mut stdout, &rendered),
    }
}

/// The prompt as the model reads it, and its tokens below.
fn write_text(out: &mut impl Write, rendered: &RenderedPrompt) -> io::Result<()> {
    let ids: Vec<String> = rendered.token_ids.iter().map(u32::to_string).collect();
    writeln!(out, "{}", rendered.text.as_deref().unwrap_or_default())?;
    writeln!(out, "\n{} tokens: {}", ids.len(), ids.join(" "))
}

fn read_conversation(path: &Path) -> Result<ChatPrompt> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text).map_err(failed)?;
    } else {
        text = fs::read_to_string(path).map_err(failed)?;
    }
    parse(&text).map_err(|source| Error::Conversation { path: path.to_owned(), source })
}

fn parse(text: &str) -> Result<ChatPrompt, serde_json::Error> {
    let value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}'))?;
    let conversation: Conversation = match value {
        Value::Array(_) => return Ok(ChatPrompt::new(serde_json::from_value(value)?)),
        value => serde_json::from_value(value)?,
    };
    let continue_final_message = conversation.continue_final_message.unwrap_or(false);
    let mut template_variables = conversation.chat_template_kwargs.unwrap_or_default();
    for (name, value) in [("tools", conversation.tools), ("documents", conversation.documents)] {
        template_variables
            .extend(value.filter(|value| !value.is_null()).map(|value| (name.to_owned(), value)));
    }
    Ok(ChatPrompt {
        messages: conversation.messages,
        add_generation_prompt: conversation.add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        template_variables,
        chat_template: conversation.chat_template,
        add_special_tokens: conversation.add_special_tokens.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_lists_or_what_a_request_holds() {
        let list = parse(r#"[{"role": "user", "content": "a"}]"#).expect("a list of messages");
        assert_eq!(list, ChatPrompt::new(vec![ChatMessage::user("a")]));
        let full = r#"{"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [1], "documents": null,
            "continue_final_message": true, "chat_template": "x", "chat_template_kwargs": {"k": 2}}"#;
        let full = parse(full).expect("a request");
        assert_eq!(
            serde_json::to_value(&full.template_variables).ok(),
            Some(serde_json::json!({"k": 2, "tools": [1]}))
        );
        assert!(full.continue_final_message && !full.add_generation_prompt);
        assert_eq!(full.chat_template.as_deref(), Some("x"));
        for wrong in ["", "{}", "5", r#"[{"content": "a"}]"#, r#"{"messages": 1}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
