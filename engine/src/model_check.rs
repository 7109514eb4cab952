//! A model's check, with what only an engine can say of it.

use std::path::Path;

use quire_models::ModelRegistry;
use quire_models::check::{CheckOptions, CheckReport, Finding, Severity, check};

use crate::load::usable_defaults;
use crate::text::ChatTemplate;

/// Checks a model as [`quire_models::check::check`] does; notes which sampling defaults of its makers no request may have;
/// renders each of its chat templates once.
pub fn check_model(path: &Path, options: &CheckOptions, models: &ModelRegistry) -> CheckReport {
    let mut report = check(path, options, models);
    for message in usable_defaults(&report.generation).1 {
        let file = path.join("generation_config.json");
        report.add(Finding::note("sampling-default", &file, None, None, message));
    }
    let templates = report.templates.clone();
    for name in templates.names() {
        let source = templates.named(name).unwrap_or_default();
        let (severity, message) = match ChatTemplate::at_start(source, report.named_tokens.clone()) {
            Err(error) => (Severity::Problem, error.to_string()),
            Ok(template) => match template.trouble() {
                Some(trouble) => (Severity::Note, format!("it fails with plain conversations: {trouble}")),
                None => continue,
            },
        };
        report.add(Finding {
            severity,
            kind: "chat-template",
            file: path.to_owned(),
            tensor: None,
            num_bytes: Some(source.len() as u64),
            message: format!("template {name:?}: {message}"),
        });
    }
    report
}
