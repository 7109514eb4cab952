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
mod scan;
mod texts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::architectures::ModelRegistry;
use crate::checkpoint::{
    Checkpoint, LoadFormat, LoadOptions, OutputHead, Surveyed, TensorSpec, WeightSummary, is_kv_scale,
};
use crate::config::GenerationConfig;
use crate::error::{Error, Result};
use crate::tokenizer::{ChatTemplates, NamedTokens, Tokenizer};

pub use finding::{Finding, Severity};
pub use scan::ScanSummary;

/// How much of the weights is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Depth {
    /// None: headers, configuration and texts only.
    Headers,
    /// A few places of every tensor.
    #[default]
    Samples,
    /// All of them.
    Full,
}

/// What a check looks at.
#[derive(Debug, Clone, Default)]
pub struct CheckOptions {
    /// How the model would be loaded.
    pub load: LoadOptions,
    /// How much of the weights is read.
    pub depth: Depth,
    /// Whether the model's own tokenizer is left alone, because another one is given.
    pub skip_tokenizer: bool,
}

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
        // A file that two readers need is wrong once.
        if !report.findings.contains(&finding) {
            report.findings.push(finding);
        }
    }
    report
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
            self.take(checkpoint.check_metadata());
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
            self.check_texts(&checkpoint, config, options.skip_tokenizer, report);
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

    fn list_unused(&mut self, checkpoint: &Checkpoint, summary: &WeightSummary) {
        let mut harmless_ones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let ignored_head = self.note_ignored_head(checkpoint);
        for name in summary.unused.iter().filter(|name| ignored_head != Some(name.as_str())) {
            if let Some(reason) = harmless(name) {
                harmless_ones.entry(reason).or_default().push(name);
                continue;
            }
            let (file, num_bytes) = checkpoint.place_of(name);
            let (stored, message) = (checkpoint.stored_name(name), "not used by the model".to_owned());
            self.notes.push(Finding::note("unused-tensor", &file, Some(stored), num_bytes, message));
        }
        // One in each layer is one thing to say.
        for (reason, names) in harmless_ones {
            let (file, _) = checkpoint.place_of(names[0]);
            let num_bytes = names.iter().filter_map(|name| checkpoint.place_of(name).1).sum();
            let message = match names.len() - 1 {
                0 => format!("not a weight: {reason}"),
                others => format!("not a weight, nor are {others} more: {reason}"),
            };
            let stored = Some(checkpoint.stored_name(names[0]));
            self.notes.push(Finding::note("harmless-tensor", &file, stored, Some(num_bytes), message));
        }
    }

    /// A head beside the embedding that it is tied to; its name, where it is another.
    fn note_ignored_head(&mut self, checkpoint: &Checkpoint) -> Option<&'static str> {
        let name = checkpoint.ignored_head()?;
        let (file, num_bytes) = checkpoint.place_of(name);
        let message =
            "tie_word_embeddings is set, and this differs from the embedding, which is used in its place";
        let (tensor, message) = (Some(name.to_owned()), message.to_owned());
        self.notes.push(Finding::note("head-differs", &file, tensor, num_bytes, message));
        Some(name)
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

/// Why a tensor that the model does not use is nothing to worry about.
fn harmless(name: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 12] = [
        (".rotary_emb.inv_freq", "rotary frequencies, which are computed from the configuration"),
        (".rotary_emb.cos_cached", "a rotary table, which is computed from the configuration"),
        (".rotary_emb.sin_cached", "a rotary table, which is computed from the configuration"),
        (".attn.bias", "a causal mask"),
        (".attn.masked_bias", "a causal mask"),
        (".attention.bias", "a causal mask"),
        (".q_scale", "a scale of queries, which are not quantized here"),
        (".prob_scale", "a scale of attention weights, which are not quantized here"),
        (".input_scale", "a scale of activations, which are not quantized here"),
        (".output_scale", "a scale of activations, which are not quantized here"),
        ("lm_head.weight", "the output head is the embedding"),
        (".position_ids", "a list of positions"),
    ];
    if is_kv_scale(name) {
        return Some("a scale of an 8-bit kv cache (--kv-cache-dtype fp8 uses it)");
    }
    KNOWN.iter().find(|(end, _)| name.ends_with(end)).map(|(_, reason)| *reason)
}
