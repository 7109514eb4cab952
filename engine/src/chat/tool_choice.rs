//! Which tools a model is to call.

use serde_json::{Map, Value, json};

use super::parser::ToolParsing;
use super::tool::{Tool, ToolError, form};
use super::tool_format::ToolFormat;

/// Which tools a model is to call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// None: what looks like a call is content.
    None,
    /// At least one.
    Required,
    /// This one, once.
    Named(String),
}

impl ToolChoice {
    /// Reads the `tool_choice` of a chat request: `"auto"`, `"none"`, `"required"`, or
    /// `{"type": "function", "function": {"name": ...}}`.
    ///
    /// # Errors
    ///
    /// [`ToolError::Form`].
    pub fn read(choice: &Value) -> Result<Self, ToolError> {
        let expected = "auto, none, required or {\"type\": \"function\", \"function\": {\"name\": ...}}";
        match (choice.as_str(), choice["function"]["name"].as_str()) {
            (Some("auto"), _) => Ok(Self::Auto),
            (Some("none"), _) => Ok(Self::None),
            (Some("required"), _) => Ok(Self::Required),
            (None, Some(name)) if choice["type"] == "function" => Ok(Self::Named(name.to_owned())),
            _ => Err(form("tool_choice", expected, choice)),
        }
    }

    /// The JSON schema that an output must keep to, where the choice asks for one: for required calls a list of
    /// `{"name": ..., "parameters": {...}}`, of one only where `is_parallel` is false; for a named tool its arguments.
    ///
    /// # Errors
    ///
    /// [`ToolError::Unknown`], [`ToolError::NoTools`].
    pub fn schema(&self, tools: &[Tool], is_parallel: bool) -> Result<Option<Value>, ToolError> {
        match self {
            Self::Auto | Self::None => Ok(None),
            Self::Required if tools.is_empty() => Err(ToolError::NoTools { given: "required" }),
            Self::Required => Ok(Some(list_schema(tools, is_parallel))),
            Self::Named(name) => {
                let tool =
                    tools.iter().find(|tool| tool.name == *name).ok_or_else(|| self.unknown(name, tools))?;
                Ok(Some(arguments(tool)))
            }
        }
    }

    /// How an output is to be read.
    pub fn parsing(&self, format: ToolFormat, tools: &[Tool]) -> ToolParsing {
        match self {
            Self::None => ToolParsing::None,
            Self::Auto if tools.is_empty() => ToolParsing::None,
            Self::Auto => {
                let names = tools.iter().map(|tool| tool.name.clone()).collect();
                ToolParsing::Auto { format, names }
            }
            Self::Required => ToolParsing::Required { format },
            Self::Named(name) => ToolParsing::Named { format, name: name.clone() },
        }
    }

    fn unknown(&self, name: &str, tools: &[Tool]) -> ToolError {
        let known = match tools {
            [] => "none".to_owned(),
            tools => tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        ToolError::Unknown { name: name.to_owned(), known }
    }
}

/// Words that say which values there are in place of a type.
const OTHER_WORDS: [&str; 6] = ["$ref", "allOf", "anyOf", "oneOf", "const", "enum"];

/// The schema of a tool's arguments, which are an object.
fn arguments(tool: &Tool) -> Value {
    let Some(mut schema) = tool.parameters.clone() else { return no_arguments() };
    if let Some(words) = schema.as_object_mut()
        && !OTHER_WORDS.iter().any(|word| words.contains_key(*word))
    {
        words.insert("type".to_owned(), "object".into());
    }
    schema
}

fn no_arguments() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

fn list_schema(tools: &[Tool], is_parallel: bool) -> Value {
    let calls = tools.iter().enumerate().map(|(index, tool)| {
        let place = format!("#/items/anyOf/{index}/properties/parameters");
        let mut parameters = arguments(tool);
        move_references(&mut parameters, &place);
        json!({
            "type": "object",
            "properties": {"name": {"type": "string", "const": tool.name}, "parameters": parameters},
            "required": ["name", "parameters"],
            "additionalProperties": false,
        })
    });
    let mut schema = Map::new();
    schema.insert("type".into(), "array".into());
    schema.insert("minItems".into(), 1.into());
    if !is_parallel {
        schema.insert("maxItems".into(), 1.into());
    }
    schema.insert("items".into(), json!({"anyOf": calls.collect::<Vec<_>>()}));
    schema.into()
}

/// References within a schema that is a part of another now.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Array(values) => values.iter_mut().for_each(|value| move_references(value, place)),
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| match value {
            Value::String(target) if key == "$ref" && (target == "#" || target.starts_with("#/")) => {
                target.replace_range(..1, place);
            }
            value => move_references(value, place),
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Tool> {
        let described = json!([
            {"type": "function", "function": {"name": "now"}},
            {"type": "function", "function": {"name": "add", "description": "d", "parameters": {
                "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}},
            }}},
        ]);
        Tool::list(&described).unwrap()
    }

    #[test]
    fn a_choice_is_read_and_refused_in_words() {
        let named = json!({"type": "function", "function": {"name": "add"}});
        assert_eq!(ToolChoice::read(&named), Ok(ToolChoice::Named("add".into())));
        assert_eq!(ToolChoice::read(&json!("required")), Ok(ToolChoice::Required));
        for wrong in
            [json!("any"), json!({"type": "x", "function": {"name": "a"}}), json!({}), json!(1), json!(null)]
        {
            let error = ToolChoice::read(&wrong).unwrap_err().to_string();
            assert!(error.starts_with("tool_choice: expected auto, none, required or"), "{error}");
        }
    }

    #[test]
    fn tools_are_read_and_refused_with_their_place() {
        assert_eq!(tools()[0], Tool { name: "now".into(), parameters: None });
        let check = |tools: Value, expected: &str| {
            assert_eq!(Tool::list(&tools).unwrap_err().to_string(), expected);
        };
        check(json!({}), "tools: expected a list, given {}");
        check(json!([{"type": "x"}]), "tools[0].type: expected \"function\", given \"x\"");
        check(json!([{"type": "function"}]), "tools[0].function.name: expected a name, given null");
        let tool = |parameters: Value| json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        check(json!([tool(json!(5))]), "tools[0].function.parameters: expected a JSON schema, given 5");
        let expected = "tools[0].function.parameters.type: expected \"object\", given \"string\"";
        check(json!([tool(json!({"type": "string"}))]), expected);
        let expected = "tools[1].function.parameters.type: expected \"object\", given [\"array\"]";
        let other = json!({"type": "function", "function": {"name": "g", "parameters": {"type": ["array"]}}});
        check(json!([tool(json!({"type": "object"})), other]), expected);
        check(json!([tool(json!({})), tool(json!({}))]), "tools: \"f\" is there twice");
        let many = |num: usize| {
            let tool = |name| json!({"type": "function", "function": {"name": format!("f{name}")}});
            (0..num).map(tool).collect::<Value>()
        };
        assert_eq!(Tool::list(&many(Tool::MAX_TOOLS)).map(|tools| tools.len()), Ok(Tool::MAX_TOOLS));
        check(many(Tool::MAX_TOOLS + 1), "tools: 1025 tools: expected at most 1024");
    }

    #[test]
    fn a_choice_asks_for_a_form() {
        let tools = tools();
        assert_eq!(ToolChoice::Auto.schema(&tools, true), Ok(None));
        assert_eq!(ToolChoice::Named("now".into()).schema(&tools, true), Ok(Some(no_arguments())));
        for given in [json!({}), json!({"type": ["object", "null"]}), json!({"type": "object"})] {
            let tool = Tool { name: "f".into(), parameters: Some(given) };
            let schema = ToolChoice::Named("f".into()).schema(&[tool], true);
            assert_eq!(schema, Ok(Some(json!({"type": "object"}))), "arguments are an object");
        }
        let add = ToolChoice::Named("add".into()).schema(&tools, true).unwrap().unwrap();
        assert_eq!(add["properties"]["a"]["$ref"], "#/$defs/n");
        let all = ToolChoice::Required.schema(&tools, false).unwrap().unwrap();
        assert_eq!((&all["minItems"], &all["maxItems"]), (&json!(1), &json!(1)));
        let moved = &all["items"]["anyOf"][1]["properties"]["parameters"]["properties"]["a"]["$ref"];
        assert_eq!(moved, "#/items/anyOf/1/properties/parameters/$defs/n");
        assert_eq!(all.pointer(&moved.as_str().unwrap()[1..]), Some(&json!({"type": "integer"})));
        let error = ToolChoice::Named("x".into()).schema(&tools, true).unwrap_err().to_string();
        assert_eq!(error, "tool_choice: there is no tool \"x\"; there are now, add");
        let error = ToolChoice::Required.schema(&[], true).unwrap_err().to_string();
        assert_eq!(error, "tool_choice: required needs tools, and there are none");
    }
}
