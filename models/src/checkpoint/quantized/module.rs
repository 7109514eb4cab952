//! One quantized linear layer.

use quire_kernels::DType;

use super::layout::Layout;
use super::parts::Parts;
use super::unpack;
use crate::checkpoint::{HostScales, HostTensor, TensorInfo};
use crate::config::Quantization;
use crate::error::{Error, Result};
use crate::mmap::TensorBytes;
use crate::safetensors::{SafetensorsFolder, StoredDType};

/// A module of a folder that has the tensors of a method.
pub(super) struct Module<'a> {
    parts: Parts<'a>,
    kind: Kind,
}

/// How its elements lie.
#[derive(Clone, Copy)]
enum Kind {
    Gptq {
        bits: u32,
        group_size: Option<usize>,
        zeros_less_one: bool,
        act_order: bool,
    },
    Awq {
        group_size: Option<usize>,
    },
    /// Rows of words.
    Packed(Said),
    /// An element a byte, with scales named so.
    Bytes {
        dtype: DType,
        scale: &'static str,
        block: Option<[usize; 2]>,
        said: Said,
    },
}

/// What the configuration says that a module has beside its elements and scales.
#[derive(Clone, Copy, Default)]
struct Said {
    has_zeros: bool,
    act_order: bool,
}

impl<'a> Module<'a> {
    /// The module called `stem`, if it has the tensors of a quantized one.
    pub(super) fn find(folder: &'a SafetensorsFolder, method: &Quantization, stem: &'a str) -> Option<Self> {
        let has = |part: &str| folder.entry(&format!("{stem}.{part}")).is_some();
        let bytes = |block: Option<[usize; 2]>, said| {
            let StoredDType::Known(dtype) = *folder.entry(&format!("{stem}.weight"))?.dtype() else {
                return None;
            };
            let is_byte = matches!(dtype, DType::I8 | DType::F8E4M3 | DType::F8E5M2);
            // Elements of 8 bits mean nothing without scales; where there are none they are missed under this name.
            let expected = if block.is_some() { "weight_scale_inv" } else { "weight_scale" };
            let scale = ["weight_scale", "weight_scale_inv"].into_iter().find(|part| has(part));
            is_byte.then_some(Kind::Bytes { dtype, scale: scale.unwrap_or(expected), block, said })
        };
        let kind = match *method {
            Quantization::Gptq { bits, group_size, zeros_less_one, act_order } => {
                has("qweight").then_some(Kind::Gptq { bits, group_size, zeros_less_one, act_order })
            }
            Quantization::Awq { group_size } => has("qweight").then_some(Kind::Awq { group_size }),
            Quantization::Fp8 { block } => bytes(block, Said::default()),
            Quantization::CompressedTensors { block, has_zeros, act_order } => {
                let said = Said { has_zeros, act_order };
                has("weight_packed").then_some(Kind::Packed(said)).or_else(|| bytes(block, said))
            }
        };
        kind.map(|kind| Self { parts: Parts { folder, stem }, kind })
    }

    /// The tensor with its elements.
    pub(super) fn stored_name(&self) -> String {
        self.parts.name(match self.kind {
            Kind::Gptq { .. } | Kind::Awq { .. } => "qweight",
            Kind::Packed(_) => "weight_packed",
            Kind::Bytes { .. } => "weight",
        })
    }

    /// What there is to know before it is read. `wanted` is the shape that the model needs.
    pub(super) fn info(&self, wanted: &[usize]) -> Result<TensorInfo> {
        let layout = self.layout(wanted)?;
        // They are small, and no other look at the tensors would find one that is wrong.
        self.column_groups(&layout)?;
        let bytes_per_scale = size_of::<f32>() + usize::from(layout.has_zeros);
        Ok(TensorInfo {
            dtype: layout.dtype,
            shape: vec![layout.rows, layout.columns],
            path: self.parts.path(&self.stored_name()),
            scale_bytes: Some(bytes_per_scale * layout.num_scales),
        })
    }

    pub(super) fn read(&self, wanted: &[usize]) -> Result<HostTensor> {
        let layout = self.layout(wanted)?;
        let (bytes, scales) = match self.kind {
            Kind::Gptq { bits, zeros_less_one, .. } => self.read_gptq(&layout, bits, zeros_less_one)?,
            Kind::Awq { .. } => self.read_awq(&layout)?,
            Kind::Packed(_) => self.read_packed(&layout)?,
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
        let groups = layout.num_groups();
        let row_bytes = columns * bits as usize / 8;
        let elements = unpack::gptq(&self.parts.bytes("qweight")?, rows, row_bytes);
        let scales = self.parts.floats("scales")?;
        let zeros = unpack::gptq_zeros(&self.parts.bytes("qzeros")?, rows, groups, bits, zeros_less_one);
        let scales = HostScales {
            block: layout.block,
            scales: unpack::transposed(rows, groups, |group, row| scales[group * rows + row]),
            zeros: Some(zeros),
            column_groups: self.column_groups(layout)?,
        };
        Ok((TensorBytes::Owned(elements), scales))
    }

    fn read_awq(&self, layout: &Layout) -> Result<(TensorBytes, HostScales)> {
        let Layout { rows, columns, .. } = *layout;
        let groups = layout.num_groups();
        let scales = self.parts.floats("scales")?;
        let elements = unpack::awq(&self.parts.bytes("qweight")?, rows, columns);
        let scales = HostScales {
            block: layout.block,
            scales: unpack::transposed(rows, groups, |group, row| scales[group * rows + row]),
            zeros: Some(unpack::awq_zeros(&self.parts.bytes("qzeros")?, rows, groups)),
            column_groups: None,
        };
        Ok((TensorBytes::Owned(elements), scales))
    }

    /// Integers are stored with an offset that makes them unsigned, which is the zero point of symmetric ones.
    fn read_packed(&self, layout: &Layout) -> Result<(TensorBytes, HostScales)> {
        let bits = if layout.dtype == DType::U4 { 4 } else { 8 };
        let words = self.parts.bytes("weight_packed")?;
        let row_bytes = layout.columns * bits as usize / 8;
        let elements = match words.len() == layout.rows * row_bytes {
            true => words,
            false => TensorBytes::Owned(unpack::cut_rows(&words, layout.rows, row_bytes)),
        };
        let groups = layout.num_groups();
        let zeros = match self.parts.has("weight_zero_point") {
            true => unpack::packed_zeros(&self.parts.bytes("weight_zero_point")?, layout.rows, groups, bits),
            false => vec![1 << (bits - 1); layout.num_scales],
        };
        let scales = HostScales {
            block: layout.block,
            scales: self.parts.floats("weight_scale")?,
            zeros: Some(zeros),
            column_groups: self.column_groups(layout)?,
        };
        Ok((elements, scales))
    }

    /// Signed integers with zero points become unsigned ones, both moved up by 128.
    fn read_bytes(&self, layout: &Layout, scale: &str) -> Result<(TensorBytes, HostScales)> {
        let mut elements = self.parts.bytes("weight")?;
        let mut zeros = None;
        if layout.has_zeros {
            let moved = |bytes: &[u8]| bytes.iter().map(|byte| byte ^ 0x80).collect::<Vec<u8>>();
            zeros = Some(moved(&self.parts.bytes("weight_zero_point")?));
            elements = TensorBytes::Owned(moved(&elements));
        }
        let scales = HostScales {
            block: layout.block,
            scales: self.parts.floats(scale)?,
            zeros,
            column_groups: self.column_groups(layout)?,
        };
        Ok((elements, scales))
    }

    /// Checks that all parts are there, once, and their shapes against each other.
    fn layout(&self, wanted: &[usize]) -> Result<Layout> {
        let layout = self.layout_of_parts(wanted)?;
        self.check_once()?;
        match self.kind {
            Kind::Gptq { act_order: true, .. } if layout.num_groups() > 1 => self.parts.require("g_idx")?,
            Kind::Packed(said) | Kind::Bytes { said, .. } => {
                if said.has_zeros {
                    self.parts.require("weight_zero_point")?;
                }
                if said.act_order && layout.num_groups() > 1 {
                    self.parts.require("weight_g_idx")?;
                }
            }
            _ => {}
        }
        Ok(layout)
    }

    /// A dense weight beside a quantized one, or scales under both their names: who wrote the file meant one of them.
    fn check_once(&self) -> Result<()> {
        let (used, other) = match self.kind {
            Kind::Gptq { .. } | Kind::Awq { .. } => ("qweight", "weight"),
            Kind::Packed(_) => ("weight_packed", "weight"),
            Kind::Bytes { scale: "weight_scale", .. } => ("weight_scale", "weight_scale_inv"),
            Kind::Bytes { .. } => ("weight_scale_inv", "weight_scale"),
        };
        if !self.parts.has(other) {
            return Ok(());
        }
        let (tensor, other) = (self.parts.name(other), self.parts.name(used));
        Err(Error::WeightTwice { path: self.parts.path(&tensor), tensor, other })
    }

    /// The tensors that are read of it.
    pub(super) fn reads(&self, part: &str) -> bool {
        let parts: &[&str] = match self.kind {
            Kind::Gptq { .. } => &["qweight", "qzeros", "scales", "g_idx"],
            Kind::Awq { .. } => &["qweight", "qzeros", "scales"],
            Kind::Packed(_) => {
                &["weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"]
            }
            Kind::Bytes { scale, .. } if part == scale => return true,
            Kind::Bytes { .. } => &["weight", "weight_zero_point", "weight_g_idx"],
        };
        parts.contains(&part)
    }

    fn layout_of_parts(&self, wanted: &[usize]) -> Result<Layout> {
        match self.kind {
            Kind::Gptq { bits, group_size, .. } => Layout::gptq(&self.parts, bits, group_size),
            Kind::Awq { group_size } => Layout::awq(&self.parts, group_size),
            Kind::Packed(_) => Layout::packed(&self.parts, wanted),
            Kind::Bytes { dtype, scale, block, .. } => Layout::bytes(&self.parts, dtype, scale, block),
        }
    }

    /// The group of each column; `None` where they lie in order.
    fn column_groups(&self, layout: &Layout) -> Result<Option<Vec<u32>>> {
        let part = match self.kind {
            Kind::Gptq { .. } => "g_idx",
            Kind::Awq { .. } => return Ok(None),
            Kind::Packed(_) | Kind::Bytes { .. } => "weight_g_idx",
        };
        if !self.parts.has(part) {
            return Ok(None);
        }
        let num_groups = layout.num_groups();
        let bytes = self.parts.bytes(part)?;
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
                tensor: self.parts.name(part),
                path: self.parts.path(&self.parts.name(part)),
                given: given.into(),
                num_groups,
            }),
        }
    }
}
