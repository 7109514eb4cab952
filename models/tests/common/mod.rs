//! What several test files need.

#![allow(dead_code)] // Not every file needs everything.

pub(crate) mod naive;
pub(crate) mod runner;

use std::error::Error as _;
use std::path::PathBuf;

use quire_models::{Checkpoint, Error, LoadOptions, ModelRegistry, Result, WeightSummary};

/// Opens and checks a checkpoint, as a start does before any memory is reserved.
pub(crate) fn open_and_check(path: &std::path::Path) -> Result<WeightSummary> {
    let checkpoint = Checkpoint::open(path, &LoadOptions::default())?;
    let registry = ModelRegistry::default();
    let architecture = registry.find(&checkpoint.config().architecture)?;
    checkpoint.check(&architecture.tensors(&checkpoint)?)
}

/// The message and its causes, as the command line prints them.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Checks that an error's chain says all of `expected`.
pub(crate) fn assert_says(error: &Error, expected: &[&str]) {
    let text = chain(error);
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// A model of the cache, by alias; `None`, said aloud, where it has not been fetched.
pub(crate) fn cached_model(alias: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("QUIRE_CACHE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/quire")))?;
    let path = cache.join("models").join(format!("{alias}.gguf"));
    if !path.exists() {
        eprintln!("skipped: {} is not there (cargo xtask fetch-models)", path.display());
        return None;
    }
    Some(path)
}

/// A file of the repository's golden folder.
pub(crate) fn golden(name: &str) -> serde_json::Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}
