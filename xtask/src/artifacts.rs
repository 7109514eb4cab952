//! What cargo says it has built.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::error::Result;
use crate::process;

/// A program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The folder of its package, which is what we call it by: `kernels-cuda`.
    pub(crate) folder: String,
    pub(crate) name: String,
    /// `lib`, `bin`, `test`, ...
    pub(crate) kind: String,
    /// Whether it runs the tests of its target, rather than being the target.
    pub(crate) is_test: bool,
    pub(crate) path: PathBuf,
}

/// Runs a command of cargo, such as `test --no-run`, and returns the programs of it.
pub(crate) fn programs(command: &mut Command) -> Result<Vec<Program>> {
    let messages = process::output(command.arg("--message-format=json-render-diagnostics"))?;
    Ok(messages.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    Some(Program {
        folder: manifest.parent()?.file_name()?.to_str()?.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        path: message["executable"].as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_messages_and_libraries_left_out() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///q/kernels-cuda#quire-kernels-cuda@0.1.0",
            "manifest_path":"/q/kernels-cuda/Cargo.toml","target":{"kind":["test"],"name":"conformance"},
            "profile":{"test":true},"executable":"/q/target/conformance-1","fresh":true}"#;
        let expected = Program {
            folder: "kernels-cuda".into(),
            name: "conformance".into(),
            kind: "test".into(),
            is_test: true,
            path: "/q/target/conformance-1".into(),
        };
        assert_eq!(parse(&line.replace('\n', " ")), Some(expected));
        assert_eq!(parse(&line.replace('\n', " ").replace("\"/q/target/conformance-1\"", "null")), None);
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("not a message"), None);
    }
}
