//! Shared libraries that are loaded at run time.

use std::ffi::{CStr, CString, c_void};
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
    /// [`Error::NoLibrary`] with all names that were tried.
    pub(crate) fn open(library: &'static str, names: &[&str]) -> Result<Self, Error> {
        let candidates = candidates(names);
        let mut reason = String::new();
        for name in &candidates {
            match load(name) {
                Ok(handle) => return Ok(Self { handle, name: name.clone() }),
                // The first name is the usual one; what is wrong with the others matters less.
                Err(message) if reason.is_empty() => reason = message,
                Err(_) => {}
            }
        }
        Err(Error::NoLibrary { library, tried: candidates.join(", "), reason })
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
fn candidates(names: &[&str]) -> Vec<String> {
    let folders = std::env::var(FOLDERS_VARIABLE).unwrap_or_default();
    let plain = names.iter().filter(|name| !name.starts_with('/'));
    let in_folders = folders.split(':').filter(|folder| !folder.is_empty());
    let mut all: Vec<String> = in_folders
        .flat_map(|folder| plain.clone().map(move |name| format!("{}/{name}", folder.trim_end_matches('/'))))
        .collect();
    all.extend(names.iter().map(|&name| name.to_owned()));
    all
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
        assert!(text.contains("libquire-none.so.1, /nowhere/libquire.so"), "{text}");
    }

    #[test]
    fn a_library_that_is_there_gives_its_symbols() {
        let library = Library::open("the C library", &["libquire-none.so", "libc.so.6"]).unwrap();
        assert_eq!(library.name(), "libc.so.6");
        assert!(library.symbol("strlen").is_some());
        assert!(library.symbol("quire_no_such_function").is_none());
    }
}
