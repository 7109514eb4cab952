//! Models in several files, as llama.cpp splits them: `NAME-00001-of-00003.gguf` and so on.

use std::path::{Path, PathBuf};

use super::{GgufError, Metadata};

/// Digits of a number in a name.
const DIGITS: usize = 5;
const END: &str = ".gguf";
const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const NUM_TENSORS: &str = "split.tensors.count";

/// What a file of several says of itself.
pub(super) struct Split {
    /// Which one it is, from 0.
    pub(super) number: u64,
    /// How many there are, at least two.
    pub(super) count: u64,
    /// Tensors of all of them, where it says so.
    pub(super) num_tensors: Option<u64>,
}

impl Split {
    /// `None` for a model in one file.
    pub(super) fn of(metadata: Metadata<'_>) -> Result<Option<Self>, GgufError> {
        let Some(count) = metadata.unsigned(COUNT)?.filter(|&count| count > 1) else { return Ok(None) };
        let number = metadata.unsigned(NUMBER)?;
        let number = number.ok_or_else(|| GgufError::MissingKey { field: NUMBER.to_owned() })?;
        Ok(Some(Self { number, count, num_tensors: metadata.unsigned(NUM_TENSORS)? }))
    }

    /// Whether the file that says so can be the one of this name.
    pub(super) fn check(&self, name: &PartName<'_>) -> Result<(), GgufError> {
        let contradiction = |field: &str, given, tensors, counted| {
            Err(GgufError::Contradiction { field: field.to_owned(), given, tensors, counted })
        };
        if self.count != name.count {
            return contradiction(COUNT, self.count, "the files by their names", name.count);
        }
        if self.number.saturating_add(1) != name.number {
            let expected = name.number - 1;
            return contradiction(
                NUMBER,
                self.number,
                "the files in front of this one, by its name,",
                expected,
            );
        }
        Ok(())
    }

    /// Whether there are as many tensors as it says.
    pub(super) fn check_tensors(&self, counted: usize) -> Result<(), GgufError> {
        match self.num_tensors {
            Some(given) if given != counted as u64 => Err(GgufError::Contradiction {
                field: NUM_TENSORS.to_owned(),
                given,
                tensors: "the tensors of all files together",
                counted: counted as u64,
            }),
            _ => Ok(()),
        }
    }
}

/// The files of the model that `path` is one file of, by their names: `path` alone where its name is not one of several.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    match PartName::of(path) {
        Some(name) => (1..=name.count).map(|number| name.sibling(number)).collect(),
        None => vec![path.to_owned()],
    }
}

/// The name of one file of several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartName<'a> {
    path: &'a Path,
    stem: &'a str,
    /// Which one it is, from 1.
    pub(super) number: u64,
    /// How many there are.
    pub(super) count: u64,
}

impl<'a> PartName<'a> {
    /// `None` for a name of another form.
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(END)?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let read = |digits: &str| {
            let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number)
        };
        let (number, count) = (read(number)?, read(count)?);
        (1..=count).contains(&number).then_some(Self { path, stem, number, count })
    }

    /// The file of another number, beside this one.
    pub(super) fn sibling(&self, number: u64) -> PathBuf {
        let Self { stem, count, .. } = self;
        self.path.with_file_name(format!("{stem}-{number:0DIGITS$}-of-{count:0DIGITS$}{END}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_siblings() {
        let path = Path::new("/models/a-of-b-00002-of-00013.gguf");
        let name = PartName::of(path).expect("it is one of thirteen");
        assert_eq!((name.stem, name.number, name.count), ("a-of-b", 2, 13));
        assert_eq!(name.sibling(2), path);
        assert_eq!(name.sibling(13), Path::new("/models/a-of-b-00013-of-00013.gguf"));
        let files = files_of(Path::new("x/a-00002-of-00002.gguf"));
        assert_eq!(files, ["x/a-00001-of-00002.gguf", "x/a-00002-of-00002.gguf"].map(PathBuf::from));
        assert_eq!(files_of(Path::new("x/a.gguf")), [PathBuf::from("x/a.gguf")]);
    }

    #[test]
    fn names_of_another_form_are_none() {
        for name in [
            "model.gguf",
            "00001-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-00003-of-00002.gguf",
            "a-00000-of-00002.gguf",
            "a-+0001-of-00002.gguf",
            "a-00001-of-00002.bin",
        ] {
            assert_eq!(PartName::of(Path::new(name)), None, "{name}");
        }
    }
}
