//! Algorithms of cuBLASLt that were measured to be faster than its first answers.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quire_kernels::DType;
use serde::{Deserialize, Serialize};

/// What `quire tune-kernels` found on one device with one version of cuBLASLt: products of matrices, each with an
/// algorithm and what it gains. It means nothing on another device or with another version.
///
/// ```
/// use quire_kernels_cuda::KernelTuning;
///
/// let text = r#"{ "format": 1, "device": "some GPU", "compute_capability": [9, 0], "num_sms": 132,
///                 "cublaslt": 130100, "products": [] }"#;
/// assert!(KernelTuning::parse(text)?.products.is_empty());
/// # Ok::<(), quire_kernels_cuda::TuningError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KernelTuning {
    /// Of the file: [`FORMAT`](Self::FORMAT).
    pub(crate) format: u32,
    /// The device's name.
    pub device: String,
    /// Its major and minor version.
    pub compute_capability: (u32, u32),
    /// Its multiprocessors.
    pub num_sms: u32,
    /// The library's version, e.g. 130100.
    pub cublaslt: usize,
    /// The products for which something faster than the library's first answer was found.
    pub products: Vec<TunedProduct>,
}

/// A product, and the algorithm for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TunedProduct {
    /// The product.
    #[serde(flatten)]
    pub product: ProductShape,
    /// `cublasLtMatmulAlgo_t`, 64 bytes in hexadecimal.
    #[serde(with = "hex")]
    pub(crate) algo: [u64; 8],
    /// What it is, in words.
    pub algorithm: String,
    /// What the library's first answer is, in words.
    pub first_answer: String,
    /// Microseconds that the first answer takes.
    pub before_us: f64,
    /// Microseconds that this algorithm takes.
    pub after_us: f64,
}

/// `[num_tokens, columns] × [rows, columns]ᵀ`, with a bias perhaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProductShape {
    /// Rows of the weight, hence elements of an output.
    pub rows: usize,
    /// Columns of the weight, hence elements of an input.
    pub columns: usize,
    /// Inputs.
    pub num_tokens: usize,
    /// Type of weight and input.
    #[serde(with = "dtype")]
    pub dtype: DType,
    /// Type of the output.
    #[serde(with = "dtype")]
    pub out_dtype: DType,
    /// Whether a bias of the output's type is added.
    pub has_bias: bool,
}

/// What is wrong with a file of tuned algorithms.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// It cannot be read.
    #[error("the kernel tuning {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("the kernel tuning {} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("the kernel tuning {} cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<TuningError>,
    },
    /// It is no such file.
    #[error("this is no kernel tuning that `quire tune-kernels` wrote")]
    Syntax(#[source] serde_json::Error),
    /// It was written by a program of another time.
    #[error("the kernel tuning has format {given}, expected {expected}: run `quire tune-kernels` again")]
    Format {
        /// Its format.
        given: u32,
        /// That of this program.
        expected: u32,
    },
}

impl KernelTuning {
    /// The format that this program writes and reads.
    pub const FORMAT: u32 = 1;

    /// For a device and a library, without any product.
    #[cfg(feature = "cuda")]
    pub(crate) fn new(device: String, compute_capability: (u32, u32), num_sms: u32, cublaslt: usize) -> Self {
        Self { format: Self::FORMAT, device, compute_capability, num_sms, cublaslt, products: Vec::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`TuningError`].
    pub fn read(path: &Path) -> Result<Self, TuningError> {
        let text =
            fs::read_to_string(path).map_err(|source| TuningError::Read { path: path.to_owned(), source })?;
        let named = |source| TuningError::File { path: path.to_owned(), source: Box::new(source) };
        Self::parse(&text).map_err(named)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// [`TuningError::Syntax`], [`TuningError::Format`].
    pub fn parse(text: &str) -> Result<Self, TuningError> {
        /// What every format has.
        #[derive(Deserialize)]
        struct Any {
            format: u32,
        }
        let Any { format: given } = serde_json::from_str(text).map_err(TuningError::Syntax)?;
        match Self::FORMAT {
            expected if given != expected => Err(TuningError::Format { given, expected }),
            _ => serde_json::from_str(text).map_err(TuningError::Syntax),
        }
    }

    /// Writes a file, which holds the old contents or the new ones.
    ///
    /// # Errors
    ///
    /// [`TuningError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), TuningError> {
        let text = serde_json::to_string_pretty(self).expect("numbers and texts") + "\n";
        let written = if is_special(path) { fs::write(path, text) } else { replace(path, &text) };
        written.map_err(|source| TuningError::Write { path: path.to_owned(), source })
    }

    /// Whether [`write`](Self::write) can be expected to work, before anything is measured. What is there stays.
    ///
    /// # Errors
    ///
    /// [`TuningError::Write`].
    pub fn check_writable(path: &Path) -> Result<(), TuningError> {
        let tried = if is_special(path) {
            fs::File::options().append(true).open(path).map(drop)
        } else {
            new_beside(path).and_then(|(new, _)| fs::remove_file(new))
        };
        tried.map_err(|source| TuningError::Write { path: path.to_owned(), source })
    }

    /// FNV-1a of what results depend on: the products and their algorithms.
    pub fn digest(&self) -> u64 {
        let text = |tuned: &TunedProduct| format!("{:?}{:?}\n", tuned.product, tuned.algo);
        self.products
            .iter()
            .map(text)
            .collect::<String>()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
    }
}

/// Whether something is there that is written to rather than replaced, such as /dev/stdout; a folder refuses.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// Puts a new file in the place of an old one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let (new, mut file) = new_beside(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

/// An empty file in the same folder, under a name that was free.
fn new_beside(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
    let mut number = std::process::id();
    loop {
        let new = path.with_file_name(format!(".{name}.{number}"));
        match fs::File::create_new(&new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number = number.wrapping_add(1),
            file => return Ok((new, file?)),
        }
    }
}

/// Dtypes by name.
mod dtype {
    use quire_kernels::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| D::Error::custom(format!("unknown dtype {name}")))
    }
}

/// Words in hexadecimal.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(words: &[u64; 8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&words.map(|word| format!("{word:016x}")).concat())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u64; 8], D::Error> {
        let text = String::deserialize(from)?;
        let refused = || D::Error::custom("an algorithm is 128 hexadecimal digits");
        let mut words = [0; 8];
        if text.len() != 128 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        for (i, word) in words.iter_mut().enumerate() {
            *word = u64::from_str_radix(&text[16 * i..16 * (i + 1)], 16).map_err(|_| refused())?;
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning() -> KernelTuning {
        let product = ProductShape {
            rows: 4608,
            columns: 3584,
            num_tokens: 64,
            dtype: DType::BF16,
            out_dtype: DType::F32,
            has_bias: true,
        };
        let tuned = TunedProduct {
            product,
            algo: [1, u64::MAX, 3, 4, 5, 6, 7, 0xabc],
            algorithm: "algorithm 66".to_owned(),
            first_answer: "algorithm 67".to_owned(),
            before_us: 12.5,
            after_us: 11.25,
        };
        KernelTuning {
            format: KernelTuning::FORMAT,
            device: "some GPU".to_owned(),
            compute_capability: (9, 0),
            num_sms: 132,
            cublaslt: 130_100,
            products: vec![tuned],
        }
    }

    #[test]
    fn a_file_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning.json");
        tuning().write(&path).unwrap();
        assert_eq!(KernelTuning::read(&path).unwrap(), tuning());
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["tuning.json"]);
    }

    #[test]
    fn no_other_file_is_overwritten_and_a_place_that_cannot_be_written_is_told_early() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("tuning.json"), folder.path().join("tuning.new"));
        fs::write(&other, "another's").unwrap();
        fs::write(&path, "old").unwrap();
        KernelTuning::check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        tuning().write(&path).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "another's");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let below_a_file = path.join("tuning.json");
        for wrong in [folder.path(), Path::new("/nowhere/tuning.json"), &below_a_file, Path::new("/")] {
            let text = KernelTuning::check_writable(wrong).unwrap_err().to_string();
            assert!(text.contains(&format!("{} cannot be written", wrong.display())), "{text}");
            assert!(tuning().write(wrong).is_err());
        }
        KernelTuning::check_writable(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn another_algorithm_is_another_digest_and_another_time_is_not() {
        let mut other = tuning();
        other.products[0].after_us = 1.0;
        assert_eq!(other.digest(), tuning().digest());
        other.products[0].algo[7] ^= 1;
        assert_ne!(other.digest(), tuning().digest());
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut serde_json::Value), part: &str) {
        let mut value = serde_json::to_value(tuning()).unwrap();
        change(&mut value);
        let error = KernelTuning::parse(&value.to_string()).unwrap_err();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        assert!(text.contains(part), "{part} in: {text}");
    }

    #[test]
    fn what_is_not_such_a_file_is_refused_with_the_reason() {
        check_refused(|value| value["format"] = 2.into(), "has format 2, expected 1");
        check_refused(
            |value| *value = serde_json::json!({ "format": 2, "tables": [] }),
            "has format 2, expected 1",
        );
        check_refused(|value| value["products"][0]["algo"] = "12".into(), "128 hexadecimal digits");
        check_refused(|value| value["products"][0]["algo"] = "ä".repeat(64).into(), "128 hexadecimal digits");
        check_refused(|value| value["products"][0]["dtype"] = "bf17".into(), "unknown dtype bf17");
        check_refused(|value| value["products"][0]["rows"] = (-1).into(), "`-1`");
        check_refused(|value| *value = "text".into(), "no kernel tuning");
        let garbage = tempfile::NamedTempFile::new().unwrap();
        fs::write(garbage.path(), "garbage").unwrap();
        let error = KernelTuning::read(garbage.path()).unwrap_err();
        assert!(error.to_string().contains(&garbage.path().display().to_string()), "{error}");
        let missing = KernelTuning::read(Path::new("/nowhere/tuning.json")).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/tuning.json"));
    }
}
