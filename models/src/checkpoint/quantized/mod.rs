//! A folder whose linear layers are quantized: elements, scales and zero points, under the names and in the row order
//! of dense weights.
//!
//! | method | a module's tensors | handed out as |
//! |---|---|---|
//! | `gptq` | `qweight`, `qzeros`, `scales`, `g_idx` | U4 or U8, groups of a row |
//! | `awq` | `qweight`, `qzeros`, `scales` | U4, groups of a row |
//! | `fp8` | `weight`, `weight_scale` or `weight_scale_inv` | F8, rows, squares or one scale |
//! | `compressed-tensors` | `weight_packed`, or `weight` in 8 bits, with `weight_scale`, `weight_zero_point`, `weight_g_idx` | U4, U8, F8 |
//!
//! A module without these has a dense weight. Scales of activations (`input_scale`) are not used: activations are not
//! quantized to a checkpoint's scales here, which is more exact.

mod layout;
mod module;
mod parts;
mod unpack;

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Finding;
use crate::checkpoint::{HostTensor, StoredPart, TensorInfo, TensorSource, TensorSpec};
use crate::config::Quantization;
use crate::error::Result;
use crate::mmap::TensorBytes;
use crate::safetensors::SafetensorsFolder;

use module::Module;

/// What a quantized module has in place of `.weight` or beside it.
const PARTS: [&str; 11] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_scale_2",
];

/// Scales of what is computed from a weight, which have a place of their own in no weight.
const ACTIVATION_PARTS: [&str; 6] = [
    "input_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "input_global_scale",
    "act_scale",
];

/// The tensors of a quantized folder under the names of a dense one.
#[derive(Debug)]
pub(super) struct QuantizedTensors {
    folder: SafetensorsFolder,
    method: Quantization,
}

impl QuantizedTensors {
    pub(super) fn new(folder: SafetensorsFolder, method: Quantization) -> Self {
        Self { folder, method }
    }

    /// The quantized module whose weight is called `name`, if that is one.
    fn module<'a>(&'a self, name: &'a str) -> Option<Module<'a>> {
        Module::find(&self.folder, &self.method, name.strip_suffix(".weight")?)
    }
}

impl TensorSource for QuantizedTensors {
    fn format(&self) -> &'static str {
        "safetensors"
    }

    fn stored_name(&self, name: &str) -> String {
        self.module(name).map_or_else(|| name.to_owned(), |module| module.stored_name())
    }

    /// The parts of a quantized module stand for its weight.
    fn names(&self) -> Vec<String> {
        let mut modules: BTreeMap<&str, Option<Module<'_>>> = BTreeMap::new();
        let mut names = BTreeSet::new();
        for name in self.folder.names() {
            let (stem, part) = name.rsplit_once('.').unwrap_or(("", name));
            let is_activation = ACTIVATION_PARTS.contains(&part);
            if !(is_activation || PARTS.contains(&part)) {
                names.insert(name.to_owned());
                continue;
            }
            let module =
                modules.entry(stem).or_insert_with(|| Module::find(&self.folder, &self.method, stem));
            // What is no part of this kind of module stands for itself.
            let is_read = module.as_ref().is_some_and(|module| is_activation || module.reads(part));
            names.insert(if is_read { format!("{stem}.weight") } else { name.to_owned() });
        }
        names.into_iter().collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.module(name).is_some() || TensorSource::contains(&self.folder, name)
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        match self.module(&spec.name) {
            Some(module) => module.info(&spec.shape).map(Some),
            None => TensorSource::info(&self.folder, spec),
        }
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor> {
        match self.module(&spec.name) {
            Some(module) => module.read(&spec.shape),
            None => TensorSource::tensor(&self.folder, spec),
        }
    }

    fn is_lost(&self, name: &str) -> bool {
        let stem = name.strip_suffix(".weight");
        let part_is_lost =
            |stem: &str| PARTS.iter().any(|part| self.folder.is_lost(&format!("{stem}.{part}")));
        self.folder.is_lost(name) || stem.is_some_and(part_is_lost)
    }

    fn parts(&self, spec: &TensorSpec) -> Vec<StoredPart> {
        let stem = spec.name.strip_suffix(".weight").filter(|_| self.module(&spec.name).is_some());
        let beside = stem.into_iter().flat_map(|stem| PARTS.map(|part| format!("{stem}.{part}")));
        let names = std::iter::once(spec.name.clone()).chain(beside);
        names.filter_map(|name| self.folder.part(&name)).collect()
    }

    fn headers(&self) -> Vec<TensorBytes> {
        TensorSource::headers(&self.folder)
    }

    fn files(&self) -> Vec<(std::path::PathBuf, u64)> {
        TensorSource::files(&self.folder)
    }

    fn notes(&self) -> Vec<Finding> {
        TensorSource::notes(&self.folder)
    }
}
