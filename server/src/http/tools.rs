//! Tools and reasoning of a chat: what the prompt says of them, and how the answer is read.

use quire_engine::chat::{
    ChatParserOptions, ReasoningFormat, ReasoningPlace, Tool, ToolChoice, ToolError, ToolFormat, ToolParsing,
};
use quire_engine::{ChatPrompt, SamplingParams, StructuredOutputs};

use serde_json::Value;

use super::body::Body;
use super::error::ApiError;
use super::field_names::FieldNames;

/// How the server reads answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadingSettings {
    /// Calls that models make of their own accord are looked for in this form, where any are.
    pub(crate) tool_format: Option<ToolFormat>,
    /// How the model sets its reasoning apart.
    pub(crate) reasoning_format: Option<ReasoningFormat>,
}

impl ReadingSettings {
    /// Refuses early what nobody here reads: a long list of tools need not be read for that.
    pub(crate) fn check(&self, body: &Body) -> Result<(), ApiError> {
        let has_tools = body.peek("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
        let is_auto = body.peek("tool_choice").is_none_or(|choice| choice == "auto");
        if has_tools && is_auto && self.tool_format.is_none() {
            let message =
                "tool_choice auto needs a server with --enable-auto-tool-choice and --tool-call-parser";
            return Err(ApiError::bad_field("tool_choice", message));
        }
        Ok(())
    }
}

/// What a request says of tools.
#[derive(Clone, Debug)]
pub(crate) struct AskedTools {
    tools: Vec<Tool>,
    choice: ToolChoice,
    is_parallel: bool,
}

impl AskedTools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls` out of a body. Templates see the tools, unless none may be called.
    pub(crate) fn take(body: &mut Body, chat: &mut ChatPrompt) -> Result<Self, ApiError> {
        let given = body.take_value("tools");
        let tools = given.as_ref().map(Tool::list).transpose().map_err(refuse)?.unwrap_or_default();
        let choice = match body.take_value("tool_choice") {
            Some(choice) => ToolChoice::read(&choice).map_err(refuse)?,
            None if tools.is_empty() => ToolChoice::None,
            None => ToolChoice::Auto,
        };
        let is_parallel = body.take_bool("parallel_tool_calls")?.unwrap_or(true);
        if let Some(given) = given.filter(|_| !tools.is_empty() && choice != ToolChoice::None) {
            chat.template_variables.insert("tools".to_owned(), given);
        }
        Ok(Self { tools, choice, is_parallel })
    }

    /// Refuses a choice of what there is not.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        self.schema().map(drop)
    }

    /// The form that the choice asks outputs to have, if it does.
    fn schema(&self) -> Result<Option<Value>, ApiError> {
        self.choice.schema(&self.tools, self.is_parallel).map_err(refuse)
    }
}

/// How the answers of one chat are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    options: ChatParserOptions,
    /// Whether an output that calls a tool ends for that: not where the one tool was named.
    pub(crate) ends_to_call: bool,
}

impl Reading {
    /// How answers to a request with such tools are read; what the tools mean for the form of outputs is written into the
    /// parameters.
    pub(crate) fn of(
        asked: AskedTools,
        settings: ReadingSettings,
        (params, names): (&mut SamplingParams, &mut FieldNames),
    ) -> Result<Self, ApiError> {
        let schema = asked.schema();
        let AskedTools { tools, choice, .. } = asked;
        if let Some(schema) = schema? {
            if params.structured_outputs.is_some() {
                let message = "tool_choice and a form for the output exclude each other";
                return Err(ApiError::bad_field("tool_choice", message));
            }
            names.add("structured_outputs", "tools");
            params.structured_outputs = Some(StructuredOutputs::json(schema));
        }
        let format = settings.tool_format.unwrap_or(ToolFormat::Hermes);
        let parsing = choice.parsing(format, &tools);
        if !params.detokenize && parsing != ToolParsing::None {
            let message =
                "detokenize is false: expected true beside tools, whose calls are read from the text";
            return Err(ApiError::bad_field("detokenize", message));
        }
        if matches!(parsing, ToolParsing::Auto { .. }) && format.needs_special_tokens() {
            params.skip_special_tokens = false;
        }
        let reasoning = settings.reasoning_format;
        if let Some(form) = &mut params.structured_outputs {
            form.reasoning = reasoning.or(form.reasoning);
        }
        let ends_to_call = !matches!(choice, ToolChoice::Named(_));
        let options = ChatParserOptions { reasoning, tools: parsing, ..ChatParserOptions::default() };
        Ok(Self { options, ends_to_call })
    }

    /// Whether the end of the prompt says how answers begin.
    pub(crate) fn asks_for_prompt(&self) -> bool {
        self.options.reasoning.is_some()
    }

    /// Takes the end of the prompt into account.
    pub(crate) fn with_prompt(mut self, end: &str) -> Self {
        self.options.reasoning_place = ReasoningPlace::after(end);
        self
    }

    /// How one output is read; the names of its calls are its own.
    pub(crate) fn of_output(&self) -> ChatParserOptions {
        ChatParserOptions { seed: uuid::Uuid::new_v4().as_u64_pair().0, ..self.options.clone() }
    }
}

fn refuse(error: ToolError) -> ApiError {
    let message = error.to_string();
    let field = if message.starts_with("tool_choice") { "tool_choice" } else { "tools" };
    ApiError::bad_field(field, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn take(body: Value, settings: ReadingSettings) -> Result<(ChatPrompt, SamplingParams), ApiError> {
        let (mut chat, mut params) = (ChatPrompt::new(Vec::new()), SamplingParams::default());
        let mut body = Body::parse(body.to_string().as_bytes()).expect("an object");
        settings.check(&body)?;
        let tools = AskedTools::take(&mut body, &mut chat)?;
        Reading::of(tools, settings, (&mut params, &mut FieldNames::default()))?;
        assert!(body.rest().is_empty());
        Ok((chat, params))
    }

    fn tools() -> Value {
        json!([{"type": "function", "function": {"name": "now"}}])
    }

    #[test]
    fn tools_reach_the_template_unless_none_may_be_called() {
        let hermes = ReadingSettings { tool_format: Some(ToolFormat::Hermes), ..ReadingSettings::default() };
        let (chat, params) = take(json!({"tools": tools()}), hermes).expect("automatic");
        assert_eq!((&chat.template_variables["tools"], params.structured_outputs), (&tools(), None));
        let (chat, _) = take(json!({"tools": tools(), "tool_choice": "none"}), hermes).expect("none");
        assert!(chat.template_variables.is_empty());
        let (_, params) = take(json!({"tools": tools(), "tool_choice": "required"}), hermes).expect("a form");
        assert!(params.structured_outputs.is_some());
    }

    #[test]
    fn without_a_text_there_are_no_calls() {
        let hermes = ReadingSettings { tool_format: Some(ToolFormat::Hermes), ..ReadingSettings::default() };
        let named = json!({"type": "function", "function": {"name": "now"}});
        for (choice, is_refused) in
            [(json!("auto"), true), (json!("required"), true), (named, true), (json!("none"), false)]
        {
            let mut body =
                Body::parse(json!({"tools": tools(), "tool_choice": choice}).to_string().as_bytes())
                    .expect("an object");
            let asked = AskedTools::take(&mut body, &mut ChatPrompt::new(Vec::new())).expect("a choice");
            let mut params = SamplingParams { detokenize: false, ..SamplingParams::default() };
            let reading = Reading::of(asked, hermes, (&mut params, &mut FieldNames::default()));
            let param = reading.err().and_then(|error| error.param);
            assert_eq!(param.as_deref(), is_refused.then_some("detokenize"), "{choice}");
        }
    }

    #[test]
    fn what_cannot_be_called_is_refused() {
        for (body, field) in [
            (json!({"tools": tools()}), "tool_choice"),
            (json!({"tools": 1}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (
                json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "x"}}}),
                "tool_choice",
            ),
        ] {
            let error = take(body.clone(), ReadingSettings::default()).expect_err("nothing reads calls");
            assert_eq!(error.param.as_deref(), Some(field), "{body}");
        }
    }
}
