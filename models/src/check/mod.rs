//! Everything that can be known to be wrong with a model before a byte of it is uploaded.
//!
//! [`check`] opens a model as a start does, but goes on after what is wrong, so that all of it is said at once:
//!
//! 1. every file and shard is there, and its header fits its length;
//! 2. the configuration describes a model that can be run, and agrees with the tensors;
//! 3. every tensor that the model needs is there once, in its shape and in a dtype that can be computed with; what it does
//!    not need is listed;
//! 4. the tokenizer opens, and its ids are rows of the embedding; special tokens exist;
//! 5. no weight is NaN or infinite, in samples or in all of it ([`Depth`]).
//!
//! Loading runs the same through [`load`]: whatever would be a problem here is an error there.

mod contradictions;
mod finding;
mod options;
mod report;
mod scan;
mod texts;
mod unused;

use std::path::Path;

use crate::architectures::ModelRegistry;
use crate::checkpoint::{Checkpoint, LoadFormat, OutputHead, Surveyed, TensorSpec, WeightSummary};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

pub use finding::{Finding, Severity};
pub use options::{CheckOptions, CheckTokenizer, Depth};
pub use report::CheckReport;
pub use scan::ScanSummary;

/// Checks a model.
pub fn check(path: &Path, options: &CheckOptions, registry: &ModelRegistry) -> CheckReport {
    let mut found = Found::default();
    let mut report = CheckReport { path: path.to_owned(), ..CheckReport::default() };
    let surveyed = Checkpoint::survey(path, &options.load, &mut found.errors);
    let checkpoint = surveyed.map(|surveyed| found.look_at(surveyed, options, registry, &mut report));
    for mut finding in found.errors.iter().map(Finding::of_error).chain(found.notes) {
        if let Some(checkpoint) = &checkpoint {
            finding.complete(checkpoint);
        }
        if !is_told(&report.findings, &finding) {
            report.findings.push(finding);
        }
    }
    report
}

/// A file that two readers need is wrong once; one that is refused is not read for no other reason.
fn is_told(findings: &[Finding], finding: &Finding) -> bool {
    let is_refused =
        || findings.iter().any(|told| told.severity == Severity::Problem && told.file == finding.file);
    findings.contains(finding) || (finding.kind == "unused-file" && is_refused())
}

/// Opens a model for loading, with everything that [`check`] would find wrong with it as one error.
///
/// # Errors
/// The problem; [`Error::Problems`] where there are several.
pub fn load(
    path: &Path,
    options: &CheckOptions,
    registry: &ModelRegistry,
) -> Result<(Checkpoint, WeightSummary)> {
    let mut found = Found::default();
    let surveyed = Checkpoint::survey(path, &options.load, &mut found.errors);
    let mut report = CheckReport::default();
    let checkpoint = surveyed.map(|surveyed| found.look_at(surveyed, options, registry, &mut report));
    for note in &found.notes {
        match note.kind {
            // All is well with these.
            "harmless-tensor" | "activations" | "unused-file" | "tokenizer-settings" => {
                tracing::info!(target: "quire::models", path = %path.display(), "{note}");
            }
            _ => tracing::warn!(target: "quire::models", path = %path.display(), "{note}"),
        }
    }
    match (Error::of_problems(path, found.errors), checkpoint, report.weights) {
        (Some(error), ..) => Err(error),
        (None, Some(checkpoint), Some(weights)) => Ok((checkpoint, weights)),
        _ => unreachable!("what cannot be opened or has no weights is a problem"),
    }
}

/// Opens the tokenizer of a model and compares it with the model.
///
/// # Errors
/// What is wrong with it; [`Error::Problems`] where that is several things.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    let tokenizer = checkpoint.tokenizer()?;
    let mut found = Found::default();
    found.check_tokenizer(checkpoint, Some(checkpoint.config()), &tokenizer);
    Error::of_problems(checkpoint.path(), found.errors).map_or(Ok(tokenizer), Err)
}

/// What has been found so far.
#[derive(Default)]
struct Found {
    errors: Vec<Error>,
    notes: Vec<Finding>,
}

impl Found {
    /// Looks at everything that can be looked at by itself, and compares what is sound.
    fn look_at(
        &mut self,
        surveyed: Surveyed,
        options: &CheckOptions,
        registry: &ModelRegistry,
        report: &mut CheckReport,
    ) -> Checkpoint {
        let Surveyed { mut checkpoint, config_is_sound, has_tensors } = surveyed;
        let architecture = &checkpoint.config().architecture;
        report.format = Some(checkpoint.format());
        report.architecture = Some(architecture.clone()).filter(|name| !name.is_empty());
        report.quantization = checkpoint.quantization();
        report.files = checkpoint.files();
        if config_is_sound {
            checkpoint.check_metadata(&mut self.errors);
            self.note_activations(&checkpoint);
        }
        self.notes.extend(checkpoint.notes_of_files());
        self.note_settings(&checkpoint);
        if config_is_sound && has_tensors {
            self.look_at_tensors(&mut checkpoint, options, registry, report);
        } else if let Some(name) = &report.architecture {
            let config = checkpoint.config();
            self.take(registry.find(name).and_then(|architecture| architecture.check_config(config)));
        }
        if options.load.load_format != LoadFormat::Dummy {
            let config = config_is_sound.then(|| checkpoint.config());
            self.check_texts(&checkpoint, config, options.tokenizer, report);
        }
        checkpoint
    }

    fn look_at_tensors(
        &mut self,
        checkpoint: &mut Checkpoint,
        options: &CheckOptions,
        registry: &ModelRegistry,
        report: &mut CheckReport,
    ) {
        report.head = self.decide_head(checkpoint);
        let Some(specs) = self.needed_tensors(checkpoint, registry) else { return };
        let before = self.errors.len();
        let summary = checkpoint.summarize(&specs, &mut self.errors);
        self.list_unused(checkpoint, &summary);
        self.note_other_names(checkpoint, &specs);
        let specs: Vec<&TensorSpec> = specs.iter().filter(|spec| checkpoint.contains(&spec.name)).collect();
        if options.load.load_format != LoadFormat::Dummy {
            report.scan = scan::scan(checkpoint, &specs, options.depth, &mut self.errors);
        }
        report.weights = (self.errors.len() == before).then_some(summary);
    }

    /// The value, or a problem.
    fn take<T>(&mut self, read: Result<T>) -> Option<T> {
        read.map_err(|error| self.errors.push(error)).ok()
    }

    /// Where the head is. If it is nowhere that is said once, and the rest is looked at as if it were the embedding.
    fn decide_head(&mut self, checkpoint: &mut Checkpoint) -> Option<OutputHead> {
        match checkpoint.output_head() {
            Ok(head) => Some(head),
            Err(error) => {
                self.errors.push(error);
                checkpoint.tie_head();
                None
            }
        }
    }

    fn needed_tensors(
        &mut self,
        checkpoint: &Checkpoint,
        registry: &ModelRegistry,
    ) -> Option<Vec<TensorSpec>> {
        let found = registry.find(&checkpoint.config().architecture);
        self.take(found.and_then(|architecture| architecture.tensors(checkpoint)))
    }

    /// Weights that were made for activations in 8 bits.
    fn note_activations(&mut self, checkpoint: &Checkpoint) {
        if checkpoint.quantizes_activations() {
            let message = "activations stay in their dtype: results are those of the dequantized weights, \
                           scales of activations are not used";
            self.notes.push(Finding::note("activations", checkpoint.path(), None, None, message.to_owned()));
        }
    }
}
