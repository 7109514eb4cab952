//! One output, from text to what it says.

use super::call_id::{CallIdForm, CallIds};
use super::delta::{ChatDelta, ChatOutput};
use super::reasoning::{Reasoning, ReasoningFormat, ReasoningPlace};
use super::sink::Sink;
use super::tool_format::{Machine, ToolFormat};

/// What to look for in an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatParserOptions {
    /// How reasoning is set apart; none where there is none.
    pub reasoning: Option<ReasoningFormat>,
    /// What the prompt says of the reasoning: [`ReasoningPlace::after`] its end.
    pub reasoning_place: ReasoningPlace,
    /// Which calls are looked for.
    pub tools: ToolParsing,
    /// What the names of calls are made of: one for each output, drawn at random.
    pub seed: u64,
}

/// Which calls are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolParsing {
    /// None: all is content.
    #[default]
    None,
    /// Those that the model makes of its own accord.
    Auto {
        /// How the model writes them.
        format: ToolFormat,
        /// The names of the tools. Formats without marks take only these for calls; none is any name.
        names: Vec<String>,
    },
    /// A list of calls and nothing else, as [`ToolChoice::schema`](super::ToolChoice::schema) has it for required calls.
    Required {
        /// How the model would write them of its own accord: the names of calls have the form that it knows.
        format: ToolFormat,
    },
    /// The arguments of a tool and nothing else, as [`ToolChoice::schema`](super::ToolChoice::schema) has it for a named
    /// one.
    Named {
        /// How the model would write calls of its own accord.
        format: ToolFormat,
        /// The name of the tool.
        name: String,
    },
}

/// Reads one output. Each output of a request has its own, so that their calls do not mix.
///
/// The deltas of two texts, however each was split, are equal when joined if the texts are.
#[derive(Debug)]
pub struct ChatParser {
    reasoning: Option<Reasoning>,
    machine: Machine,
    sink: Sink,
}

impl ChatParser {
    /// At the beginning of an output.
    pub fn new(options: ChatParserOptions) -> Self {
        let (machine, id_form) = match options.tools {
            ToolParsing::None => (Machine::Content, CallIdForm::Long),
            ToolParsing::Auto { format, names } => (Machine::of(format, names), format.id_form()),
            ToolParsing::Required { format } => (Machine::required(), format.id_form()),
            ToolParsing::Named { format, name } => (Machine::Arguments(Some(name)), format.id_form()),
        };
        let ids = CallIds::new(options.seed, id_form);
        let reasoning = options.reasoning.map(|format| Reasoning::new(format, options.reasoning_place));
        Self { reasoning, machine, sink: Sink::new(ids) }
    }

    /// Takes more text; what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<ChatDelta> {
        let (machine, sink) = (&mut self.machine, &mut self.sink);
        match &mut self.reasoning {
            None => text.chars().for_each(|c| machine.take(c, sink)),
            Some(reasoning) => {
                let mut answer = |c: char, sink: &mut Sink| machine.take(c, sink);
                text.chars().for_each(|c| reasoning.take(c, sink, &mut answer));
            }
        }
        self.sink.take()
    }

    /// The text has ended; what was waiting for more.
    pub fn finish(&mut self) -> Vec<ChatDelta> {
        let (machine, sink) = (&mut self.machine, &mut self.sink);
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish(sink, &mut |c: char, sink: &mut Sink| machine.take(c, sink));
        }
        machine.finish(sink);
        self.sink.take()
    }

    /// Calls so far. Where there are any at the end of an output that the model ended itself, it ended to call tools.
    pub fn num_tool_calls(&self) -> usize {
        self.sink.num_calls() as usize
    }

    /// Reads a whole text.
    pub fn parse(options: ChatParserOptions, text: &str) -> ChatOutput {
        let (mut parser, mut output) = (Self::new(options), ChatOutput::default());
        output.extend(parser.push(text));
        output.extend(parser.finish());
        output
    }
}
