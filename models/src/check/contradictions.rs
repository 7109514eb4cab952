//! Places that say the same thing, and do not agree.

use serde_json::Value;

use super::{Finding, Found};
use crate::checkpoint::{Checkpoint, TensorSpec};
use crate::config::{ModelConfig, Quantization};
use crate::tokenizer::Tokenizer;

impl Found {
    /// Settings of `config.json` of which one is heeded and the other is not, and such that nobody knows.
    pub(super) fn note_settings(&mut self, checkpoint: &Checkpoint) {
        const DIFFER: &str = "settings-differ";
        let config = checkpoint.config();
        let messages = [
            (DIFFER, contradicted_type(config)),
            (DIFFER, contradicted_rope(config, "rope_scaling")),
            (DIFFER, contradicted_rope(config, "rope_parameters")),
            ("unknown-setting", unknown_settings(config)),
        ];
        let path = checkpoint.path().join("config.json");
        let note = |(kind, message): (_, Option<_>)| Some(Finding::note(kind, &path, None, None, message?));
        self.notes.extend(messages.into_iter().filter_map(note));
    }

    /// Where most tensors are missing, they may be there under names with something else in front.
    pub(super) fn note_other_names(&mut self, checkpoint: &Checkpoint, specs: &[TensorSpec]) {
        const FRONT: &str = "model.";
        let missing: Vec<&str> =
            specs.iter().map(|spec| spec.name.as_str()).filter(|name| !checkpoint.contains(name)).collect();
        if missing.len() * 2 <= specs.len() {
            return;
        }
        let stored = checkpoint.stored_names();
        let renamed = |front: &str| {
            let is_there = |name: &&&str| {
                let rest = name.strip_prefix(FRONT).unwrap_or(name);
                stored.contains(&format!("{front}{rest}"))
            };
            missing.iter().filter(is_there).count() * 2 > missing.len()
        };
        let fronts =
            ["", "language_model.model.", "model.language_model.", "transformer.", "base_model.model.model."];
        if let Some(front) = fronts.into_iter().find(|front| renamed(front)) {
            let message =
                format!("the tensors are there with {front:?} in place of {FRONT:?} in front of their names");
            self.notes.push(Finding::note("other-names", checkpoint.path(), None, None, message));
        }
    }

    /// Files beside the tokenizer that say something else of its special tokens.
    pub(super) fn note_other_tokens(&mut self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) {
        for (path, message) in tokenizer.contradictions(checkpoint.path()) {
            self.notes.push(Finding::note("tokens-differ", &path, None, None, message));
        }
    }
}

fn contradicted_type(config: &ModelConfig) -> Option<String> {
    let given = config.raw.get("model_type")?.as_str()?;
    let meant = ModelConfig::architecture_of_type(given)?;
    let used = &config.architecture;
    let is_known = ModelConfig::is_known_architecture(used);
    (is_known && used != meant)
        .then(|| format!("model_type {given:?} is that of {meant}, architectures says {used}, which is run"))
}

fn unknown_settings(config: &ModelConfig) -> Option<String> {
    let unknown = Quantization::unknown_settings(&config.raw).join(", ");
    (!unknown.is_empty()).then(|| format!("quantization_config: {unknown} not known here, and not heeded"))
}

fn contradicted_rope(config: &ModelConfig, field: &str) -> Option<String> {
    let rope = config.raw.get(field)?;
    let kind = |key: &str| rope.get(key).and_then(Value::as_str);
    let (used, other) = (kind("rope_type")?, kind("type")?);
    // Two names of one kind.
    let is_same = used == other || [used, other].iter().all(|kind| ["su", "longrope"].contains(kind));
    (!is_same).then(|| format!("{field}: rope_type is {used:?}, type is {other:?}: the former is heeded"))
}
