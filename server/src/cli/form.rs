//! The form of an output as flags.

use std::path::Path;

use clap::Args;
use quire_engine::StructuredOutputs;
use serde::Serialize;

/// The form that an output must have: at most one of these.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Form of the output")]
#[group(id = "form", multiple = false)]
#[serde(into = "Option<StructuredOutputs>")]
pub(crate) struct FormFlags {
    /// JSON that conforms to the JSON schema in this file.
    #[arg(long, value_name = "FILE", value_parser = contents)]
    json_schema: Option<String>,
    /// Text that matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// One of the texts that are given so.
    #[arg(long, value_name = "TEXT")]
    choice: Option<Vec<String>>,
    /// Text of the grammar (Lark) in this file.
    #[arg(long, value_name = "FILE", value_parser = contents)]
    grammar: Option<String>,
}

impl From<FormFlags> for Option<StructuredOutputs> {
    fn from(flags: FormFlags) -> Self {
        let FormFlags { json_schema, regex, choice, grammar } = flags;
        let json = json_schema.map(Into::into);
        let form = StructuredOutputs { json, regex, choice, grammar, ..StructuredOutputs::default() };
        (form != StructuredOutputs::default()).then_some(form)
    }
}

/// What a file holds; the flag is named by whoever parses it.
fn contents(path: &str) -> Result<String, String> {
    std::fs::read_to_string(Path::new(path)).map_err(|error| error.to_string())
}
