//! One quantized linear layer.

use quire_kernels::{DType, quant};

use super::{missing, unpack};
use crate::checkpoint::{HostScales, HostTensor, TensorInfo};
use crate::config::Quantization;
use crate::error::{Error, Result};
use crate::mmap::TensorBytes;
use crate::safetensors::{SafetensorsFolder, StoredDType};

const WORD_BITS: usize = 32;

/// A module of a folder that has the tensors of a method.
pub(super) struct Module<'a> {
    folder: &'a SafetensorsFolder,
    stem: &'a str,
    kind: Kind,
}

/// How its elements lie.
#[derive(Clone, Copy)]
enum Kind {
    Gptq {
        bits: u32,
        group_size: Option<usize>,
        zeros_less_one: bool,
    },
    Awq {
        group_size: Option<usize>,
    },
    /// Rows of words.
    Packed,
    /// An element a byte, with scales named so.
    Bytes {
        dtype: DType,
        scale: &'static str,
        block: Option<[usize; 2]>,
    },
}

/// What the headers say of a module: all that reading it needs.
struct Layout {
    dtype: DType,
    rows: usize,
    columns: usize,
    block: [usize; 2],
    num_scales: usize,
    has_zeros: bool,
}

impl<'a> Module<'a> {
    /// The module called `stem`, if it has the tensors of a quantized one.
    pub(super) fn find(folder: &'a SafetensorsFolder, method: &Quantization, stem: &'a str) -> Option<Self> {
        let has = |part: &str| folder.entry(&format!("{stem}.{part}")).is_some();
        let bytes = |block| {
            let StoredDType::Known(dtype) = *folder.entry(&format!("{stem}.weight"))?.dtype() else {
                return None;
            };
            let is_byte = matches!(dtype, DType::I8 | DType::F8E4M3 | DType::F8E5M2);
            // Without scales it is a dense weight that happens to have 8 bits; integers mean nothing alone.
            let scale = ["weight_scale", "weight_scale_inv"].into_iter().find(|part| has(part));
            let scale = scale.or((dtype == DType::I8).then_some("weight_scale"))?;
            is_byte.then_some(Kind::Bytes { dtype, scale, block })
        };
        let kind = match *method {
            Quantization::Gptq { bits, group_size, zeros_less_one } => {
                has("qweight").then_some(Kind::Gptq { bits, group_size, zeros_less_one })
            }
            Quantization::Awq { group_size } => has("qweight").then_some(Kind::Awq { group_size }),
            Quantization::Fp8 { block } => bytes(block),
            Quantization::CompressedTensors { block } => {
                has("weight_packed").then_some(Kind::Packed).or_else(|| bytes(block))
            }
        };
        kind.map(|kind| Self { folder, stem, kind })
    }

    /// The tensor with its elements.
    pub(super) fn stored_name(&self) -> String {
        self.name(match self.kind {
            Kind::Gptq { .. } | Kind::Awq { .. } => "qweight",
            Kind::Packed => "weight_packed",
            Kind::Bytes { .. } => "weight",
        })
    }

    /// What there is to know before it is read. `wanted` is the shape that the model needs.
    pub(super) fn info(&self, wanted: &[usize]) -> Result<TensorInfo> {
        let layout = self.layout(wanted)?;
        let bytes_per_scale = size_of::<f32>() + usize::from(layout.has_zeros);
        Ok(TensorInfo {
            dtype: layout.dtype,
            shape: vec![layout.rows, layout.columns],
            path: self.path(&self.stored_name()),
            scale_bytes: Some(bytes_per_scale * layout.num_scales),
        })
    }

    pub(super) fn read(&self, wanted: &[usize]) -> Result<HostTensor> {
        let layout = self.layout(wanted)?;
        let (bytes, scales) = match self.kind {
            Kind::Gptq { bits, zeros_less_one, .. } => self.read_gptq(&layout, bits, zeros_less_one)?,
            Kind::Awq { .. } => self.read_awq(&layout)?,
            Kind::Packed => self.read_packed(&layout)?,
            Kind::Bytes { scale, .. } => self.read_bytes(&layout, scale)?,
        };
        let shape = vec![layout.rows, layout.columns];
        Ok(HostTensor { dtype: layout.dtype, shape, bytes, scales: Some(scales) })
    }

    fn read_gptq(
        &self,
        layout: &Layout,
        bits: u32,
        zeros_less_one: bool,
    ) -> Result<(TensorBytes, HostScales)> {
        let Layout { rows, columns, .. } = *layout;
        let groups = columns.div_ceil(layout.block[1]);
        let row_bytes = columns * bits as usize / 8;
        let elements = unpack::gptq(&self.bytes("qweight")?, rows, row_bytes);
        let scales = self.floats("scales")?;
        let zeros = unpack::gptq_zeros(&self.bytes("qzeros")?, rows, groups, bits, zeros_less_one);
        let scales = HostScales {
            block: layout.block,
            scales: unpack::transposed(rows, groups, |group, row| scales[group * rows + row]),
            zeros: Some(zeros),
            column_groups: self.column_groups("g_idx", layout)?,
        };
        Ok((TensorBytes::Owned(elements), scales))
    }

    fn read_awq(&self, layout: &Layout) -> Result<(TensorBytes, HostScales)> {
        let Layout { rows, columns, .. } = *layout;
        let groups = columns.div_ceil(layout.block[1]);
        let scales = self.floats("scales")?;
        let elements = unpack::awq(&self.bytes("qweight")?, rows, columns);
        let scales = HostScales {
            block: layout.block,
            scales: unpack::transposed(rows, groups, |group, row| scales[group * rows + row]),
            zeros: Some(unpack::awq_zeros(&self.bytes("qzeros")?, rows, groups)),
            column_groups: None,
        };
        Ok((TensorBytes::Owned(elements), scales))
    }

    /// Integers are stored with an offset that makes them unsigned, which is the zero point of symmetric ones.
    fn read_packed(&self, layout: &Layout) -> Result<(TensorBytes, HostScales)> {
        let bits = if layout.dtype == DType::U4 { 4 } else { 8 };
        let words = self.bytes("weight_packed")?;
        let row_bytes = layout.columns * bits as usize / 8;
        let elements = match words.len() == layout.rows * row_bytes {
            true => words,
            false => TensorBytes::Owned(unpack::cut_rows(&words, layout.rows, row_bytes)),
        };
        let groups = layout.columns.div_ceil(layout.block[1]);
        let zeros = match self.has("weight_zero_point") {
            true => unpack::packed_zeros(&self.bytes("weight_zero_point")?, layout.rows, groups, bits),
            false => vec![1 << (bits - 1); layout.num_scales],
        };
        let scales = HostScales {
            block: layout.block,
            scales: self.floats("weight_scale")?,
            zeros: Some(zeros),
            column_groups: self.column_groups("weight_g_idx", layout)?,
        };
        Ok((elements, scales))
    }

    /// Signed integers with zero points become unsigned ones, both moved up by 128.
    fn read_bytes(&self, layout: &Layout, scale: &str) -> Result<(TensorBytes, HostScales)> {
        let mut elements = self.bytes("weight")?;
        let mut zeros = None;
        if layout.has_zeros {
            let moved = |bytes: &[u8]| bytes.iter().map(|byte| byte ^ 0x80).collect::<Vec<u8>>();
            zeros = Some(moved(&self.bytes("weight_zero_point")?));
            elements = TensorBytes::Owned(moved(&elements));
        }
        let scales =
            HostScales { block: layout.block, scales: self.floats(scale)?, zeros, column_groups: None };
        Ok((elements, scales))
    }

    /// Checks the shapes of all parts against each other.
    fn layout(&self, wanted: &[usize]) -> Result<Layout> {
        match self.kind {
            Kind::Gptq { bits, group_size, .. } => self.gptq_layout(bits, group_size),
            Kind::Awq { group_size } => self.awq_layout(group_size),
            Kind::Packed => self.packed_layout(wanted),
            Kind::Bytes { dtype, scale, block } => self.bytes_layout(dtype, scale, block),
        }
    }

    fn gptq_layout(&self, bits: u32, group_size: Option<usize>) -> Result<Layout> {
        let per_word = WORD_BITS / bits as usize;
        let [words, rows] = self.matrix("qweight", DType::I32)?;
        let columns = words.saturating_mul(per_word);
        let group_size = group_size.unwrap_or(columns).max(1);
        let groups = columns.div_ceil(group_size);
        self.expect("scales", &[groups, rows])?;
        self.expect_of("qzeros", &[groups, rows / per_word], DType::I32)?;
        if self.has("g_idx") {
            self.expect_of("g_idx", &[columns], DType::I32)?;
        }
        if !rows.is_multiple_of(per_word) {
            return Err(self.wrong_shape("qweight", &[words, rows.next_multiple_of(per_word)]));
        }
        let dtype = if bits == 4 { DType::U4 } else { DType::U8 };
        let num_scales = groups * rows;
        Ok(Layout { dtype, rows, columns, block: [1, group_size], num_scales, has_zeros: true })
    }

    fn awq_layout(&self, group_size: Option<usize>) -> Result<Layout> {
        const PER_WORD: usize = 8;
        let [columns, words] = self.matrix("qweight", DType::I32)?;
        let rows = words.saturating_mul(PER_WORD);
        let group_size = group_size.unwrap_or(columns).max(1);
        let groups = columns.div_ceil(group_size);
        self.expect("scales", &[groups, rows])?;
        self.expect_of("qzeros", &[groups, words], DType::I32)?;
        if !columns.is_multiple_of(2) {
            return Err(self.wrong_shape("qweight", &[columns.next_multiple_of(2), words]));
        }
        let num_scales = groups * rows;
        Ok(Layout { dtype: DType::U4, rows, columns, block: [1, group_size], num_scales, has_zeros: true })
    }

    /// How many columns fill the words is said by `weight_shape`; where it is not there, by the model's need.
    fn packed_layout(&self, wanted: &[usize]) -> Result<Layout> {
        let [rows, words] = self.matrix("weight_packed", DType::I32)?;
        let columns = match self.has("weight_shape") {
            true => {
                self.expect_of("weight_shape", &[2], DType::I64)?;
                let shape = self.bytes("weight_shape")?;
                let last = shape.last_chunk::<8>().expect("two numbers of 8 bytes were checked");
                usize::try_from(i64::from_le_bytes(*last)).unwrap_or(0)
            }
            false => wanted.last().copied().unwrap_or(0),
        };
        let fits = |per_word: usize| columns > 0 && words == columns.div_ceil(per_word);
        let dtype = match (fits(8), fits(4)) {
            (true, _) => DType::U4,
            (_, true) => DType::U8,
            _ => return Err(self.wrong_shape("weight_packed", &[rows, columns.div_ceil(8)])),
        };
        if dtype == DType::U4 && !columns.is_multiple_of(2) {
            return Err(self.wrong_shape("weight_packed", &[rows, columns.next_multiple_of(2) / 8]));
        }
        let block = self.block_of("weight_scale", rows, columns, None)?;
        let num_scales = rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
        if self.has("weight_zero_point") {
            let per_word = if dtype == DType::U4 { 8 } else { 4 };
            self.expect_of(
                "weight_zero_point",
                &[rows.div_ceil(per_word), columns.div_ceil(block[1])],
                DType::I32,
            )?;
        }
        if self.has("weight_g_idx") {
            self.expect_of("weight_g_idx", &[columns], DType::I32)?;
        }
        Ok(Layout { dtype, rows, columns, block, num_scales, has_zeros: true })
    }

    fn bytes_layout(&self, dtype: DType, scale: &str, block: Option<[usize; 2]>) -> Result<Layout> {
        let [rows, columns] = self.matrix("weight", dtype)?;
        let block = self.block_of(scale, rows, columns, block)?;
        let num_scales = rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
        let has_zeros = dtype == DType::I8 && self.has("weight_zero_point");
        if has_zeros {
            let shape = self.shape(scale)?.to_vec();
            self.expect_of("weight_zero_point", &shape, DType::I8)?;
        }
        let dtype = if has_zeros { DType::U8 } else { dtype };
        Ok(Layout { dtype, rows, columns, block, num_scales, has_zeros })
    }

    /// What shares a scale, from the shape of the scales: one number, one a row, groups of a row; or from `given`.
    fn block_of(
        &self,
        part: &str,
        rows: usize,
        columns: usize,
        given: Option<[usize; 2]>,
    ) -> Result<[usize; 2]> {
        self.float_dtype(part)?;
        let shape = self.shape(part)?;
        if let Some(block) = given {
            self.expect(part, &[rows.div_ceil(block[0]), columns.div_ceil(block[1])])?;
            return Ok(block);
        }
        match *shape {
            [] | [1] | [1, 1] => Ok([rows.max(1), columns.max(1)]),
            [n] | [n, 1] if n == rows => Ok([1, columns.max(1)]),
            [n, groups] if n == rows && groups > 0 && columns.is_multiple_of(groups) => {
                Ok([1, columns / groups])
            }
            _ => Err(self.wrong_shape(part, &[rows, 1])),
        }
    }

    /// The group of each column; `None` where they lie in order.
    fn column_groups(&self, part: &str, layout: &Layout) -> Result<Option<Vec<u32>>> {
        if !self.has(part) {
            return Ok(None);
        }
        let num_groups = layout.columns.div_ceil(layout.block[1]);
        let bytes = self.bytes(part)?;
        let numbers = bytes.as_chunks::<4>().0.iter().map(|raw| i32::from_le_bytes(*raw));
        let groups = numbers.map(|number| match u32::try_from(number) {
            Ok(group) if (group as usize) < num_groups => Ok(group),
            // compressed-tensors writes -1 everywhere for "not set".
            _ => Err(number),
        });
        match groups.collect::<Result<Vec<u32>, i32>>() {
            Ok(groups) => {
                let in_order = |(column, &group): (usize, &u32)| column / layout.block[1] == group as usize;
                Ok((!groups.iter().enumerate().all(in_order)).then_some(groups))
            }
            Err(-1) => Ok(None),
            Err(given) => Err(Error::ColumnGroup {
                tensor: self.name(part),
                path: self.path(&self.name(part)),
                given: given.into(),
                num_groups,
            }),
        }
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.stem)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.file(name).unwrap_or(self.folder.path()).to_owned()
    }

    fn has(&self, part: &str) -> bool {
        self.folder.entry(&self.name(part)).is_some()
    }

    fn shape(&self, part: &str) -> Result<&'a [usize]> {
        let name = self.name(part);
        match self.folder.entry(&name) {
            Some(entry) => Ok(entry.shape()),
            None => Err(missing(self.folder, name)),
        }
    }

    fn dtype(&self, part: &str) -> Result<&'a StoredDType> {
        let name = self.name(part);
        self.folder.entry(&name).map(|entry| entry.dtype()).ok_or_else(|| missing(self.folder, name))
    }

    /// The shape of a part that is a matrix of this dtype.
    fn matrix(&self, part: &str, dtype: DType) -> Result<[usize; 2]> {
        self.check_dtype(part, dtype)?;
        match *self.shape(part)? {
            [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            _ => Err(self.wrong_shape(part, &[1, 1])),
        }
    }

    fn expect(&self, part: &str, shape: &[usize]) -> Result<()> {
        self.float_dtype(part)?;
        if self.shape(part)? == shape { Ok(()) } else { Err(self.wrong_shape(part, shape)) }
    }

    fn expect_of(&self, part: &str, shape: &[usize], dtype: DType) -> Result<()> {
        self.check_dtype(part, dtype)?;
        if self.shape(part)? == shape { Ok(()) } else { Err(self.wrong_shape(part, shape)) }
    }

    fn check_dtype(&self, part: &str, dtype: DType) -> Result<()> {
        let given = self.dtype(part)?;
        if *given == StoredDType::Known(dtype) { Ok(()) } else { Err(self.wrong_dtype(part, dtype.name())) }
    }

    fn float_dtype(&self, part: &str) -> Result<DType> {
        match self.dtype(part)? {
            StoredDType::Known(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => Ok(*dtype),
            _ => Err(self.wrong_dtype(part, "f32, f16 or bf16")),
        }
    }

    fn floats(&self, part: &str) -> Result<Vec<f32>> {
        Ok(quant::decode(self.float_dtype(part)?, &self.bytes(part)?))
    }

    fn bytes(&self, part: &str) -> Result<TensorBytes> {
        let name = self.name(part);
        self.folder.bytes(&name).ok_or_else(|| missing(self.folder, name))
    }

    fn wrong_shape(&self, part: &str, expected: &[usize]) -> Error {
        let tensor = self.name(part);
        let given = self.shape(part).unwrap_or_default().to_vec();
        Error::TensorShape { path: self.path(&tensor), tensor, expected: expected.to_vec(), given }
    }

    fn wrong_dtype(&self, part: &str, expected: &str) -> Error {
        let tensor = self.name(part);
        let given = self.dtype(part).map_or_else(|_| String::new(), ToString::to_string);
        Error::TensorDType { path: self.path(&tensor), tensor, given, expected: expected.to_owned() }
    }
}
