//! One family compiled for one target, as files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::source::Family;
use super::target::Target;
use super::toolkit::Toolkit;

/// An image to be: `norm.sm_90a.cubin`, what the compiler said in `norm.sm_90a.log`, and `norm.sm_90a.stamp`.
#[derive(Clone, Debug)]
pub(crate) struct Image<'a> {
    pub(crate) family: &'a Family,
    pub(crate) target: Target,
    folder: &'a Path,
    toolkit: &'a Toolkit,
    flags: Vec<String>,
    /// Sources, flags and compiler, as a hash.
    key: String,
    /// The sources alone.
    source_key: String,
}

/// What is known of an image that has been compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Built {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
}

/// What nvcc answered.
pub(crate) enum Outcome {
    Built { built: Built, warnings: String },
    Failed { messages: String },
}

impl<'a> Image<'a> {
    /// `common` are the flags of all families.
    pub(crate) fn new(
        family: &'a Family,
        target: Target,
        toolkit: &'a Toolkit,
        common: &[String],
        folder: &'a Path,
    ) -> Self {
        let flags: Vec<String> = [common, &family.flags, &target.nvcc_flags()].concat();
        let (key, source_key) = (key(family, &flags, &toolkit.version), key(family, &family.flags, ""));
        Self { family, target, folder, toolkit, flags, key, source_key }
    }

    /// `norm sm_90a`, as messages name it.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.family.name, self.target.name)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.{}", self.family.name, self.target.file_suffix()))
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path().with_extension("log")
    }

    fn stamp(&self) -> PathBuf {
        self.path().with_extension("stamp")
    }

    /// The image of an earlier call, where sources, flags and compiler are the same and its files are whole.
    pub(crate) fn up_to_date(&self) -> Option<Built> {
        let stamp = self.read_stamp()?;
        let built = self.last_build()?;
        let is_whole = fs::metadata(self.path()).ok()?.len() == built.bytes && self.log().is_file();
        (stamp["key"] == self.key.as_str() && is_whole).then_some(built)
    }

    /// What an earlier call took, whatever has changed since.
    pub(crate) fn last_build(&self) -> Option<Built> {
        let stamp = self.read_stamp()?;
        Some(Built { seconds: stamp["seconds"].as_f64()?, bytes: stamp["bytes"].as_u64()? })
    }

    /// Deletes the image, if there is one, unless it was made of the sources as they are.
    pub(crate) fn remove_if_outdated(&self) -> Result<bool> {
        let is_current = self.read_stamp().is_some_and(|stamp| stamp["sources"] == self.source_key.as_str());
        if is_current || !self.path().exists() {
            return Ok(false);
        }
        self.remove().map(|()| true)
    }

    /// Deletes the image and what belongs to it.
    pub(crate) fn remove(&self) -> Result<()> {
        [self.stamp(), self.path(), self.log()].iter().try_for_each(|path| remove(path))
    }

    fn read_stamp(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.stamp()).ok()?).ok()
    }

    /// Compiles into the folder `partial`, and moves the files to their places once they are whole. The stamp goes
    /// first and comes last, so a build that is cut off is begun anew.
    pub(crate) fn compile(&self, partial: &Path) -> Result<Outcome> {
        let started = Instant::now();
        let output_path = partial.join(self.path().file_name().expect("an image has a name"));
        let mut nvcc = Command::new(&self.toolkit.nvcc);
        nvcc.args(&self.flags)
            .arg("-I")
            .arg(self.source_folder())
            .arg(&self.family.path)
            .arg("-o")
            .arg(&output_path);
        let output = nvcc.output();
        let output =
            output.map_err(|source| Error::BrokenNvcc { nvcc: self.toolkit.nvcc.clone(), source })?;
        let messages = [output.stdout, output.stderr].concat();
        let messages = String::from_utf8_lossy(&messages).into_owned();
        if !output.status.success() {
            let _ = fs::remove_file(&output_path);
            return Ok(Outcome::Failed { messages: format!("{messages}nvcc ended with {}", output.status) });
        }
        let bytes = fs::metadata(&output_path).map_or(0, |metadata| metadata.len());
        if bytes == 0 {
            let nvcc = self.toolkit.nvcc.display();
            return Ok(Outcome::Failed {
                messages: format!("{messages}{nvcc} ended with success and wrote no image"),
            });
        }
        let built = Built { seconds: started.elapsed().as_secs_f64(), bytes };
        self.install(&output_path, &messages, built)?;
        Ok(Outcome::Built { built, warnings: warnings(&messages) })
    }

    fn source_folder(&self) -> &Path {
        self.family.path.parent().expect("a source lies in a folder")
    }

    fn install(&self, output: &Path, messages: &str, built: Built) -> Result<()> {
        remove(&self.stamp())?;
        let path = self.path();
        // An image that came out the same keeps its time, so that cargo has nothing to do.
        let is_same = fs::read(&path).ok() == Some(fs::read(output).map_err(Error::io(output))?);
        if is_same {
            remove(output)?;
        } else {
            fs::rename(output, &path).map_err(Error::io(&path))?;
        }
        let partial = |ending: &str| output.with_extension(ending);
        put(&partial("log"), messages, &self.log())?;
        let stamp = json!({
            "key": self.key, "sources": self.source_key, "seconds": built.seconds, "bytes": built.bytes,
        });
        put(&partial("stamp"), &stamp.to_string(), &self.stamp())
    }
}

/// Everything that the image depends on, as a hash.
fn key(family: &Family, flags: &[String], version: &str) -> String {
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(version.as_bytes());
    flags.iter().for_each(|flag| add(flag.as_bytes()));
    for (name, bytes) in &family.files {
        add(name.as_os_str().as_encoded_bytes());
        add(bytes);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a person should see of the messages of a compilation that worked.
fn warnings(messages: &str) -> String {
    let is_warning = |line: &&str| line.contains("warning") || line.contains("Performance Loss");
    messages.lines().filter(is_warning).map(|line| format!("{line}\n")).collect()
}

fn put(partial: &Path, text: &str, place: &Path) -> Result<()> {
    fs::write(partial, text).map_err(Error::io(partial))?;
    fs::rename(partial, place).map_err(Error::io(place))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn family(text: &str, header: &str) -> Family {
        let files = [("norm.cu", text), ("common.cuh", header)];
        let files = files.map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec()));
        let files = BTreeMap::from(files);
        Family { name: "norm".into(), path: "norm.cu".into(), hot: Vec::new(), flags: Vec::new(), files }
    }

    #[test]
    fn the_key_depends_on_sources_headers_flags_and_compiler_and_on_nothing_else() {
        let flags = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let first = key(&family("a", "b"), &flags(&["-O3"]), "13.0");
        let mut moved = family("a", "b");
        moved.path = "/elsewhere/norm.cu".into();
        assert_eq!(first, key(&moved, &flags(&["-O3"]), "13.0"));
        for other in [
            key(&family("A", "b"), &flags(&["-O3"]), "13.0"),
            key(&family("a", "B"), &flags(&["-O3"]), "13.0"),
            key(&family("ab", ""), &flags(&["-O3"]), "13.0"),
            key(&family("a", "b"), &flags(&["-O", "3"]), "13.0"),
            key(&family("a", "b"), &flags(&["-O3"]), "13.1"),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn warnings_are_picked_from_the_compiler_log() {
        let log = "ptxas info    : 0 bytes gmem\nx.cu(3): warning #177-D: unused\nptxas info    : Used 32 registers\n";
        assert_eq!(warnings(log), "x.cu(3): warning #177-D: unused\n");
    }
}
