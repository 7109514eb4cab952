//! The folder that downloads and built peers are kept in.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// `$QUIRE_CACHE`, else `quire` under the user's cache folder: the same as the program's own.
pub(crate) fn folder() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("QUIRE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|home| home.join("quire")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("quire")))
        .ok_or(Error::NoCacheFolder)?;
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    Ok(folder)
}
