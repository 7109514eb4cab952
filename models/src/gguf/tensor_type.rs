//! The tensor types of GGML, by number.

use quire_kernels::DType;

/// Every type that can be computed with, by its number in the file.
const SUPPORTED: [(u32, &str, DType); 18] = [
    (0, "F32", DType::F32),
    (1, "F16", DType::F16),
    (2, "Q4_0", DType::Q4_0),
    (3, "Q4_1", DType::Q4_1),
    (6, "Q5_0", DType::Q5_0),
    (7, "Q5_1", DType::Q5_1),
    (8, "Q8_0", DType::Q8_0),
    (10, "Q2_K", DType::Q2K),
    (11, "Q3_K", DType::Q3K),
    (12, "Q4_K", DType::Q4K),
    (13, "Q5_K", DType::Q5K),
    (14, "Q6_K", DType::Q6K),
    (20, "IQ4_NL", DType::IQ4NL),
    (23, "IQ4_XS", DType::IQ4XS),
    (24, "I8", DType::I8),
    (26, "I32", DType::I32),
    (27, "I64", DType::I64),
    (30, "BF16", DType::BF16),
];

/// Types that exist, so that an error can say which one was met.
const OTHERS: [(u32, &str); 15] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (25, "I16"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

/// The name and dtype behind a number, or the best name for what is not supported.
pub(super) fn tensor_type(id: u32) -> Result<(&'static str, DType), String> {
    if let Some(&(_, name, dtype)) = SUPPORTED.iter().find(|(known, ..)| *known == id) {
        return Ok((name, dtype));
    }
    let other = OTHERS.iter().find(|(known, _)| *known == id);
    Err(other.map_or_else(|| format!("type number {id}"), |(_, name)| (*name).to_owned()))
}

/// The number of a dtype, for writing files.
pub(crate) fn type_id(dtype: DType) -> Option<u32> {
    SUPPORTED.iter().find(|(.., known)| *known == dtype).map(|(id, ..)| *id)
}

/// The names of all supported types.
pub(super) fn known() -> String {
    SUPPORTED.map(|(_, name, _)| name).join(", ")
}
