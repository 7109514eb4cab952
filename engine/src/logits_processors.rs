//! Logits processors, as requests ask for them.

use quire_executor::{LogitsProcessors, ProcessorCall, ProcessorError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::params::ParamError;

const FIELD: &str = "logits_processors";

/// A logits processor that a request asks for, by the name under which it was registered.
///
/// In JSON its name, or an object with `name` and `args`; vLLM's `qualname` and `kwargs` mean the same.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsProcessorCall {
    /// Its name.
    pub name: String,
    /// What it is told; null is nothing.
    pub args: Value,
}

impl LogitsProcessorCall {
    /// A call with these arguments.
    pub fn new(name: impl Into<String>, args: impl Into<Value>) -> Self {
        Self { name: name.into(), args: args.into() }
    }
}

/// What the device is to run, after all checks.
pub(crate) fn check(
    calls: &[LogitsProcessorCall],
    processors: &LogitsProcessors,
) -> Result<Vec<ProcessorCall>, ParamError> {
    let mut checked: Vec<ProcessorCall> = Vec::with_capacity(calls.len());
    for LogitsProcessorCall { name, args } in calls {
        let call = processors.call(name, args.clone()).map_err(refusal)?;
        if checked.iter().any(|other| other.processor == call.processor) {
            return Err(refuse(format!("{name}, twice"), "each of them once"));
        }
        checked.push(call);
    }
    Ok(checked)
}

fn refusal(error: ProcessorError) -> ParamError {
    match error {
        ProcessorError::Unknown { name, known } if known.is_empty() => {
            refuse(name, "none, since this engine has none registered")
        }
        ProcessorError::Unknown { name, known } => refuse(name, format!("one of {}", known.join(", "))),
        ProcessorError::Args { name, args, rule } => refuse(format!("{name} with {args}"), rule),
        other => refuse(String::new(), other.to_string()),
    }
}

fn refuse(value: String, rule: impl Into<String>) -> ParamError {
    ParamError::Value { field: FIELD, value, rule: rule.into() }
}

impl Serialize for LogitsProcessorCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.args {
            Value::Null => self.name.serialize(serializer),
            args => json!({ "name": self.name, "args": args }).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for LogitsProcessorCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected the name of a logits processor, or an object with name and args"
        )]
        enum Form {
            Name(String),
            Call(Call),
        }

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Call {
            #[serde(alias = "qualname")]
            name: String,
            #[serde(default, alias = "kwargs")]
            args: Value,
        }

        Ok(match Form::deserialize(deserializer)? {
            Form::Name(name) => Self::new(name, Value::Null),
            Form::Call(Call { name, args }) => Self::new(name, args),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_objects_are_read_and_written() {
        for (json, name, args) in [
            (json!("a"), "a", json!(null)),
            (json!({"name": "a"}), "a", json!(null)),
            (json!({"name": "a", "args": [1]}), "a", json!([1])),
            (json!({"qualname": "a.b", "kwargs": {"c": 2}}), "a.b", json!({"c": 2})),
        ] {
            let call: LogitsProcessorCall = serde_json::from_value(json).unwrap();
            assert_eq!(call, LogitsProcessorCall::new(name, args));
            assert_eq!(serde_json::from_value::<LogitsProcessorCall>(json!(call)).unwrap(), call);
        }
        for json in [json!(1), json!({"args": 1}), json!({"name": "a", "args": 1, "kwargs": 2})] {
            let error = serde_json::from_value::<LogitsProcessorCall>(json).unwrap_err().to_string();
            assert!(error.starts_with("expected the name of a logits processor"), "{error}");
        }
    }
}
