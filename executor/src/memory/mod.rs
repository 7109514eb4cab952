//! Memory is planned before a weight is read.

mod error;
mod plan;
mod report;
mod size;

pub use error::{MemoryAdvice, MemoryError};
pub use plan::{MaxModelLen, MemoryPlan, MemoryRequest, ModelSizes, PoolSize};
pub use report::{MeasuredMemory, MemoryProbe, MemoryReport, process_resident_bytes};
