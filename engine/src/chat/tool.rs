//! Tools that a model may call.

use std::collections::HashSet;

use serde_json::Value;

/// A tool, as a chat request describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, which are an object. A tool without one takes none.
    pub parameters: Option<Value>,
}

/// What is wrong with tools or with the choice among them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// Something of another form than expected.
    #[error("{field}: expected {expected}, given {given}")]
    Form {
        /// Where it stands.
        field: String,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        given: String,
    },
    /// More tools than one request may have.
    #[error("tools: {given} tools: expected at most {max}")]
    TooMany {
        /// Tools given.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// Two tools with one name.
    #[error("tools: {name:?} is there twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A choice of a tool that there is not.
    #[error("tool_choice: there is no tool {name:?}; there are {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A choice that needs tools, without any.
    #[error("tool_choice: {given} needs tools, and there are none")]
    NoTools {
        /// The choice.
        given: &'static str,
    },
}

impl Tool {
    /// Tools that one request may have: models choose badly among far fewer.
    pub const MAX_TOOLS: usize = 1024;

    /// Reads the `tools` of a chat request: a list of `{"type": "function", "function": {"name": ..., "parameters": ...}}`.
    ///
    /// # Errors
    ///
    /// [`ToolError::Form`], [`ToolError::TooMany`], [`ToolError::Twice`].
    pub fn list(tools: &Value) -> Result<Vec<Self>, ToolError> {
        let list = tools.as_array().ok_or_else(|| form("tools", "a list", tools))?;
        if list.len() > Self::MAX_TOOLS {
            return Err(ToolError::TooMany { given: list.len(), max: Self::MAX_TOOLS });
        }
        let read = |(index, tool)| Self::read(tool, &format!("tools[{index}]"));
        let read: Vec<Self> = list.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let mut names = HashSet::with_capacity(read.len());
        match read.iter().find(|tool| !names.insert(tool.name.as_str())) {
            Some(tool) => Err(ToolError::Twice { name: tool.name.clone() }),
            None => Ok(read),
        }
    }

    fn read(tool: &Value, field: &str) -> Result<Self, ToolError> {
        if tool["type"] != "function" {
            return Err(form(format!("{field}.type"), "\"function\"", &tool["type"]));
        }
        let function = &tool["function"];
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| form(format!("{field}.function.name"), "a name", &function["name"]))?;
        let parameters = match &function["parameters"] {
            Value::Null => None,
            schema @ Value::Object(words) => {
                check_type(words.get("type"), &format!("{field}.function.parameters.type"))?;
                Some(schema.clone())
            }
            other => return Err(form(format!("{field}.function.parameters"), "a JSON schema", other)),
        };
        Ok(Self { name: name.to_owned(), parameters })
    }
}

/// Arguments are an object. A schema that does not say so means it, unless it names another type.
fn check_type(given: Option<&Value>, field: &str) -> Result<(), ToolError> {
    let is_object = match given {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|one| one == "object"),
        Some(one) => one == "object",
    };
    if is_object { Ok(()) } else { Err(form(field, "\"object\"", given.unwrap_or(&Value::Null))) }
}

pub(super) fn form(field: impl Into<String>, expected: &'static str, given: &Value) -> ToolError {
    ToolError::Form { field: field.into(), expected, given: given.to_string() }
}
