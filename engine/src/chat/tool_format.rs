//! The ways in which models write calls.

use std::fmt;
use std::sync::Arc;

use super::call_id::CallIdForm;
use super::hermes::Hermes;
use super::json_call::CallRules;
use super::json_list::JsonList;
use super::llama3_json::Llama3Json;
use super::mistral::Mistral;
use super::pythonic::Pythonic;
use super::sink::Sink;

/// How a family of models writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5, Qwen 3.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` that an answer begins with: Llama 3.1 to 3.3.
    Llama3Json,
    /// `[TOOL_CALLS]` with a list, or with a name and its arguments.
    Mistral,
    /// `[name(key=value), ...]` that an answer begins with: Llama 3.2 and 4.
    Pythonic,
}

impl ToolFormat {
    /// The names it has on a command line.
    pub const NAMES: [(&str, Self); 4] = [
        ("hermes", Self::Hermes),
        ("llama3_json", Self::Llama3Json),
        ("mistral", Self::Mistral),
        ("pythonic", Self::Pythonic),
    ];

    /// The format of that name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// How the names of its calls look.
    pub(super) fn id_form(self) -> CallIdForm {
        if self == Self::Mistral { CallIdForm::Nine } else { CallIdForm::Long }
    }

    /// Whether its marks are special tokens, so that text without those does not show them: `skip_special_tokens` must be
    /// false.
    pub fn needs_special_tokens(self) -> bool {
        self == Self::Mistral
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, format)| format == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// The machine that reads an answer.
#[derive(Debug)]
pub(super) enum Machine {
    /// All is content.
    Content,
    Hermes(Hermes),
    Llama3Json(Llama3Json),
    Mistral(Mistral),
    Pythonic(Pythonic),
    /// A list of calls, as a grammar for required calls has it.
    List(JsonList),
    /// The arguments of one call, as a grammar for a named tool has them. The name, until the call has begun.
    Arguments(Option<String>),
}

impl Machine {
    pub(super) fn of(format: ToolFormat, names: Vec<String>) -> Self {
        let names: Option<Arc<[String]>> = (!names.is_empty()).then(|| names.into());
        let rules = CallRules { names, may_lack_arguments: false };
        match format {
            ToolFormat::Hermes => Self::Hermes(Hermes::new()),
            ToolFormat::Llama3Json => Self::Llama3Json(Llama3Json::new(rules)),
            ToolFormat::Mistral => Self::Mistral(Mistral::new()),
            ToolFormat::Pythonic => Self::Pythonic(Pythonic::new(rules)),
        }
    }

    pub(super) fn required() -> Self {
        Self::List(JsonList::alone(CallRules::default()))
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) {
        match self {
            Self::Content => sink.plain_content(c.encode_utf8(&mut [0; 4])),
            Self::Hermes(machine) => machine.take(c, sink),
            Self::Llama3Json(machine) => machine.take(c, sink),
            Self::Mistral(machine) => machine.take(c, sink),
            Self::Pythonic(machine) => machine.take(c, sink),
            Self::List(machine) => machine.take(c, sink),
            Self::Arguments(name) => {
                if let Some(name) = name.take() {
                    sink.begin_call(name);
                }
                sink.arguments(c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        match self {
            Self::Content | Self::Arguments(_) => {}
            Self::Hermes(machine) => machine.finish(sink),
            Self::Llama3Json(machine) => machine.finish(sink),
            Self::Mistral(machine) => machine.finish(sink),
            Self::Pythonic(machine) => machine.finish(sink),
            Self::List(machine) => machine.finish(sink),
        }
        sink.finish();
    }
}
