//! Finding nvcc.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{Error, Result};
use super::target::{Release, Target};

/// A CUDA toolkit that has been asked for its version.
#[derive(Debug)]
pub(crate) struct Toolkit {
    pub(crate) nvcc: PathBuf,
    /// Where it was found, in words.
    pub(crate) origin: String,
    pub(crate) release: Release,
    /// What `nvcc --version` prints, whole: two builds that differ may compile differently.
    pub(crate) version: String,
}

/// Where toolkits are looked for; the environment, but for tests.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) cuda_home: Option<OsString>,
    pub(crate) cuda_path: Option<OsString>,
    pub(crate) path: Option<OsString>,
    pub(crate) default: PathBuf,
    /// A toolkit that pip brought earlier.
    pub(crate) cached: Option<PathBuf>,
}

impl Places {
    pub(crate) fn of_environment(cached: Option<PathBuf>) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        Self {
            cuda_home: variable("CUDA_HOME"),
            cuda_path: variable("CUDA_PATH"),
            path: variable("PATH"),
            default: "/usr/local/cuda".into(),
            cached,
        }
    }

    /// The first of: `CUDA_HOME`, `CUDA_PATH`, `PATH`, the system's folder, the one that pip brought.
    ///
    /// A variable that names a folder without nvcc is a fault rather than passed over.
    pub(crate) fn find(&self) -> Result<Toolkit> {
        for (name, value) in [("CUDA_HOME", &self.cuda_home), ("CUDA_PATH", &self.cuda_path)] {
            if let Some(folder) = value {
                return Toolkit::at(Path::new(folder), &format!("{name}={}", folder.display()));
            }
        }
        if let Some(nvcc) = self.program("nvcc") {
            return Toolkit::ask(nvcc, "PATH".to_owned());
        }
        if nvcc_in(&self.default).is_file() {
            return Toolkit::at(&self.default, &self.default.display().to_string());
        }
        match &self.cached {
            Some(folder) => Toolkit::at(folder, "brought by pip"),
            None => Err(Error::NoToolkit { default: self.default.clone() }),
        }
    }

    /// A program of `PATH`.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        let folders = std::env::split_paths(self.path.as_ref()?).collect::<Vec<_>>();
        folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}

impl Toolkit {
    /// The toolkit in a folder, or the one whose nvcc is named.
    pub(crate) fn at(place: &Path, origin: &str) -> Result<Self> {
        let nvcc = if place.is_file() { place.to_owned() } else { nvcc_in(place) };
        if !nvcc.is_file() {
            return Err(Error::NoNvcc { source_name: origin.to_owned(), nvcc });
        }
        Self::ask(nvcc, origin.to_owned())
    }

    fn ask(nvcc: PathBuf, origin: String) -> Result<Self> {
        let output = Command::new(&nvcc).arg("--version").output();
        let output = output.map_err(|source| Error::BrokenNvcc { nvcc: nvcc.clone(), source })?;
        let [version, stderr] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        if !output.status.success() {
            return Err(Error::FailingNvcc { nvcc, status: output.status, stderr });
        }
        match parse_release(&version) {
            Some(release) => Ok(Self { nvcc, origin, release, version }),
            None => {
                let said = if version.is_empty() { stderr } else { version };
                Err(Error::UnknownNvcc { nvcc, output: said })
            }
        }
    }

    /// Whether this nvcc knows the targets.
    pub(crate) fn check(&self, targets: &[Target]) -> Result<()> {
        let Some(new) = targets.iter().find(|target| target.since > self.release) else { return Ok(()) };
        let known: Vec<_> =
            targets.iter().filter(|target| target.since <= self.release).map(|target| target.name).collect();
        let rest = if known.is_empty() { "sm_80".to_owned() } else { known.join(",") };
        Err(Error::OldNvcc { given: self.release, target: new.name, needed: new.since, rest })
    }
}

fn nvcc_in(folder: &Path) -> PathBuf {
    folder.join("bin").join("nvcc")
}

/// The release in `Cuda compilation tools, release 13.0, V13.0.88`.
fn parse_release(text: &str) -> Option<Release> {
    let number = text.split_once("release ")?.1.split([',', '\n']).next()?;
    let (major, minor) = number.trim().split_once('.')?;
    Some(Release(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeNvcc;
    use super::*;

    fn places(default: &Path) -> Places {
        Places { default: default.to_owned(), ..Places::default() }
    }

    #[test]
    fn the_release_is_read_from_what_nvcc_prints() {
        let text = "Copyright\nCuda compilation tools, release 12.8, V12.8.61\nBuild cuda_12.8";
        assert_eq!(parse_release(text), Some(Release(12, 8)));
        assert_eq!(parse_release("release soon"), None);
    }

    #[test]
    fn toolkits_are_found_in_the_documented_order() {
        let [home, path, program, system, cached] = [(); 5].map(|()| FakeNvcc::new("13.0"));
        let mut all = places(system.root());
        all.cached = Some(cached.root().into());
        all.path = Some(program.root().join("bin").into());
        all.cuda_path = Some(path.root().into());
        all.cuda_home = Some(home.root().into());
        let found = |places: &Places| places.find().unwrap().nvcc;
        assert_eq!(found(&all), home.nvcc());
        all.cuda_home = None;
        assert_eq!(found(&all), path.nvcc());
        all.cuda_path = None;
        assert_eq!(found(&all), program.nvcc());
        all.path = None;
        assert_eq!(found(&all), system.nvcc());
        all.default = "/nowhere".into();
        assert_eq!(found(&all), cached.nvcc());
    }

    #[test]
    fn no_toolkit_names_the_command_that_brings_one() {
        let text = places(Path::new("/nowhere")).find().unwrap_err().to_string();
        assert!(text.contains("--toolkit pip") && text.contains("/nowhere"), "{text}");
    }

    #[test]
    fn a_variable_that_names_no_toolkit_is_a_fault() {
        let system = FakeNvcc::new("13.0");
        let mut wrong = places(system.root());
        wrong.cuda_home = Some("/nowhere".into());
        let text = wrong.find().unwrap_err().to_string();
        assert!(text.contains("CUDA_HOME=/nowhere") && text.contains("/nowhere/bin/nvcc"), "{text}");
    }

    #[test]
    fn an_old_nvcc_is_told_from_the_targets_it_lacks() {
        let old = FakeNvcc::new("12.4");
        let toolkit = Toolkit::at(old.root(), "here").unwrap();
        let targets = Target::parse_list(&["sm_80", "sm_90a", "sm_120"]).unwrap();
        let text = toolkit.check(&targets).unwrap_err().to_string();
        assert!(text.contains("nvcc 12.4 knows no sm_120") && text.contains("12.8"), "{text}");
        assert!(text.contains("--arch sm_80,sm_90a"), "{text}");
        toolkit.check(&targets[..2]).unwrap();
    }

    #[test]
    fn an_nvcc_that_cannot_be_run_or_is_something_else_is_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let nvcc = folder.path().join("nvcc");
        std::fs::write(&nvcc, "no program").unwrap();
        let text = Toolkit::at(&nvcc, "--toolkit").unwrap_err().to_string();
        assert!(text.contains("cannot be run"), "{text}");
        let failing = FakeNvcc::failing("libfoo.so is missing");
        let text = Toolkit::at(failing.root(), "--toolkit").unwrap_err().to_string();
        assert!(text.contains("--version ended with exit status: 1"), "{text}");
        assert!(text.contains("said: libfoo.so is missing; reinstall"), "{text}");
        let text = Toolkit::at(Path::new("/bin/echo"), "--toolkit").unwrap_err().to_string();
        assert!(text.contains("says no release"), "{text}");
    }
}
