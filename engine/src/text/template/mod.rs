//! Chat templates: a conversation written out as the model was trained to read it.

mod budget;
mod dialect;
mod filters;
mod forms;
#[cfg(test)]
mod goldens;
mod guard;
mod json;
mod limits;
mod made;
mod messages;
mod methods;
mod python;
#[cfg(test)]
mod tests;
mod tuple;

use std::cell::OnceCell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use quire_models::NamedTokens;

use self::budget::{Budget, input_bytes, is_too_much, too_much};
use self::dialect::{describe, is_raised};
use self::forms::Forms;
use self::guard::Program;
use self::limits::Limits;
use self::messages::{content_text, message_values};
use super::strftime::strftime;
use crate::prompt::{ChatMessage, ChatPrompt};
use crate::{ConfigError, PromptError};

const NAME: &str = "chat_template";

/// A compiled template in the dialect of the Hugging Face hub: Jinja as `transformers` sets it up, with
/// `raise_exception`, `strftime_now` and a `tojson` that writes what Python's `json.dumps` does. What a rendering makes is
/// bounded, in steps, bytes and time, so that no template ends the process.
pub(crate) struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    tokens: NamedTokens,
    forms: Forms,
    limits: Limits,
    /// When all its renderings must have ended: that of a request is rendered for one.
    deadline: Option<Instant>,
    trouble: Option<String>,
}

impl ChatTemplate {
    /// Compiles a template of the model, and tries it on a small conversation, so that what it lacks shows at start.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Template`]: broken syntax, what does not exist, what makes too much, and whatever else fails with
    /// every one of a few plain conversations. A template that refuses one of them in its own words is a good one; one that
    /// misses a variable, which requests may bring, has [`trouble`](Self::trouble).
    pub(crate) fn at_start(source: &str, tokens: NamedTokens) -> Result<Self, ConfigError> {
        let refuse = |error: &Error| ConfigError::Template { message: describe(error) };
        let mut template =
            Self::compile(source, tokens, Limits::OWN, None).map_err(|error| refuse(&error))?;
        match template.try_on_plain_conversations() {
            Err(error) if error.kind() == ErrorKind::UndefinedError => {
                template.trouble = Some(describe(&error));
                Ok(template)
            }
            Err(error) => Err(refuse(&error)),
            Ok(()) => Ok(template),
        }
    }

    /// What went wrong when a plain conversation was written out, where others may go well.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Renders conversations of which every template should write or refuse one.
    ///
    /// # Errors
    ///
    /// What cannot go well with another conversation, or that of the first where all of them go wrong.
    fn try_on_plain_conversations(&self) -> Result<(), Error> {
        let (system, user) = (ChatMessage::system("Be brief."), ChatMessage::user("Hello"));
        let turns = [user.clone(), ChatMessage::assistant("Hello."), user.clone()];
        let mut first = None;
        for messages in [
            vec![user.clone()],
            vec![system.clone(), user],
            turns.to_vec(),
            [vec![system], turns.to_vec()].concat(),
        ] {
            match self.compile_and_render(&ChatPrompt::new(messages), UNIX_EPOCH) {
                Err(RenderError::Template(error)) if is_hopeless(&error) => return Err(error),
                Err(RenderError::Template(error)) if !is_raised(&error) => _ = first.get_or_insert(error),
                _ => return Ok(()),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Compiles a template that came with a request. It may use less than the model's, and what it is tried on counts.
    ///
    /// # Errors
    ///
    /// [`PromptError::RequestTemplate`].
    pub(crate) fn of_request(source: &str, tokens: NamedTokens) -> Result<Self, PromptError> {
        let limits = Limits::OF_REQUEST;
        Self::compile(source, tokens, limits, Some(Instant::now() + limits.time))
            .map_err(|error| PromptError::RequestTemplate { message: describe(&error) })
    }

    /// Writes out a conversation.
    ///
    /// # Errors
    ///
    /// What is wrong with the conversation, by itself or in the template's own words.
    pub(crate) fn render(&self, prompt: &ChatPrompt, now: SystemTime) -> Result<String, PromptError> {
        if prompt.messages.is_empty() {
            return Err(PromptError::NoMessages);
        }
        if prompt.continue_final_message && prompt.add_generation_prompt {
            return Err(PromptError::GenerationPrompt);
        }
        let text = self.compile_and_render(prompt, now).map_err(|error| match error {
            RenderError::Prompt(error) => error,
            RenderError::Template(error) => self.refusal(&error),
        })?;
        if prompt.continue_final_message { cut_after_final_message(text, prompt) } else { Ok(text) }
    }

    fn refusal(&self, error: &Error) -> PromptError {
        match self.deadline {
            None => PromptError::Template { message: describe(error) },
            Some(_) if is_raised(error) => PromptError::RequestTemplate {
                message: format!("it refused the conversation: {}", describe(error)),
            },
            Some(_) => PromptError::RequestTemplate { message: describe(error) },
        }
    }

    fn compile(
        source: &str,
        tokens: NamedTokens,
        limits: Limits,
        deadline: Option<Instant>,
    ) -> Result<Self, Error> {
        if source.len() > limits.source_bytes {
            let message = format!("it has {} bytes, at most {} may be", source.len(), limits.source_bytes);
            return Err(too_much(&message));
        }
        let source = dialect::without_generation_blocks(&dialect::with_plain_line_breaks(source));
        let (environment, forms) = (dialect::environment(), Forms::ALL);
        let mut template =
            Self { source, environment, tokens, forms, limits: limits.of_trial(), deadline, trouble: None };
        template.forms = template.find_forms(&Program::compile(NAME, &template.source)?)?;
        template.limits = limits;
        Ok(template)
    }

    /// Tries which forms of messages it reads.
    ///
    /// # Errors
    ///
    /// It makes more than a prompt can need, or does more.
    fn find_forms(&self, program: &Program<'_>) -> Result<Forms, Error> {
        let stopped = OnceCell::new();
        let forms = Forms::find(|prompt| match stopped.get() {
            Some(_) => None,
            None => match self.try_render(program, prompt, UNIX_EPOCH) {
                Err(RenderError::Template(error)) if is_endless(&error) => {
                    stopped.set(error).ok();
                    None
                }
                outcome => outcome.ok(),
            },
        });
        stopped.into_inner().map_or(Ok(forms), Err)
    }

    fn compile_and_render(&self, prompt: &ChatPrompt, now: SystemTime) -> Result<String, RenderError> {
        self.try_render(&Program::compile(NAME, &self.source)?, prompt, now)
    }

    fn try_render(
        &self,
        program: &Program<'_>,
        prompt: &ChatPrompt,
        now: SystemTime,
    ) -> Result<String, RenderError> {
        let variables = self.variables(prompt, now)?;
        let num_bytes = input_bytes(&variables)?;
        let deadline = self.deadline.unwrap_or_else(|| Instant::now() + self.limits.time);
        let budget = Budget::new(self.limits.bytes.for_input(num_bytes), deadline);
        let budget = if self.limits.bounds_values { budget.for_each_value_too() } else { budget };
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(self.limits.fuel.for_input(num_bytes)));
        Ok(program.render(&environment, variables, budget)?)
    }

    /// What the template sees.
    fn variables(&self, prompt: &ChatPrompt, now: SystemTime) -> Result<Vec<(String, Value)>, PromptError> {
        let messages = message_values(&prompt.messages, self.forms)?;
        let mut variables: Vec<(String, Value)> = prompt
            .template_variables
            .iter()
            .map(|(name, value)| (name.clone(), Value::from_serialize(value)))
            .collect();
        let mut set = |name: &str, value: Value| variables.push((name.to_owned(), value));
        for name in ["tools", "documents"] {
            if !prompt.template_variables.contains_key(name) {
                set(name, Value::from(()));
            }
        }
        set("messages", messages);
        set("add_generation_prompt", Value::from(prompt.add_generation_prompt));
        set("strftime_now", Value::from_function(move |format: &str| strftime(format, now)));
        let tokens = [
            ("bos_token", &self.tokens.bos),
            ("eos_token", &self.tokens.eos),
            ("pad_token", &self.tokens.pad),
            ("unk_token", &self.tokens.unk),
        ];
        for (name, token) in tokens {
            if let Some(token) = token {
                set(name, Value::from(token.as_str()));
            }
        }
        Ok(variables)
    }
}

/// Whether an error has nothing to do with the conversation.
fn is_hopeless(error: &Error) -> bool {
    let hopeless = [
        ErrorKind::UnknownFilter,
        ErrorKind::UnknownTest,
        ErrorKind::UnknownFunction,
        ErrorKind::TemplateNotFound,
    ];
    hopeless.contains(&error.kind()) || is_endless(error)
}

/// Whether a template was stopped for what it uses.
fn is_endless(error: &Error) -> bool {
    error.kind() == ErrorKind::OutOfFuel || is_too_much(error)
}

enum RenderError {
    Prompt(PromptError),
    Template(Error),
}

impl From<PromptError> for RenderError {
    fn from(error: PromptError) -> Self {
        Self::Prompt(error)
    }
}

impl From<Error> for RenderError {
    fn from(error: Error) -> Self {
        Self::Template(error)
    }
}

/// Leaves the final message open: what the template wrote after it goes. Templates may trim what they write.
fn cut_after_final_message(mut text: String, prompt: &ChatPrompt) -> Result<String, PromptError> {
    let content = prompt.messages.last().and_then(|message| message.content.as_ref());
    let content = content.map(content_text).transpose()?.unwrap_or_default();
    let trimmed = content.trim();
    let start = text.rfind(trimmed).filter(|_| !trimmed.is_empty()).ok_or(PromptError::FinalMessage)?;
    let written = [content.trim_start(), trimmed].into_iter().find(|form| text[start..].starts_with(form));
    text.truncate(start + written.map_or(0, str::len));
    Ok(text)
}
