//! The environment: read once at start, checked for misspelt names.

use std::collections::BTreeMap;

/// Names that mean something to Quire, beside those of other programs (`HF_*`, `RUST_LOG`, `HOME`, ...).
const KNOWN: &[&str] = &[
    "QUIRE_CACHE",
    "QUIRE_CUDA_KERNELS",
    "QUIRE_CUDA_LIBRARIES",
    "QUIRE_LLAMA_CPP_BIN",
    "QUIRE_LOG",
    "QUIRE_NVTX",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_API_KEY",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S",
    "VLLM_LOGGING_LEVEL",
    "VLLM_NO_USAGE_STATS",
    "VLLM_PORT",
];

/// How the names begin that only tests read.
const OF_TESTS: &str = "QUIRE_TEST_";

/// Names that launch scripts set for vLLM and that nothing here obeys yet, each with what to do instead.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "there are no adapters yet"),
    ("VLLM_ATTENTION_BACKEND", "the backend is chosen by --device"),
    ("VLLM_CACHE_ROOT", "models are kept under QUIRE_CACHE"),
    ("VLLM_CONFIGURE_LOGGING", "logging is set by QUIRE_LOG or --log-level"),
    ("VLLM_HOST_IP", "the address to listen on is --host"),
    ("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "the server answers 503 then, and stays"),
    ("VLLM_LOGGING_CONFIG_PATH", "logging is set by QUIRE_LOG or --log-level"),
    ("VLLM_SERVER_DEV_MODE", "its routes are always there, behind the API key"),
    ("VLLM_USE_MODELSCOPE", "models come from the Hugging Face hub; give a folder for any other source"),
    ("VLLM_USE_V1", "there is one engine"),
];

/// A snapshot of the environment. Whatever reads a variable reads it here, so tests bring their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    vars: BTreeMap<String, String>,
}

impl Env {
    /// The environment of the process. Variables that are not UTF-8 are left out.
    pub(crate) fn of_process() -> Self {
        let vars = std::env::vars_os();
        Self {
            vars: vars.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect(),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(vars: &[(&str, &str)]) -> Self {
        Self { vars: vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect() }
    }

    /// A variable's value; an empty one counts as not set.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The same with a variable set.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut vars = self.vars.clone();
        vars.insert(name.to_owned(), value.to_owned());
        Self { vars }
    }

    /// All variables.
    pub(crate) fn vars(&self) -> impl Iterator<Item = (String, String)> {
        self.vars.iter().map(|(name, value)| (name.clone(), value.clone()))
    }

    /// Whether a switch such as `HF_HUB_OFFLINE` is on: `1`, `true`, `yes` or `on`, in any case.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        let on = ["1", "true", "yes", "on"];
        self.get(name).is_some_and(|value| on.contains(&value.to_ascii_lowercase().as_str()))
    }

    /// What to warn of: names of ours that nothing knows, and names of vLLM's that have no effect here.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.vars.keys().filter_map(|name| warning(name)).collect()
    }
}

fn warning(name: &str) -> Option<String> {
    let is_ours = name.starts_with("VLLM_") || name.starts_with("QUIRE_");
    if !is_ours || name.starts_with(OF_TESTS) || KNOWN.contains(&name) {
        return None;
    }
    if let Some((_, why)) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
        return Some(format!("{name} has no effect: {why}"));
    }
    let known = KNOWN.iter().copied().chain(WITHOUT_EFFECT.iter().map(|(known, _)| *known));
    let nearest = nearest(name, known).map(|nearest| format!("; the nearest is {nearest}"));
    Some(format!("{name} is not a name that Quire knows{}", nearest.unwrap_or_default()))
}

/// The candidate that fewest edits turn into `name`, the first of equals; none where all are other words rather than
/// the same one misspelt. The beginning that all names share is no likeness.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let own_len = name.split_once('_').map_or(name, |(_, own)| own).chars().count();
    let most = (own_len / 3).max(2);
    let distances = candidates.map(|candidate| (edit_distance(name, candidate), candidate));
    distances
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Levenshtein distance (Wagner and Fischer, 1974), a row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, distance) in
            [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
            assert_eq!(edit_distance(b, a), distance, "{b} {a}");
        }
    }

    #[test]
    fn a_misspelt_name_is_told_the_nearest_one() {
        let env = Env::of(&[("VLLM_CPU_KVCACHE_SPAC", "4"), ("QUIRE_CACHE", "/q"), ("PATH", "/bin")]);
        let warnings = env.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("the nearest is VLLM_CPU_KVCACHE_SPACE"), "{warnings:?}");
    }

    #[test]
    fn names_that_some_part_reads_are_known() {
        for name in ["QUIRE_NVTX", "QUIRE_CUDA_LIBRARIES", "QUIRE_TEST_CUDA", "QUIRE_TEST_GOLDEN"] {
            assert_eq!(Env::of(&[(name, "1")]).warnings(), [""; 0], "{name}");
        }
    }

    #[test]
    fn a_name_like_no_other_is_told_none() {
        for name in ["VLLM_SOMETHING_ELSE", "QUIRE_X", "VLLM_FOO"] {
            let warnings = Env::of(&[(name, "1")]).warnings();
            assert_eq!(warnings, [format!("{name} is not a name that Quire knows")]);
        }
    }

    #[test]
    fn a_name_of_vllm_without_effect_says_why() {
        let warnings = Env::of(&[("VLLM_USE_V1", "1")]).warnings();
        assert_eq!(warnings, ["VLLM_USE_V1 has no effect: there is one engine"]);
    }

    #[test]
    fn a_switch_is_on_only_where_it_says_so() {
        for (value, on) in [("1", true), ("True", true), ("0", false), ("", false), ("no", false)] {
            assert_eq!(Env::of(&[("HF_HUB_OFFLINE", value)]).is_on("HF_HUB_OFFLINE"), on, "{value}");
        }
    }
}
