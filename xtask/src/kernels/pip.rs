//! `--toolkit pip`: the compiler's packages, unpacked into the cache folder.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::build::lock;
use super::error::Error as KernelsError;
use crate::cache;
use crate::error::{Error, Result};
use crate::print::note;
use crate::wheel;

/// A wheel for Linux on x86-64.
struct Package {
    name: &'static str,
    sha256: &'static str,
}

/// The compiler and what it includes, of one release. Nothing of it is installed: wheels are zip files.
const PACKAGES: [Package; 5] = [
    Package {
        name: "nvidia-cuda-nvcc==13.0.88",
        sha256: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    },
    Package {
        name: "nvidia-cuda-runtime==13.0.96",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    },
    Package {
        name: "nvidia-cuda-cccl==13.0.85",
        sha256: "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",
    },
    Package {
        name: "nvidia-cuda-crt==13.0.88",
        sha256: "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
    },
    Package {
        name: "nvidia-nvvm==13.0.88",
        sha256: "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
    },
];

/// Where the wheels keep the toolkit's root.
const ROOT_IN_WHEELS: &str = "nvidia/cu13";
/// Written last, so that a folder with it is whole; it holds [`contents`].
const MARKER: &str = "packages.txt";

/// The toolkit in the cache folder, if it is there and whole.
pub(crate) fn cached() -> Option<PathBuf> {
    folder().ok().filter(|folder| is_whole(folder))
}

/// Brings the toolkit unless it is there. What an interrupted call left is done anew.
pub(crate) fn bring() -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(KernelsError::NoPinnedToolkit.into());
    }
    let folder = folder()?;
    let no_pip = |source| KernelsError::NoPip { source: Box::new(source) };
    bring_into(&folder, |package| Ok(wheel::download(package.name).map_err(no_pip)?))?;
    Ok(folder)
}

fn folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("cuda-toolkit-13.0"))
}

/// Unpacks into a folder beside, which takes its name when it is whole.
fn bring_into(folder: &Path, download: impl Fn(&Package) -> Result<PathBuf>) -> Result<()> {
    let beside = |ending: &str| PathBuf::from(format!("{}.{ending}", folder.display()));
    let _lock = lock(&beside("lock")).map_err(Error::io(beside("lock")))?;
    if is_whole(folder) {
        return Ok(());
    }
    note!("bringing a CUDA toolkit: {} packages, 105 MB, 271 MB unpacked", PACKAGES.len());
    let partial = beside("partial");
    remove(&partial)?;
    for package in &PACKAGES {
        let wheel = download(package)?;
        let unpacked = wheel::check(&wheel, package.sha256).and_then(|()| unpack(&wheel, &partial));
        // A wheel that is broken must not be found by the next call either.
        fs::remove_file(&wheel).map_err(Error::io(&wheel))?;
        // Its own folder goes with it, where nothing else lies in it.
        let _ = wheel.parent().map(fs::remove_dir);
        unpacked?;
    }
    fs::write(partial.join(MARKER), contents()).map_err(Error::io(&partial))?;
    remove(folder)?;
    fs::rename(&partial, folder).map_err(Error::io(folder))
}

fn contents() -> String {
    PACKAGES.iter().map(|package| format!("{} {}\n", package.name, package.sha256)).collect()
}

fn is_whole(folder: &Path) -> bool {
    fs::read_to_string(folder.join(MARKER)).is_ok_and(|text| text == contents())
}

/// Unpacks the toolkit's part of a wheel. Programs are made so, since wheels need not keep that.
fn unpack(wheel: &Path, target: &Path) -> Result<()> {
    let mut archive = wheel::open(wheel)?;
    for i in 0..archive.len() {
        let mut member = archive.by_index(i).map_err(wheel::broken(wheel))?;
        let Some(name) = member.enclosed_name() else { continue };
        let Ok(name) = name.strip_prefix(ROOT_IN_WHEELS) else { continue };
        let path = target.join(name);
        if member.is_dir() {
            continue;
        }
        let parent = path.parent().expect("a member lies in the folder");
        fs::create_dir_all(parent).map_err(Error::io(parent))?;
        let mut file = File::create(&path).map_err(Error::io(&path))?;
        io::copy(&mut member, &mut file).map_err(Error::io(&path))?;
        if is_program(name) {
            make_executable(&path)?;
        }
    }
    Ok(())
}

/// `bin/nvcc`, `nvvm/bin/cicc`; not what lies in folders below.
fn is_program(name: &Path) -> bool {
    name.parent().and_then(|parent| parent.components().next_back())
        == Some(Component::Normal("bin".as_ref()))
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(Error::io(path))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<()> {
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn wheel_with(path: &Path, members: &[(&str, &str)]) {
        let mut archive = zip::ZipWriter::new(File::create(path).unwrap());
        for (name, text) in members {
            archive.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(text.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
    }

    #[test]
    fn a_wheel_gives_its_toolkit_part_with_programs_that_run() {
        let folder = tempfile::tempdir().unwrap();
        let (wheel, target) = (folder.path().join("a.whl"), folder.path().join("toolkit"));
        let members = [
            ("nvidia/cu13/bin/nvcc", "#!/bin/sh\necho it runs\n"),
            ("nvidia/cu13/bin/crt/link.stub", "data"),
            ("nvidia/cu13/include/cuda.h", "header"),
            ("nvidia_cuda_nvcc-13.0.88.dist-info/RECORD", "not of the toolkit"),
            ("nvidia/cu13/../../../escaped", "outside"),
        ];
        wheel_with(&wheel, &members);
        unpack(&wheel, &target).unwrap();
        let output =
            crate::process::output(&mut std::process::Command::new(target.join("bin/nvcc"))).unwrap();
        assert_eq!(output, "it runs\n");
        assert_eq!(fs::read_to_string(target.join("include/cuda.h")).unwrap(), "header");
        let mut names: Vec<_> =
            fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["bin", "include"]);
        assert!(!folder.path().join("escaped").exists());
    }

    #[test]
    fn a_wheel_with_another_hash_is_refused_and_leaves_no_toolkit() {
        let folder = tempfile::tempdir().unwrap();
        let (wheel, target) = (folder.path().join("a.whl"), folder.path().join("cuda-13.0"));
        wheel_with(&wheel, &[("nvidia/cu13/bin/nvcc", "forged")]);
        let text = bring_into(&target, |_| Ok(wheel.clone())).unwrap_err().to_string();
        assert!(text.contains("SHA-256"), "{text}");
        assert!(!target.exists() && !wheel.exists());
    }

    #[test]
    fn what_works_without_pip_or_a_network_is_told() {
        let source = Error::Start { program: "python3".to_owned(), source: io::ErrorKind::NotFound.into() };
        let text = KernelsError::NoPip { source: Box::new(source) }.to_string();
        for part in ["python3 cannot be started", "pip", "network", "--toolkit PATH", "CUDA_HOME"] {
            assert!(text.contains(part), "{part} in: {text}");
        }
    }

    #[test]
    fn a_whole_toolkit_is_left_as_it_is_and_one_cut_off_is_brought_anew() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("cuda-13.0");
        fs::create_dir(&target).unwrap();
        let absent = |package: &Package| {
            let (package, folder) = (package.name.to_owned(), folder.path().to_owned());
            Err(Error::NoWheel { package, folder })
        };
        assert!(matches!(bring_into(&target, absent), Err(Error::NoWheel { .. })));
        fs::write(target.join(MARKER), "nvidia-cuda-nvcc==12.8.61 0\n").unwrap();
        assert!(matches!(bring_into(&target, absent), Err(Error::NoWheel { .. })));
        fs::write(target.join(MARKER), contents()).unwrap();
        bring_into(&target, absent).unwrap();
    }
}
