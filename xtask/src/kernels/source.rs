//! Kernel families: one `.cu` file each, with the headers that it includes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::{Error, Result};

/// A `.cu` file and what was read from it.
///
/// Two markers in line comments are read from the `.cu` file itself: `// hot: NAME ...` lists kernels that must not
/// spill registers (`*` stands for any letters), and `// nvcc: FLAG ...` adds compiler flags to this family.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// The file's name without its ending.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Patterns of the kernels that are marked hot.
    pub(crate) hot: Vec<String>,
    /// Flags of this family alone.
    pub(crate) flags: Vec<String>,
    /// The file, less the lines that mark hot kernels since they change no image, and the headers that it includes
    /// with quotes, at any depth: name and bytes.
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Family {
    /// The families of a folder, by name.
    pub(crate) fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoFamily(folder.into()));
            }
            entries => entries.map_err(Error::io(folder))?,
        };
        let mut paths: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
            .collect();
        paths.sort();
        if paths.is_empty() {
            return Err(Error::NoFamily(folder.into()));
        }
        paths.iter().map(|path| Self::read(path, folder)).collect()
    }

    fn read(path: &Path, folder: &Path) -> Result<Self> {
        let is_plain =
            |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let name = path.file_stem().and_then(|stem| stem.to_str()).filter(is_plain);
        let name = name.ok_or_else(|| Error::FamilyName(path.into()))?.to_owned();
        let text = fs::read_to_string(path).map_err(Error::io(path))?;
        let (hot, flags) = (markers(&text, "hot:"), markers(&text, "nvcc:"));
        let mut files = BTreeMap::new();
        collect(path, folder, &mut files)?;
        files.insert(relative(path, folder), without_marker(&text, "hot:").into_bytes());
        Ok(Self { name, path: path.into(), hot, flags, files })
    }
}

/// The words after `// KEY` on any line.
fn markers(text: &str, key: &str) -> Vec<String> {
    let words =
        text.lines().filter_map(|line| marker(line, key)).flat_map(|words| words.split([' ', ',', '\t']));
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn without_marker(text: &str, key: &str) -> String {
    text.split_inclusive('\n').filter(|line| marker(line, key).is_none()).collect()
}

/// What follows `// KEY` on a line of that form.
fn marker<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.trim().strip_prefix("//")?.trim_start().strip_prefix(key)
}

/// Reads a file and what it includes. A header that is not there is left to nvcc: it may be the toolkit's.
fn collect(path: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let name = relative(path, folder);
    if files.contains_key(&name) {
        return Ok(());
    }
    let bytes = fs::read(path).map_err(Error::io(path))?;
    let headers = includes(&String::from_utf8_lossy(&bytes));
    files.insert(name, bytes);
    for header in headers {
        let beside = path.parent().unwrap_or(folder).join(&header);
        if let Some(found) = [beside, folder.join(&header)].iter().find(|path| path.is_file()) {
            collect(found, folder, files)?;
        }
    }
    Ok(())
}

fn relative(path: &Path, folder: &Path) -> PathBuf {
    path.strip_prefix(folder).unwrap_or(path).to_owned()
}

/// The names in `#include "NAME"`.
fn includes(text: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
        Some(rest.trim_start().strip_prefix('"')?.split_once('"')?.0.to_owned())
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_family_has_its_headers_at_any_depth_and_no_others() {
        let folder = folder(&[
            (
                "norm.cu",
                "#include \"common.cuh\"\n  # include \"deep/a.cuh\"\n#include <cuda_bf16.h>\n#include \"cuda.h\"",
            ),
            ("common.cuh", "#include \"norm_math.cuh\""),
            ("norm_math.cuh", "#include \"common.cuh\""),
            ("deep/a.cuh", "#include \"b.cuh\"\n#include \"common.cuh\""),
            ("deep/b.cuh", ""),
            ("other.cuh", ""),
        ]);
        let families = Family::read_all(folder.path()).unwrap();
        let names: Vec<_> = families[0].files.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(families.len(), 1);
        assert_eq!(names, ["common.cuh", "deep/a.cuh", "deep/b.cuh", "norm.cu", "norm_math.cuh"]);
    }

    #[test]
    fn markers_are_read_from_line_comments() {
        let text = "// hot: rms_norm_bf16, rms_norm_f16\n//hot: add_*\nint hot; // not hot: x\n// nvcc: --use_fast_math\n";
        let folder = folder(&[("norm.cu", text), ("a.cuh", "// hot: of_the_header")]);
        let family = &Family::read_all(folder.path()).unwrap()[0];
        assert_eq!(family.hot, ["rms_norm_bf16", "rms_norm_f16", "add_*"]);
        assert_eq!(family.flags, ["--use_fast_math"]);
    }

    #[test]
    fn a_folder_without_families_and_a_name_with_a_dot_are_refused() {
        let empty = folder(&[("a.cuh", "")]);
        assert!(matches!(Family::read_all(empty.path()), Err(Error::NoFamily(_))));
        assert!(matches!(Family::read_all(&empty.path().join("none")), Err(Error::NoFamily(_))));
        let dotted = folder(&[("norm.v2.cu", "")]);
        assert!(matches!(Family::read_all(dotted.path()), Err(Error::FamilyName(_))));
    }
}
