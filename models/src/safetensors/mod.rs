//! safetensors files, and folders of them.
//!
//! ```text
//! header_bytes: u64 | {"name": {"dtype", "shape", "data_offsets": [start, end]}, ...} | tensor bytes
//! ```
//!
//! The header is read here and not by the `safetensors` crate because its errors name no tensor, and a
//! damaged download must be told from a damaged header: every size is checked against its offsets and
//! every offset against the file's length. The crate writes the files of the tests.

mod folder;
mod header;
mod others;
mod raw;

pub use folder::{SafetensorsFolder, ShardError};
pub(crate) use header::LFS_POINTER;
pub use header::{Entry, Header, SafetensorsError, StoredDType};

/// The body of a fuzz target: reads `data` as a safetensors file. It must return, whatever the bytes are.
pub fn fuzz(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    for (name, entry) in header.entries() {
        assert!(data.get(entry.range()).is_some(), "tensor {name} lies inside the file");
    }
}
