//! `quire chat`.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use quire_engine::{ChatMessage, EngineClient, Request, RequestEvent, SamplingParams};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::runtime::Runtime;

use super::Context;
use super::model::{ModelArgs, runtime};
use super::sampling::SamplingFlags;
use crate::error::{Error, Result, with_causes};

#[derive(Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What the model is told of its part.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingFlags,
}

const HELP: &str = "\
/help   shows this
/reset  begins a new conversation
/exit   ends the program (so does Ctrl-D)
Ctrl-C  stops an answer";

pub(crate) fn run(context: &Context<'_>, args: &ChatArgs) -> Result<()> {
    // An answer is as long as it is; 16 tokens are a default for completions.
    let unbounded = |params: SamplingParams| SamplingParams { max_tokens: None, ..params };
    args.sampling.checked_over(&unbounded(SamplingParams::default()), &args.model.known_limits(context)?)?;
    let engine = args.model.start(context, args.sampling.seed())?;
    let model = engine.model();
    if !model.has_chat_template {
        return Err(Error::NoChatTemplate { model: model.name.clone() });
    }
    let params = args.sampling.over(&unbounded(model.default_params.clone()))?;
    let is_interactive = io::stdin().is_terminal();
    if is_interactive {
        eprintln!("{}: /help lists the commands", model.name);
    }
    let mut chat = Chat {
        engine: &*engine,
        runtime: runtime()?,
        params,
        system: args.system.as_deref().map(ChatMessage::system),
        messages: Vec::new(),
        num_turns: 0,
        num_failed: 0,
        is_interactive,
    };
    chat.messages.extend(chat.system.clone());
    let mut lines = Lines::new(is_interactive)?;
    while let Some(line) = lines.next()? {
        let Some(line) = line else {
            chat.pass_over("a line is not UTF-8 and was passed over");
            continue;
        };
        match line.trim() {
            "" => {}
            "/help" => eprintln!("{HELP}"),
            "/reset" => chat.reset(),
            "/exit" | "/quit" => break,
            command if command.starts_with('/') => eprintln!("no command {command}; /help lists them"),
            _ => chat.answer(line)?,
        }
    }
    chat.outcome()
}

/// A conversation and who answers.
struct Chat<'a> {
    engine: &'a dyn EngineClient,
    runtime: Runtime,
    params: SamplingParams,
    system: Option<ChatMessage>,
    messages: Vec<ChatMessage>,
    num_turns: usize,
    num_failed: usize,
    is_interactive: bool,
}

impl Chat<'_> {
    /// A turn without an answer.
    fn pass_over(&mut self, why: &str) {
        self.num_turns += 1;
        self.num_failed += 1;
        eprintln!("error: {why}");
    }

    /// A person has seen what went wrong; a program sees the exit code.
    fn outcome(&self) -> Result<()> {
        let Self { num_failed, num_turns, is_interactive, .. } = *self;
        match num_failed {
            0 => Ok(()),
            _ if is_interactive => Ok(()),
            _ => Err(Error::TurnsFailed { num_failed, num_turns }),
        }
    }

    fn reset(&mut self) {
        self.messages.clear();
        self.messages.extend(self.system.clone());
    }

    /// Answers one message. What is wrong with it, or with a conversation that has grown too long, is said and the
    /// conversation stays as it was, whether a person types or a pipe; what fails for another reason ends the program.
    fn answer(&mut self, question: String) -> Result<()> {
        self.messages.push(ChatMessage::user(question));
        match self.runtime.block_on(self.stream()) {
            Ok(answer) => {
                self.num_turns += 1;
                self.messages.push(ChatMessage::assistant(answer));
            }
            Err(Error::Engine(error @ quire_engine::Error::Prompt(_))) => {
                self.messages.pop();
                let error = with_causes(&error);
                self.pass_over(&format!(
                    "{error}; the message was left out of the conversation, /reset begins a new one"
                ));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes the answer as it comes. Ctrl-C drops the stream, which gives the request up; what was said is kept.
    async fn stream(&self) -> Result<String> {
        let mut stdout = io::stdout().lock();
        let mut answer = String::new();
        let mut stream = self.engine.submit(Request::new(self.messages.clone(), self.params.clone())).await?;
        loop {
            let event = tokio::select! {
                biased;
                () = self.interrupted() => break,
                event = stream.next() => event,
            };
            match event {
                Some(RequestEvent::Delta(delta)) => {
                    write!(stdout, "{}", delta.text).and_then(|()| stdout.flush()).map_err(Error::Stdout)?;
                    answer.push_str(&delta.text);
                }
                Some(RequestEvent::PromptLogprobs(_) | RequestEvent::SoFar(_)) => {}
                Some(RequestEvent::Failed(error)) => return Err(error.into()),
                Some(RequestEvent::Finished(_)) | None => break,
            }
        }
        writeln!(stdout).map_err(Error::Stdout)?;
        Ok(answer)
    }

    /// Returns at Ctrl-C. Where no person types, the signal keeps its own meaning and ends the program.
    async fn interrupted(&self) {
        if !self.is_interactive || tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}

/// What the user types, or what a pipe brings.
enum Lines {
    Editor(Box<DefaultEditor>),
    Pipe(io::Lines<io::StdinLock<'static>>),
}

impl Lines {
    fn new(is_interactive: bool) -> Result<Self> {
        if !is_interactive {
            return Ok(Self::Pipe(io::stdin().lines()));
        }
        let editor = DefaultEditor::new().map_err(|error| Error::Stdin(io::Error::other(error)))?;
        Ok(Self::Editor(Box::new(editor)))
    }

    /// The next line, `Some(None)` where it is no text; `None` at the end of the input.
    fn next(&mut self) -> Result<Option<Option<String>>> {
        let editor = match self {
            Self::Pipe(lines) => return lines.next().map(text_of).transpose().map_err(Error::Stdin),
            Self::Editor(editor) => editor,
        };
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    return Ok(Some(Some(line)));
                }
                Err(ReadlineError::Interrupted) => eprintln!("(/exit or Ctrl-D ends the program)"),
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(Error::Stdin(io::Error::other(error))),
            }
        }
    }
}

/// A line, if it is text. One that is not is no reason to end a conversation.
fn text_of(line: io::Result<String>) -> io::Result<Option<String>> {
    match line {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        line => line.map(Some),
    }
}
