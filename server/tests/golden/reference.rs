//! The reference files of `tests/golden`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// What the reference implementation gave for one model.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
pub(crate) struct GoldenPrompt {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) token_ids: Vec<u32>,
    pub(crate) prompt_logprob_sum: f64,
    pub(crate) last_logits_top20: Vec<(u32, f64)>,
    pub(crate) greedy_ids: Vec<u32>,
    pub(crate) greedy_gap_top1_top2: Vec<f64>,
    pub(crate) max_abs_logit_difference: LogitDifference,
}

/// How far logits are from float32's, in the reference implementation itself.
#[derive(Deserialize)]
pub(crate) struct LogitDifference {
    pub(crate) bfloat16: f64,
}

#[derive(Deserialize)]
pub(crate) struct TokenizerCases {
    pub(crate) cases: Vec<TokenizerCase>,
}

#[derive(Deserialize)]
pub(crate) struct TokenizerCase {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    /// Where decoding does not give the text back.
    pub(crate) decoded: Option<String>,
    pub(crate) ids_specials_as_text: Option<Vec<u32>>,
}

/// Reads `tests/golden/{name}.json` of the repository, or of the folder that `QUIRE_TEST_GOLDEN` names on a machine
/// without one.
pub(crate) fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let of_repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let folder = std::env::var_os("QUIRE_TEST_GOLDEN").map_or_else(of_repository, PathBuf::from);
    let path = folder.join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The model that the variable names; says so where it names none and the test is skipped.
pub(crate) fn model(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: {variable} names no model (`cargo xtask test` fetches it)");
    }
    path
}
