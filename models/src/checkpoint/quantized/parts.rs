//! The tensors of a quantized module, by their names behind the module's.

use std::path::PathBuf;

use quire_kernels::{DType, quant};

use crate::error::{Error, Result};
use crate::mmap::TensorBytes;
use crate::safetensors::{SafetensorsFolder, StoredDType};

/// What there is of a module, and what it should be.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) folder: &'a SafetensorsFolder,
    /// The module's name.
    pub(super) stem: &'a str,
}

impl<'a> Parts<'a> {
    pub(super) fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.stem)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.file(name).unwrap_or(self.folder.path()).to_owned()
    }

    pub(super) fn has(&self, part: &str) -> bool {
        self.folder.entry(&self.name(part)).is_some()
    }

    /// Whether a part is there that the others mean something else without.
    pub(super) fn require(&self, part: &str) -> Result<()> {
        self.shape(part).map(drop)
    }

    pub(super) fn shape(&self, part: &str) -> Result<&'a [usize]> {
        let name = self.name(part);
        match self.folder.entry(&name) {
            Some(entry) => Ok(entry.shape()),
            None => Err(self.missing(name)),
        }
    }

    fn dtype(&self, part: &str) -> Result<&'a StoredDType> {
        let name = self.name(part);
        self.folder.entry(&name).map(|entry| entry.dtype()).ok_or_else(|| self.missing(name))
    }

    /// The shape of a part that is a matrix of this dtype.
    pub(super) fn matrix(&self, part: &str, dtype: DType) -> Result<[usize; 2]> {
        self.check_dtype(part, dtype)?;
        match *self.shape(part)? {
            [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            _ => Err(self.wrong_shape(part, &[1, 1])),
        }
    }

    pub(super) fn expect(&self, part: &str, shape: &[usize]) -> Result<()> {
        self.float_dtype(part)?;
        if self.shape(part)? == shape { Ok(()) } else { Err(self.wrong_shape(part, shape)) }
    }

    pub(super) fn expect_of(&self, part: &str, shape: &[usize], dtype: DType) -> Result<()> {
        self.check_dtype(part, dtype)?;
        if self.shape(part)? == shape { Ok(()) } else { Err(self.wrong_shape(part, shape)) }
    }

    fn check_dtype(&self, part: &str, dtype: DType) -> Result<()> {
        let given = self.dtype(part)?;
        if *given == StoredDType::Known(dtype) { Ok(()) } else { Err(self.wrong_dtype(part, dtype.name())) }
    }

    pub(super) fn float_dtype(&self, part: &str) -> Result<DType> {
        match self.dtype(part)? {
            StoredDType::Known(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => Ok(*dtype),
            _ => Err(self.wrong_dtype(part, "f32, f16 or bf16")),
        }
    }

    pub(super) fn floats(&self, part: &str) -> Result<Vec<f32>> {
        Ok(quant::decode(self.float_dtype(part)?, &self.bytes(part)?))
    }

    pub(super) fn bytes(&self, part: &str) -> Result<TensorBytes> {
        let name = self.name(part);
        self.folder.bytes(&name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn wrong_shape(&self, part: &str, expected: &[usize]) -> Error {
        let tensor = self.name(part);
        let given = self.shape(part).unwrap_or_default().to_vec();
        Error::TensorShape { path: self.path(&tensor), tensor, expected: expected.to_vec(), given }
    }

    fn wrong_dtype(&self, part: &str, expected: &str) -> Error {
        let tensor = self.name(part);
        let given = self.dtype(part).map_or_else(|_| String::new(), ToString::to_string);
        Error::TensorDType { path: self.path(&tensor), tensor, given, expected: expected.to_owned() }
    }

    fn missing(&self, tensor: String) -> Error {
        Error::MissingTensor { tensor, path: self.folder.path().to_owned() }
    }
}
