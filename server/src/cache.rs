//! Where downloaded models are kept.

use std::path::PathBuf;

use crate::env::Env;

/// Quire's folder for what it fetched: `$QUIRE_CACHE`, else `$XDG_CACHE_HOME/quire`, else
/// `~/.cache/quire`. `None` where none of these names is set.
pub(crate) fn folder(env: &Env) -> Option<PathBuf> {
    if let Some(own) = env.get("QUIRE_CACHE") {
        return Some(own.into());
    }
    let parent = env.get("XDG_CACHE_HOME").map(PathBuf::from);
    let parent = parent.or_else(|| Some(PathBuf::from(env.get("HOME")?).join(".cache")));
    Some(parent?.join("quire"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(vars: &[(&str, &str)], expected: Option<&str>) {
        assert_eq!(folder(&Env::of(vars)), expected.map(PathBuf::from), "{vars:?}");
    }

    #[test]
    fn the_more_special_name_wins() {
        check(&[("HOME", "/h")], Some("/h/.cache/quire"));
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], Some("/x/quire"));
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("QUIRE_CACHE", "/q")], Some("/q"));
        check(&[("HOME", "/h"), ("QUIRE_CACHE", "")], Some("/h/.cache/quire"));
        check(&[], None);
    }
}
