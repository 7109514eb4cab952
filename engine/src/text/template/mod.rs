//! Chat templates: a conversation written out as the model was trained to read it.

mod dialect;
mod forms;
#[cfg(test)]
mod goldens;
mod json;
mod messages;
mod python;

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use quire_models::NamedTokens;

use self::dialect::describe;
use self::forms::Forms;
use self::messages::{content_text, message_values};
use super::strftime::strftime;
use crate::prompt::{ChatMessage, ChatPrompt};
use crate::{ConfigError, PromptError};

const NAME: &str = "chat_template";

/// Steps that rendering may take, a second or two: loops within loops of a template must end. A conversation of ten
/// thousand messages takes a few millions.
const FUEL: u64 = 50_000_000;
/// The same for the small conversations on which a template is tried.
const TRIAL_FUEL: u64 = 500_000;

/// A compiled template in the dialect of the Hugging Face hub: Jinja as `transformers` sets it up, with
/// `raise_exception`, `strftime_now` and a `tojson` that writes what Python's `json.dumps` does.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    tokens: NamedTokens,
    forms: Forms,
}

impl ChatTemplate {
    /// Compiles a template of the model, and tries it on a small conversation, so that what it lacks shows at start.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Template`]: broken syntax, or a filter, test or function that does not exist. A template that
    /// refuses the trial conversation by itself is a good one.
    pub(crate) fn at_start(source: &str, tokens: NamedTokens) -> Result<Self, ConfigError> {
        let refuse = |error: &Error| ConfigError::Template { message: describe(error) };
        let template = Self::compile(source, tokens).map_err(|error| refuse(&error))?;
        let trial = ChatPrompt::new(vec![ChatMessage::user("Hello")]);
        // What no conversation could be rendered with; others may be what the template asks of one.
        let hopeless = [
            ErrorKind::UnknownFilter,
            ErrorKind::UnknownTest,
            ErrorKind::UnknownFunction,
            ErrorKind::OutOfFuel,
        ];
        match template.try_render(&trial, UNIX_EPOCH) {
            Err(RenderError::Template(error)) if hopeless.contains(&error.kind()) => Err(refuse(&error)),
            _ => Ok(template),
        }
    }

    /// Compiles a template that came with a request.
    pub(crate) fn of_request(source: &str, tokens: NamedTokens) -> Result<Self, PromptError> {
        Self::compile(source, tokens).map_err(|error| PromptError::Template { message: describe(&error) })
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
        let text = self.try_render(prompt, now).map_err(|error| match error {
            RenderError::Prompt(error) => error,
            RenderError::Template(error) => PromptError::Template { message: describe(&error) },
        })?;
        if prompt.continue_final_message { cut_after_final_message(text, prompt) } else { Ok(text) }
    }

    fn compile(source: &str, tokens: NamedTokens) -> Result<Self, Error> {
        let mut environment = dialect::environment();
        environment.add_template_owned(NAME, dialect::without_generation_blocks(source))?;
        environment.set_fuel(Some(TRIAL_FUEL));
        let mut template = Self { environment, tokens, forms: Forms::ALL };
        template.forms = Forms::find(|prompt| template.try_render(prompt, UNIX_EPOCH).ok());
        template.environment.set_fuel(Some(FUEL));
        Ok(template)
    }

    fn try_render(&self, prompt: &ChatPrompt, now: SystemTime) -> Result<String, RenderError> {
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
        let template = self.environment.get_template(NAME)?;
        Ok(template.render(Value::from_iter(variables))?)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}";

    fn template(source: &str) -> ChatTemplate {
        let tokens =
            NamedTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..NamedTokens::default() };
        ChatTemplate::at_start(source, tokens).unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    fn check(source: &str, prompt: &ChatPrompt, expected: Result<&str, &str>) {
        let rendered = template(source).render(prompt, UNIX_EPOCH).map_err(|error| error.to_string());
        assert_eq!(rendered.as_deref().map_err(String::as_str), expected);
    }

    fn hello() -> ChatPrompt {
        ChatPrompt::new(vec![ChatMessage::user("Hi"), ChatMessage::assistant("Well, ")])
    }

    #[test]
    fn a_conversation_is_written_out() {
        let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, <|im_end|>\n<|im_start|>assistant\n";
        check(CHATML, &hello(), Ok(expected));
        check(
            CHATML,
            &ChatPrompt::new(vec![]),
            Err("the conversation is empty: expected at least one message"),
        );
    }

    #[test]
    fn the_final_message_is_left_open() {
        let open = ChatPrompt { add_generation_prompt: false, continue_final_message: true, ..hello() };
        check(CHATML, &open, Ok("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, "));
        check("{{ messages[-1].content | trim }}!", &open, Ok("Well,"));
        check(
            "nothing",
            &open,
            Err("the chat template changes the final message, which therefore cannot be continued"),
        );
        let both = ChatPrompt { continue_final_message: true, ..hello() };
        check(CHATML, &both, Err("add_generation_prompt and continue_final_message exclude each other"));
    }

    #[test]
    fn br_44_the_refusal_of_a_template_is_in_its_own_words() {
        let source =
            "{% if messages[0].role == 'user' %}\n{{ raise_exception('only systems speak') }}{% endif %}";
        let said = "the chat template refused the conversation: only systems speak (line 2 of the template)";
        check(source, &hello(), Err(said));
    }

    #[test]
    fn a_template_that_goes_on_and_on_is_an_error_at_start() {
        let endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
        let error = ChatTemplate::at_start(endless, NamedTokens::default()).map(drop).unwrap_err();
        assert!(error.to_string().contains("fuel"), "{error}");
    }

    #[test]
    fn br_44_a_broken_template_is_an_error_at_start() {
        for source in ["{% if %}", "{{ messages | no_such_filter }}", "{{ no_such_function() }}"] {
            assert!(ChatTemplate::at_start(source, NamedTokens::default()).is_err(), "{source}");
        }
    }

    #[test]
    fn the_dialect_is_that_of_the_hub() {
        check("{{ bos_token }}{{ strftime_now('%d %b %Y') }}", &hello(), Ok("<s>01 Jan 1970"));
        check("{% if messages[0].content.startswith('H') %}yes{% endif %}", &hello(), Ok("yes"));
        check("  {% for i in [1, 2] %}\n{{ i }}{% break %}\n  {% endfor %}\n", &hello(), Ok("1"));
        let mut prompt = hello();
        prompt.template_variables.insert("tools".into(), serde_json::json!([{"name": "<f>", "n": 1}]));
        check("{{ tools | tojson }}", &prompt, Ok(r#"[{"name": "<f>", "n": 1}]"#));
        check("{{ tools[0] | tojson(indent=2) }}", &prompt, Ok("{\n  \"name\": \"<f>\",\n  \"n\": 1\n}"));
    }

    #[test]
    fn only_text_is_built() {
        let parts = |json| serde_json::from_value(json).unwrap();
        let text = parts(
            serde_json::json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        );
        check("{{ messages[0].content }}", &ChatPrompt::new(vec![text]), Ok("a\nb"));
        let image =
            parts(serde_json::json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}));
        check(
            "x",
            &ChatPrompt::new(vec![image]),
            Err("message content of type image_url is not built yet: expected text"),
        );
    }
}
