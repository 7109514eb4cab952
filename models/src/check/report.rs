//! What a check has to say.

use std::path::PathBuf;

use super::{Finding, ScanSummary, Severity};
use crate::checkpoint::{OutputHead, WeightSummary};
use crate::config::GenerationConfig;
use crate::tokenizer::{ChatTemplates, NamedTokens};

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// The file or folder.
    pub path: PathBuf,
    /// A word for the kind of checkpoint, as far as it could be opened.
    pub format: Option<&'static str>,
    /// The architecture of its configuration.
    pub architecture: Option<String>,
    /// How its weights are quantized.
    pub quantization: Option<&'static str>,
    /// The files that weights lie in, with their lengths in bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// What the weights are, where all that are needed are there.
    pub weights: Option<WeightSummary>,
    /// Where the output head is.
    pub head: Option<OutputHead>,
    /// The makers' sampling defaults.
    pub generation: GenerationConfig,
    /// Its chat templates.
    pub templates: ChatTemplates,
    /// Special tokens, as far as its tokenizer could be opened.
    pub named_tokens: NamedTokens,
    /// What was read of the weights.
    pub scan: ScanSummary,
    /// Everything there is to say: problems first, then notes.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Those findings for which the model would not be loaded.
    pub fn problems(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Problem)
    }

    /// Whether the model can be loaded.
    pub fn is_ok(&self) -> bool {
        self.problems().next().is_none()
    }

    /// Adds a finding of a caller who knows more, such as how templates are rendered.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
        self.findings.sort_by_key(|finding| finding.severity);
    }
}
