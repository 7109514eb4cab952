//! Layers that see a window of the context only.

use super::MAX_LAYERS;
use super::dialect::Windows;
use super::fields::Fields;

/// What `Qwen2Config` of the reference assumes.
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Attention that reaches back a fixed number of tokens, in some layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Tokens a position sees, itself included.
    pub num_tokens: usize,
    /// For each layer, whether it is limited.
    pub layers: Vec<bool>,
}

impl SlidingWindow {
    /// Files say it in four ways: a list of layer types, a switch with the first limited layer, every how many-th layer
    /// is not limited, or the window alone.
    pub(super) fn from_json(fields: Fields<'_>, windows: Windows, num_layers: usize) -> Option<Self> {
        let num_tokens = fields.size("sliding_window").filter(|&tokens| tokens > 0)?;
        let is_switched_off = fields.boolean("use_sliding_window") == Some(false);
        if windows == Windows::Ignored || is_switched_off {
            return None;
        }
        let num_layers = num_layers.min(MAX_LAYERS);
        let layers = layer_types(fields, num_layers).unwrap_or_else(|| unlisted(fields, windows, num_layers));
        let has_any = layers.contains(&true);
        if windows == Windows::Refused && has_any {
            fields.refuse("use_sliding_window", "true", "false for this architecture");
        }
        has_any.then_some(Self { num_tokens, layers })
    }

    /// All layers but every `pattern`-th; all where it is 0.
    pub(super) fn all_but_every(pattern: usize, num_layers: usize) -> Vec<bool> {
        let is_limited = |layer: usize| pattern == 0 || !(layer + 1).is_multiple_of(pattern);
        (0..num_layers.min(MAX_LAYERS)).map(is_limited).collect()
    }
}

fn layer_types(fields: Fields<'_>, num_layers: usize) -> Option<Vec<bool>> {
    const FIELD: &str = "layer_types";
    let types = fields.strings(FIELD)?;
    if let Some(other) = types.iter().find(|kind| ![SLIDING, FULL].contains(kind)) {
        fields.refuse(FIELD, format!("{other:?}"), format!("{SLIDING:?} or {FULL:?}"));
    }
    if types.len() != num_layers {
        let given = format!("a list of {}", types.len());
        fields.refuse(FIELD, given, format!("num_hidden_layers = {num_layers}"));
    }
    Some(types.iter().map(|kind| *kind == SLIDING).collect())
}

fn unlisted(fields: Fields<'_>, windows: Windows, num_layers: usize) -> Vec<bool> {
    let is_switched_on = fields.boolean("use_sliding_window") == Some(true);
    match windows {
        Windows::Ignored => vec![false; num_layers],
        Windows::Pattern => {
            let pattern = fields.size("sliding_window_pattern").unwrap_or(0);
            SlidingWindow::all_but_every(pattern, num_layers)
        }
        // The switch's default in the reference is off.
        Windows::Upper if !is_switched_on => vec![false; num_layers],
        Windows::Upper => {
            let first = fields.size("max_window_layers").unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
            (0..num_layers).map(|layer| layer >= first).collect()
        }
        Windows::Refused => vec![is_switched_on; num_layers],
        Windows::All => vec![true; num_layers],
    }
}
