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
    fn a_template_without_tools_gets_an_empty_text_for_no_content() {
        let call = serde_json::json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
        let messages = vec![serde_json::from_value(call).expect("a message")];
        let expected = "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n";
        check(CHATML, &ChatPrompt::new(messages), Ok(expected));
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
        assert!(error.to_string().contains("more steps than a prompt can need"), "{error}");
    }

    /// None of them makes much, and each of their steps looks through a megabyte, or many of them.
    #[test]
    fn a_template_of_a_request_ends_within_a_second() {
        let text = "{% set x = 'x' * 900 %}{% set x = x * 900 %}";
        let list = "{% set x = range(90000) | list %}{% set y = range(90000) | list %}";
        for (before, endless) in [
            ("", "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"),
            (text, "{% for i in range(90000) %}{% if 'y' in x %}{% endif %}{% endfor %}"),
            (text, "{% for i in range(90000) %}{% set y = x | length %}{% endfor %}"),
            (text, "{% for i in range(90000) %}{% set y = x[:1] %}{% endfor %}"),
            (text, "{% for i in range(90000) %}{% set y = x == x ~ 'a' %}{% endfor %}"),
            (list, "{% for i in range(90000) %}{% set z = x == y %}{% endfor %}"),
            (list, "{% for i in range(90000) %}{% set z = x | max %}{% endfor %}"),
            (
                list,
                "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% set z = -1 in x %}{% endmacro %}{{ f(30) }}",
            ),
            (
                "",
                "{% for i in range(90000) %}{{ raise_exception }}{% for m in messages recursive %}{% if i %}{{ loop(messages) }}{% endif %}{% endfor %}{% endfor %}",
            ),
            (text, "{% set l = [x] * 90000 %}{{ (l | sort)[0] == 'a' }}"),
            (
                text,
                "{% set n = namespace(l=[x]) %}{% for i in range(17) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | unique | length }}",
            ),
            (text, "{{ [1] | batch(90000, x) | first | map('length') | max }}"),
            (text, "{% set l = range(90000) | map(attribute='a', default=x) | list %}{{ l == l[::-1] }}"),
        ] {
            let (source, start) = (format!("{before}{endless}"), Instant::now());
            let template = ChatTemplate::of_request(&source, NamedTokens::default());
            let error =
                template.and_then(|template| template.render(&hello(), UNIX_EPOCH)).expect_err(endless);
            assert!(matches!(error, PromptError::RequestTemplate { .. }), "{endless}: {error}");
            // Many times what it may take, for a busy machine: without a limit these go on for minutes.
            assert!(start.elapsed() < 20 * Limits::OF_REQUEST.time, "{endless}: {:?}", start.elapsed());
        }
    }

    #[test]
    fn a_template_of_a_request_is_rendered_for_a_long_conversation() {
        let messages = (0..5000).map(|i| ChatMessage::user(format!("{i} and a few more words"))).collect();
        let template = ChatTemplate::of_request(CHATML, NamedTokens::default()).expect("a good template");
        let text = template.render(&ChatPrompt::new(messages), UNIX_EPOCH).expect("a long conversation");
        assert_eq!(text.matches("<|im_start|>user").count(), 5000);
    }

    #[test]
    fn constants_are_not_repeated_to_more_than_memory_holds() {
        let literal = "x".repeat(10_000);
        let source = format!("{{% set x = '{literal}' * 1000 %}}").repeat(50);
        let error =
            ChatTemplate::of_request(&source, NamedTokens::default()).map(drop).expect_err("gigabytes");
        assert!(error.to_string().contains("than a prompt can need"), "{error}");
        let long = ChatTemplate::of_request(&"x".repeat(2 << 20), NamedTokens::default()).map(drop);
        assert!(long.expect_err("megabytes").to_string().contains("at most 1048576"));
    }

    #[test]
    fn no_template_ends_the_process() {
        for bomb in [
            "{{ (['x' * 100000] * 100000) | join('y' * 1000) | length }}",
            "{% set n = namespace(a=[1, 2]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a | list }}",
            "{% set x = 'x' * 900 %}{% set x = x * 900 %}{% for i in range(90000) %}{{ x }}{% endfor %}",
            "{% set x = 'x' * 900 %}{% set x = x * 900 %}{{ x | replace('x', x) | length }}",
            "{% set n = namespace(a='xxxx') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}{{ n.a }}",
            "{% set n = namespace(a='xxxx') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a }}",
            "{% set n = namespace(l=[]) %}{% for i in range(90000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
            "{% set n = namespace(l=1) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
            "{% set n = namespace(l={}) %}{% for i in range(9000) %}{% set n.l = dict(a=n.l) %}{% endfor %}{{ n.l }}",
            "{% macro f() %}{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
             {% endfor %}{% endfor %}{% endmacro %}{% set x = f() %}",
            "{{ '%0900000000d' | format(1) }}",
            "{{ messages | tojson(indent=999999999) }}",
            "{{ ['x'] | map('indent', 999999999, true) | join }}",
            "{{ [1] | batch(999999999, 'x') | list }}",
        ] {
            let error = ChatTemplate::at_start(bomb, NamedTokens::default()).map(drop);
            let error = error.expect_err(bomb).to_string();
            assert!(
                error.contains("than a prompt can need") || error.contains("too deeply"),
                "{bomb}: {error}"
            );
        }
        let own = "{% set n = namespace() %}{% set n.a = n %}{{ n }}";
        assert!(ChatTemplate::at_start(own, NamedTokens::default()).is_err());
    }

    #[test]
    fn what_fails_with_every_conversation_is_an_error_at_start_unless_requests_may_mend_it() {
        for broken in [
            "{% include '/etc/passwd' %}",
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
            "{% for i in range(100000000) %}x{% endfor %}",
            "{{ messages[0].content.no_such_method() }}",
            "{{ 1 + 'x' }}",
            "{{ 'x' % 3 }}",
            "{{ '%s%s' % ('a',) }}",
            "{{ '%d' % 'a' }}",
        ] {
            assert!(ChatTemplate::at_start(broken, NamedTokens::default()).is_err(), "{broken}");
        }
        let trouble = |source| template(source).trouble().map(str::to_owned);
        assert!(trouble("{{ own.settings.style }}").is_some_and(|trouble| trouble.contains("undefined")));
        for good in
            [CHATML, "{{ raise_exception('no') }}", "{{ messages[2].content.upper() }}", "{{ unknown }}"]
        {
            assert_eq!(trouble(good), None, "{good}");
        }
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
        check(
            "{{ '%s is %d' % ('a', 3) }} {{ '%05.1f%%' % 2.25 }} {{ '%(a)s' % {'a': 1} }}",
            &hello(),
            Ok("a is 3 002.2% 1"),
        );
        check("{{ '%s-%s' % (messages[0].role, 1) ~ '%-4d|' % 7 }}", &hello(), Ok("user-17   |"));
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
        for broken in [serde_json::json!({"type": "text"}), serde_json::json!({"type": "text", "text": 1})] {
            let broken = parts(serde_json::json!({"role": "user", "content": [broken]}));
            let said = "a part of a message has the type text and no text: expected a string";
            check("x", &ChatPrompt::new(vec![broken]), Err(said));
        }
        let image =
            parts(serde_json::json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}));
        check(
            "x",
            &ChatPrompt::new(vec![image]),
            Err("message content of type image_url is not built yet: expected text"),
        );
    }
}
