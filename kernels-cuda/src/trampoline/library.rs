//! Shared libraries that are loaded at run time.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::NonNull;

use crate::Error;

/// A folder (or several, separated by colons) in which libraries are looked for first.
const FOLDERS_VARIABLE: &str = "QUIRE_CUDA_LIBRARIES";

/// A loaded shared library; it stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
    name: String,
}

// SAFETY: the handle is a token for dlsym, which may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above; a shared handle only looks symbols up.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the first of `names` that there is.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`] with all places that were tried, and what is wrong with each.
    pub(crate) fn open(library: &'static str, names: &[&str]) -> Result<Self, Error> {
        Self::open_in(&std::env::var(FOLDERS_VARIABLE).unwrap_or_default(), library, names)
    }

    /// The same; looks in `folders` first.
    fn open_in(folders: &str, library: &'static str, names: &[&str]) -> Result<Self, Error> {
        let mut tried = Vec::new();
        for name in candidates(folders, names) {
            match load(&name) {
                Ok(handle) => return Ok(Self { handle, name }),
                Err(message) => tried.push(place(&name, &message)),
            }
        }
        Err(Error::NoLibrary { library, tried: tried.join("; ") })
    }

    /// The file that was loaded.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The address of a function.
    pub(crate) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is that of a library that is never unloaded, the name ends with a zero.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// The names, before them their like in the folders that the user named.
fn candidates(folders: &str, names: &[&str]) -> Vec<String> {
    let plain = names.iter().filter(|name| !name.starts_with('/'));
    let in_folders = folders.split(':').filter(|folder| !folder.is_empty());
    let mut all: Vec<String> = in_folders
        .flat_map(|folder| plain.clone().map(move |name| format!("{}/{name}", folder.trim_end_matches('/'))))
        .collect();
    all.extend(names.iter().map(|&name| name.to_owned()));
    all
}

/// A place and what is wrong there; the loader's message begins with the file it is about, which may be another that
/// this one needs.
fn place(name: &str, message: &str) -> String {
    let is_absent = name.contains('/') && !Path::new(name).exists();
    match message.strip_prefix(name) {
        _ if is_absent => format!("{name}: not there"),
        Some(_) => message.to_owned(),
        None => format!("{name}: {message}"),
    }
}

fn load(name: &str) -> Result<NonNull<c_void>, String> {
    let name = CString::new(name).map_err(|_| "the name holds a zero byte".to_owned())?;
    // SAFETY: the name ends with a zero; the initializers of NVIDIA's libraries ask nothing of us.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).ok_or_else(|| {
        // SAFETY: no argument; the text lives until this thread's next call of the family.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return "unknown error of the loader".to_owned();
        }
        // SAFETY: not null, and a text that ends with a zero.
        unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_names_what_was_tried() {
        let error = Library::open("a test", &["libquire-none.so.1", "/nowhere/libquire.so"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("libquire-none.so.1: cannot open shared object file"), "{text}");
        assert!(text.contains("; /nowhere/libquire.so: not there)"), "{text}");
    }

    #[test]
    fn each_place_is_told_with_its_own_reason() {
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("libquire-none.so.1");
        std::fs::write(&broken, "no library").unwrap();
        let folders = format!("/nowhere:{}/", folder.path().display());
        let error = Library::open_in(&folders, "a test", &["libquire-none.so.1", "/elsewhere/libquire.so"]);
        let text = error.unwrap_err().to_string();
        let broken = format!("; {}: ", broken.display());
        let (_, reason) = text.split_once(&broken).unwrap_or_else(|| panic!("{broken} in: {text}"));
        assert!(!reason.starts_with("not there") && !reason.starts_with("cannot open"), "{text}");
        for part in [
            "/nowhere/libquire-none.so.1: not there; ",
            "; libquire-none.so.1: cannot open shared object file",
            "; /elsewhere/libquire.so: not there",
        ] {
            assert!(text.contains(part), "{part} in: {text}");
        }
    }

    #[test]
    fn a_library_that_is_there_gives_its_symbols() {
        let library = Library::open("the C library", &["libquire-none.so", "libc.so.6"]).unwrap();
        assert_eq!(library.name(), "libc.so.6");
        assert!(library.symbol("strlen").is_some());
        assert!(library.symbol("quire_no_such_function").is_none());
    }
}
